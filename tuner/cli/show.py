"""`tuner show`: everything that is known of one trial."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from tuner.cli import formats, sparks
from tuner.cli.options import json_option, store_option, study_option, verbosity, verbosity_options
from tuner.cli.output import print_json, print_table
from tuner.cli.stores import open_for_reading

if TYPE_CHECKING:
    from results_db.records import (
        FailureRow,
        MeasurementRow,
        PredictionRow,
        RankRow,
        StepRow,
        StudyRecord,
        TrialRecord,
        TrialSummary,
    )
    from results_db.store import Store


@dataclass(frozen=True)
class _Details:
    study: "StudyRecord"
    summary: "TrialSummary"
    steps: Sequence["StepRow"]
    ranks: Sequence["RankRow"]
    failures: Sequence["FailureRow"]
    prediction: "PredictionRow | None"


@click.command(
    epilog="\b\nExamples:\n  tuner show 7\n  tuner show 7 --study NAME -v   with the traceback\n"
    "  tuner show 7 --json"
)
@click.argument("trial", type=click.IntRange(min=1))
@study_option
@store_option
@json_option
@verbosity_options
def show(trial: int, study: str | None, store: str | None, as_json: bool) -> None:
    """Show everything that is known of one trial."""
    opened, record = open_for_reading(study, store)
    with opened:
        details = _read(opened, record, trial)
    if as_json:
        print_json(_document(details))
        return
    _print_head(details)
    if details.summary.measurement is not None:
        _print_measurement(details.summary.measurement, details.prediction)
    for failure in details.failures:
        _print_failure(failure)
    _print_steps(details.steps)
    _print_ranks(details.ranks)


def _read(store: "Store", study: "StudyRecord", number: int) -> _Details:
    summary = trial_of(store, study, number)
    trial_id = summary.trial.id or 0
    key = summary.trial.config_key
    predictions = [row for row in store.predictions(study.id or 0) if row.config_key == key]
    return _Details(
        study=study,
        summary=summary,
        steps=store.steps(trial_id),
        ranks=store.ranks(trial_id),
        failures=store.failures(trial_id),
        prediction=predictions[0] if predictions else None,
    )


def trial_of(store: "Store", study: "StudyRecord", number: int) -> "TrialSummary":
    """A trial of a study by its number; `UsageError` with the numbers that exist."""
    from results_db.errors import NotFound
    from tuner.errors import UsageError

    try:
        return store.trial(study.name, number)
    except NotFound as error:
        last = max((row.trial.number or 0 for row in store.trials(study.id or 0)), default=0)
        hint = f"it has trials 1 to {last}" if last else "it has no trial yet"
        raise UsageError(f"study {study.name!r} has no trial {number}", hint) from error


def _document(details: _Details) -> dict[str, Any]:
    return {
        "study": details.study.name,
        **asdict(details.summary),
        "failures": [asdict(row) for row in details.failures],
        "steps": [asdict(row) for row in details.steps],
        "ranks": [asdict(row) for row in details.ranks],
        "prediction": asdict(details.prediction) if details.prediction else None,
    }


def _print_facts(title: str, facts: dict[str, str]) -> None:
    """A titled block of `name  value` lines, without the facts that are not known."""
    known = [(name, text) for name, text in facts.items() if text and text != formats.UNKNOWN]
    width = max(len(name) for name, _ in known) if known else 0
    click.echo(title)
    for name, text in known:
        click.echo(f"  {name:<{width}}  {text}")


def _print_head(details: _Details) -> None:
    from tuner.outcomes import config_of

    trial = details.summary.trial
    config = config_of(trial)
    facts = {
        "configuration": config.short(),
        "model": str(details.study.model.get("name", "")),
        "status": trial.status.value,
        "purpose": _purpose(trial),
        "proposed by": trial.source,
        "started": formats.moment(trial.started_at),
        "took": _took(trial),
        "folder": trial.folder or "",
        "knobs": ", ".join(f"{name}={value}" for name, value in config.canonical().items()),
        "config key": trial.config_key,
    }
    _print_facts(f"trial {trial.number} of {details.study.name}", facts)


def _purpose(trial: "TrialRecord") -> str:
    repeat = f", repeat {trial.repeat}" if trial.repeat else ""
    attempt = f", attempt {trial.attempt}" if trial.attempt > 1 else ""
    return f"{trial.purpose.value}{repeat}{attempt}"


def _took(trial: "TrialRecord") -> str:
    if trial.started_at is None or trial.finished_at is None:
        return formats.UNKNOWN
    return formats.step_time((trial.finished_at - trial.started_at).total_seconds())


def _print_measurement(row: "MeasurementRow", prediction: "PredictionRow | None") -> None:
    spread = f"{formats.step_time(row.step_time_s)}, IQR {formats.step_time(row.step_time_iqr_s)}"
    facts = {
        "tokens/s": formats.throughput(row.tokens_per_s),
        "step": spread,
        "predicted step": formats.step_time(prediction.step_time_s if prediction else None),
        "tokens a step": formats.count(row.tokens_per_step),
        "micro-batches": f"{row.num_microbatches} a step and replica",
        "MFU": formats.percent(row.mfu),
        "model FLOP/s": f"{formats.flops(row.model_flops_per_s_per_device)} a device",
        "hardware FLOP/s": f"{formats.flops(row.hardware_flops_per_s_per_device)} a device",
        "peak memory": f"{formats.memory(row.peak_memory_bytes)} on the fullest rank",
        "parameters": formats.count(row.num_parameters),
        "layers": formats.count(row.num_layers),
        "final loss": formats.UNKNOWN if row.final_loss is None else f"{row.final_loss:.4f}",
        "start-up": formats.step_time(row.startup_s),
        "overhead": formats.step_time(row.overhead_s),
        "versions": ", ".join(f"{name} {text}" for name, text in sorted(row.versions.items())),
    }
    _print_facts("\nmeasured", facts)


def _print_failure(row: "FailureRow") -> None:
    places = {"rank": row.rank, "stage": row.stage, "step": row.step}
    where = ", ".join(f"{name} {value}" for name, value in places.items() if value is not None)
    facts = {
        "during": row.phase,
        "where": where,
        "said": " ".join(row.message.split()),
        "peak memory": formats.memory(row.peak_memory_bytes),
    }
    _print_facts(f"\nfailure: {row.kind}", facts)
    if row.traceback and verbosity() > 0:
        click.echo(row.traceback.rstrip())
    elif row.traceback:
        click.echo("  -v shows the traceback")


def _print_steps(steps: Sequence["StepRow"]) -> None:
    if not steps:
        return
    click.echo(f"\nsteps{_step_line(steps)}")
    cells = [
        (
            str(row.step + 1),
            "warm-up" if row.is_warmup else "measured",
            formats.step_time(row.step_time_s),
            formats.UNKNOWN if row.loss is None else f"{row.loss:.4f}",
            formats.count(row.tokens),
        )
        for row in steps
    ]
    print_table(("step", "", "time", "loss", "tokens"), cells, right=(0, 2, 3, 4))


def _step_line(steps: Sequence["StepRow"]) -> str:
    """The steps' times as a sparkline with its ends, where a terminal has room for it."""
    times = [row.step_time_s for row in steps]
    if len(times) < 3 or not sparks.has_room(min_width=60):
        return ""
    low, high = formats.step_time(min(times)), formats.step_time(max(times))
    return f"  {sparks.sparkline(times)}  {low} to {high}"


def _print_ranks(ranks: Sequence["RankRow"]) -> None:
    if not ranks:
        return
    click.echo("\nranks")
    headers = ("rank", "host", "device", "mesh", "stages", "layers", "parameters", "states", "peak")
    print_table(headers, map(_rank_cells, ranks), right=(0, 6, 7, 8))
    parts = sorted({name for row in ranks for name in row.breakdown_s})
    if parts:
        click.echo("\ntime of a step by part")
        has_bars = sparks.has_room()
        longest = max(sum(row.breakdown_s.values()) for row in ranks) or 1.0
        cells = [
            (
                str(row.rank),
                *(formats.step_time(row.breakdown_s.get(part)) for part in parts),
                *([sparks.bar(_working_s(row) / longest)] if has_bars else []),
            )
            for row in ranks
        ]
        head = ("rank", *parts, *(["not in the bubble"] if has_bars else []))
        print_table(head, cells, right=range(len(parts) + 1))


def _working_s(row: "RankRow") -> float:
    """Seconds of a step that a rank does not wait for others."""
    return sum(time for part, time in row.breakdown_s.items() if part != "bubble")


def _rank_cells(row: "RankRow") -> tuple[str, ...]:
    mesh = " ".join(f"{axis}{place}" for axis, place in row.coordinates.items())
    return (
        str(row.rank),
        row.hostname,
        row.device,
        mesh,
        ",".join(map(str, row.stages)),
        ",".join(_spans(row.layers)),
        formats.count(row.num_parameters),
        formats.memory(row.state_memory_bytes),
        formats.memory(row.peak_memory_bytes),
    )


def _spans(numbers: Sequence[int]) -> Iterator[str]:
    """Runs of neighbours as `0-5`."""
    ordered = sorted(numbers)
    start = 0
    for position, number in enumerate(ordered):
        if position + 1 == len(ordered) or ordered[position + 1] != number + 1:
            first = ordered[start]
            yield str(first) if first == number else f"{first}-{number}"
            start = position + 1
