"""Studies with something of everything, for tests of what shows them; no machine is needed."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from results_db.knobs import config_key
from results_db.records import (
    FailureRow,
    MeasurementRow,
    PredictionRow,
    Purpose,
    RankRow,
    StepRow,
    StudyRecord,
    TrialOutcome,
    TrialRecord,
    TrialStatus,
    UntriedRow,
)
from results_db.store import Store

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
TOKENS_PER_STEP = 8192

HOSTILE = (
    "</script></title><script>window.hacked='script'</script>"
    '<img src=x onerror="window.hacked=1">"\'><svg onload=window.hacked=2>'
    '{{ 7 * 7 }}${7*7}<a href="javascript:window.hacked=3">x</a>\u202e'
)
"""A name that runs wherever a page forgets to escape it."""
FORMULA = '=HYPERLINK("http://example.invalid","x")'
"""An error text that a spreadsheet would run."""

_POINTS: tuple[dict[str, Any], ...] = (
    {"dp": 4}, {"tp": 2, "dp": 2}, {"pp": 2, "dp": 2, "micro_batch_size": 2},
    {"tp": 2, "pp": 2, "pipeline_schedule": "gpipe"}, {"dp": 4, "zero_stage": 1},
    {"tp": 2, "dp": 2, "zero_stage": 1, "recompute": "full"}, {"pp": 4, "recompute": "full"},
    {"tp": 4, "compile": True}, {"dp": 4, "micro_batch_size": 4}, {"pp": 4},
    {"tp": 4, "zero_stage": 2}, {"dp": 4, "zero_stage": 3},
)  # fmt: skip


def add_example_study(store: Store, name: str = "example", **fields: Any) -> StudyRecord:
    """A finished study: measurements, repeats, failures, predictions, points not tried."""
    study = store.create_study(_study(name, fields))
    assert study.id is not None  # noqa: S101 -- given by the store
    store.add_results(study.id, list(_results(study.id)))
    keyed = [(config_key(point), point) for point in _POINTS]
    store.add_predictions(
        study.id,
        [
            PredictionRow(
                config_key=key, model_name="analytic", step_time_s=0.9 * _step_time_s(place),
                step_time_low_s=0.6 * _step_time_s(place),
                step_time_high_s=1.3 * _step_time_s(place), peak_memory_bytes=2.0 * 2**30,
                probability_fits=0.9,
            )
            for place, (key, _) in enumerate(keyed)
        ],
    )  # fmt: skip
    point = {"tp": 3}
    store.add_untried(
        study.id,
        [UntriedRow(config_key=config_key(point), knobs=point, rule="divides_heads",
                    reason="tp=3 does not divide 12 heads")],
    )  # fmt: skip
    return study


def add_hostile_study(store: Store) -> StudyRecord:
    """A study whose every text tries to run as a program in a page, a plot or a spreadsheet."""
    study = store.create_study(
        _study(
            HOSTILE,
            {
                "searcher": HOSTILE,
                "model": {"name": HOSTILE, "num_layers": 12, "num_parameters": 10**8},
                "cluster": {"name": HOSTILE, "num_nodes": 1, "devices_per_node": 4},
                "resolved_config": HOSTILE,
                "provenance": {"git": {"commit": HOSTILE}, HOSTILE: HOSTILE},
            },
        )
    )
    assert study.id is not None  # noqa: S101 -- given by the store
    knobs: list[dict[str, Any]] = [
        {"dp": 4, "pipeline_schedule": HOSTILE}, {"dp": 4}, {"tp": 2, "recompute": HOSTILE},
    ]  # fmt: skip
    pairs = []
    for place, point in enumerate(knobs):
        trial = _trial(study.id, point, place, source=HOSTILE)
        pairs.append((trial, _completed(place, versions={HOSTILE: HOSTILE}, host=HOSTILE)))
    for place, text in enumerate((HOSTILE, FORMULA), start=len(pairs)):
        failure = FailureRow(kind="crash", phase="forward", message=text, traceback=text, rank=0)
        failed = TrialOutcome(status=TrialStatus.FAILED, failure=failure)
        pairs.append((_trial(study.id, {"dp": 2, "tp": 2 * place}, place), failed))
    store.add_results(study.id, pairs)
    store.tag_study(study.id, HOSTILE)
    return study


def add_finished_trial(
    store: Store, study_id: int, knobs: dict[str, Any], step_time_s: float
) -> None:
    """One more measured trial, as a running study adds it."""
    store.add_results(
        study_id, [(_trial(study_id, knobs, 40), _completed(0, step_time_s=step_time_s))]
    )


def _study(name: str, fields: dict[str, Any]) -> StudyRecord:
    values: dict[str, Any] = {
        "name": name,
        "searcher": "random",
        "launcher": "local",
        "max_trials": 16,
        "num_legal_points": 96,
        "model": {"name": "tiny", "family": "gpt2", "num_layers": 12,
                  "num_parameters": 124_000_000},
        "cluster": {"name": "box", "device_kind": "cpu", "device_name": "a processor",
                    "num_nodes": 1, "devices_per_node": 4, "memory_bytes": 8 * 2**30},
        "training": {"sequence_length": 1024, "global_batch_size": 8, "dtype": "fp32"},
        "resolved_config": "[model]\nsource = \"tiny\"\n",
        "config_hash": "c0ffee",
        "provenance": {"git": {"commit": "0" * 40}, "host": "box0"},
        "created_at": START,
    }  # fmt: skip
    return StudyRecord(**{**values, **fields})


def _results(study_id: int) -> Iterator[tuple[TrialRecord, TrialOutcome]]:
    for place, point in enumerate(_POINTS[:9]):
        purpose = Purpose.BASELINE if place == 0 else Purpose.SEARCH
        yield _trial(study_id, point, place, purpose=purpose), _completed(place, knobs=point)
    repeated = _trial(study_id, _POINTS[1], 9, repeat=1, purpose=Purpose.CONFIRM)
    yield repeated, _completed(1, knobs=_POINTS[1])
    oom = FailureRow(kind="oom", phase="forward", message="out of memory: 2.00 GiB wanted",
                     rank=1, stage=1, step=0, traceback="Traceback ...",
                     peak_memory_bytes=2**33)  # fmt: skip
    for place in (9, 10):
        infeasible = TrialOutcome(status=TrialStatus.INFEASIBLE, failure=oom)
        yield _trial(study_id, _POINTS[place], place + 1), infeasible
    hang = FailureRow(kind="hang", phase="backward", message="rank 2 does not answer", rank=2)
    failed = TrialOutcome(status=TrialStatus.FAILED, failure=hang)
    yield _trial(study_id, _POINTS[11], 12), failed


def _trial(study_id: int, knobs: dict[str, Any], place: int, **fields: Any) -> TrialRecord:
    began = START + timedelta(seconds=30 * place)
    values: dict[str, Any] = {
        "study_id": study_id, "config_key": config_key(knobs), "knobs": knobs, "warmup_steps": 2,
        "measured_steps": 6, "source": "random", "seed": place, "queued_at": began,
        "started_at": began, "finished_at": began + timedelta(seconds=25),
        "folder": f"trials/{place:04d}",
    }  # fmt: skip
    return TrialRecord(**{**values, **fields})


def _step_time_s(place: int) -> float:
    return 0.5 + 0.11 * (place * 5 % 9)


def _completed(
    place: int,
    *,
    knobs: dict[str, Any] | None = None,
    step_time_s: float | None = None,
    versions: dict[str, str] | None = None,
    host: str = "box0",
) -> TrialOutcome:
    step_s = step_time_s or _step_time_s(place)
    pp = (knobs or {}).get("pp", 1)
    measured = MeasurementRow(
        step_time_s=step_s, step_time_iqr_s=0.02 * step_s, tokens_per_s=TOKENS_PER_STEP / step_s,
        tokens_per_step=TOKENS_PER_STEP, num_microbatches=4, num_parameters=124_000_000,
        num_layers=12, model_flops_per_step=6e12, hardware_flops_per_step=7e12,
        model_flops_per_s_per_device=1.5e12 / step_s, hardware_flops_per_s_per_device=1.75e12,
        mfu=0.2 / step_s, peak_memory_bytes=(1 + place % 4) * 2**30, final_loss=6.5,
        startup_s=1.2, overhead_s=0.4, versions=versions or {"torch": "2.13.0"},
    )  # fmt: skip
    steps = tuple(
        StepRow(step=n, is_warmup=n < 2, step_time_s=step_s * (2.0 if n == 0 else 1 + 0.01 * n),
                loss=10.0 - 0.1 * n, tokens=TOKENS_PER_STEP)
        for n in range(8)
    )  # fmt: skip
    ranks = tuple(_rank(rank, pp, step_s, host) for rank in range(4))
    return TrialOutcome(
        status=TrialStatus.COMPLETED, measurement=measured, steps=steps, ranks=ranks
    )  # fmt: skip


def _rank(rank: int, pp: int, step_s: float, host: str) -> RankRow:
    stage = rank * pp // 4
    actions = []
    for micro in range(4):
        begin = (stage + 2 * micro) * step_s / 16
        actions.append(("F", micro, stage, begin, begin + step_s / 16))
        actions.append(("B", micro, stage, begin + step_s / 2, begin + 9 * step_s / 16))
    return RankRow(
        rank=rank, hostname=host, device=f"cpu:{rank}",
        coordinates={"pp": stage, "dp": 0 if pp == 4 else rank % (4 // pp)}, stages=(stage,),
        layers=tuple(range(12 * stage // pp, 12 * (stage + 1) // pp)),
        num_parameters=124_000_000 // pp, peak_memory_bytes=(2 + stage) * 2**29,
        state_memory_bytes=2**29,
        breakdown_s={"forward": 0.3 * step_s, "backward": 0.5 * step_s, "bubble": 0.1 * step_s,
                     "optimizer": 0.05 * step_s},
        collectives={"all_reduce": {"calls": 2.0, "bytes": 1e8, "seconds": 0.05 * step_s}},
        timeline=tuple(actions) if pp > 1 else (),
    )  # fmt: skip
