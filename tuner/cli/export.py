"""`tuner export`: a trial's configuration in the words of a trainer."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from tuner import registry
from tuner.cli import formats
from tuner.cli.options import json_option, store_option, study_option, verbosity_options
from tuner.cli.output import print_json, print_table, say
from tuner.errors import NothingFeasibleError, UsageError
from tuner.ports import Export, Exporter, ExportRequest

if TYPE_CHECKING:
    from results_db.records import StudyRecord, TrialSummary
    from results_db.store import Store

_BEST = "best"


def _complete_exporter(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    names = registry.names("exporters")
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


@click.command(
    epilog="\b\nExamples:\n  tuner export --to megatron-lm        the best of the newest study\n"
    "  tuner export 7 --to torchtitan -o tuned/   trial 7, with the scripts that start it\n"
    "  tuner export --to deepspeed --nearest -o ds_config.json\n"
    "  tuner export --list                  the exporters, and which versions they are right for\n"
    "  tuner export --list --to nanotron    where each knob goes\n\n"
    "Exit code 6: the trainer cannot express the configuration; the message says which knob, and "
    "what comes nearest."
)
@click.argument("trial", required=False, metavar="[TRIAL]")
@click.option(
    "--to", "name", metavar="NAME", shell_complete=_complete_exporter, help="The trainer."
)
@study_option
@store_option
@click.option(
    "-o",
    "--output",
    metavar="DIR|FILE",
    help="A folder for all files, or a file for the first; left out: standard output.",
)
@click.option("--nearest", is_flag=True, help="Change what the trainer cannot express, and say so.")
@click.option("--force", is_flag=True, help="Overwrite files.")
@click.option("--list", "list_them", is_flag=True, help="List the exporters.")
@json_option
@verbosity_options
def export(
    trial: str | None,
    name: str | None,
    study: str | None,
    store: str | None,
    output: str | None,
    nearest: bool,
    force: bool,
    list_them: bool,
    as_json: bool,
) -> None:
    """Write a trial's configuration in the words of a trainer.

    TRIAL is a trial's number, or "best", which is the default.
    """
    if list_them:
        _list(name, as_json)
        return
    if name is None:
        names = ", ".join(registry.names("exporters"))
        raise UsageError("say which trainer with --to NAME", f"known: {names}")
    exporter: Exporter = registry.load("exporters", name)()
    request, number, study_name = _request(trial, study, store)
    changes: tuple[str, ...] = ()
    if nearest:
        near = exporter.nearest(request)
        request, changes = near.request, near.changes
    made = exporter.export(request)
    if changes:
        say(f"changed for {exporter.trainer}, so that this was not measured: {'; '.join(changes)}")
    if as_json:
        about = {"exporter": name, "study": study_name, "trial": number, "changes": changes}
        print_json(about | _about(exporter) | _document(request, made))
        return
    _write(made, output, force=force)


def _request(
    trial: str | None, study: str | None, store: str | None
) -> tuple[ExportRequest, int, str]:
    from search_spaces.cluster_spec import ClusterSpec
    from search_spaces.model_spec import ModelSpec
    from search_spaces.training_spec import TrainingSpec
    from tuner.cli.stores import open_for_reading
    from tuner.outcomes import config_of

    opened, record = open_for_reading(study, store)
    with opened:
        row = _trial(opened, record, trial)
    measurement, number = row.measurement, row.trial.number or 0
    speed = f", {formats.throughput(measurement.tokens_per_s)} tokens/s" if measurement else ""
    model = {key: value for key, value in record.model.items() if key != "num_parameters"}
    request = ExportRequest(
        model=ModelSpec.model_validate_json(json.dumps(model)),
        training=TrainingSpec.model_validate_json(json.dumps(dict(record.training))),
        cluster=ClusterSpec.model_validate_json(json.dumps(dict(record.cluster))),
        config=config_of(row.trial),
        origin=f"Trial {number} of study {record.name}{speed}.",
    )
    return request, number, record.name


def _trial(store: "Store", study: "StudyRecord", trial: str | None) -> "TrialSummary":
    from results_db.queries import best
    from tuner.cli.show import trial_of

    if trial is None or trial == _BEST:
        fastest = best(store, study.name)
        if fastest is None:
            raise NothingFeasibleError(
                f"no trial of study {study.name!r} has given a number yet",
                "name a trial by its number",
            )
        return trial_of(store, study, fastest.trial_number)
    if not trial.isdecimal():
        raise UsageError(f"{trial!r} is no trial", 'give a number, or "best"')
    return trial_of(store, study, int(trial))


def _write(made: Export, output: str | None, *, force: bool) -> None:
    """Put the files where they are asked for."""
    first = next(iter(made.files))
    if output is None or output == "-":
        click.echo(made.files[first], nl=False)
        others = ", ".join(name for name in made.files if name != first)
        say(f"this is {first}; -o DIR writes {others} too" if others else f"this is {first}")
    else:
        path = Path(output)
        is_folder = path.is_dir() or output.endswith("/") or not path.suffix
        files = {path / name: text for name, text in made.files.items()}
        _write_files(files if is_folder else {path: made.files[first]}, force=force)
    for note in made.notes:
        say(f"note: {note}")


def _write_files(files: Mapping[Path, str], *, force: bool) -> None:
    existing = [str(path) for path in files if path.exists()]
    if existing and not force:
        raise UsageError(f"{existing[0]} exists already", "choose another --output, or add --force")
    for path, text in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            if path.suffix == ".sh":
                path.chmod(0o755)
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror}") from error
        say(f"wrote {path}")


def _about(exporter: Exporter) -> dict[str, Any]:
    return {
        "trainer": exporter.trainer,
        "versions": exporter.versions,
        "round_trip": exporter.round_trip,
    }


def _document(request: ExportRequest, made: Export) -> dict[str, Any]:
    return {
        "config": request.config.model_dump(mode="json"),
        "files": dict(made.files),
        "notes": list(made.notes),
    }


def _list(name: str | None, as_json: bool) -> None:
    """The exporters, or where one of them puts the knobs."""
    names = registry.names("exporters") if name is None else [name]
    loaded = {one: registry.load("exporters", one)() for one in names}
    if as_json:
        print_json(
            [
                {"exporter": one, **_about(exporter), "knobs": dict(exporter.goes_to)}
                for one, exporter in loaded.items()
            ]
        )
        return
    if name is None:
        rows = [(one, e.trainer, e.versions, e.round_trip) for one, e in loaded.items()]
        print_table(("exporter", "trainer", "versions", "read back in the tests by"), rows)
        return
    exporter = loaded[name]
    say(f"{exporter.trainer}, {exporter.versions}; - is refused, but for its neutral value")
    print_table(("knob", "goes to"), exporter.goes_to.items())
