"""The end of a trial: everything it leaves, in the transaction that makes its status terminal."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select, update

from results_db import known_ids, median_rows, one_trial, trial_rows
from results_db.bulk import Rows, insert_or_ignore, insert_rows, insert_together, intern
from results_db.errors import InvalidRecord
from results_db.intervals import throughput_interval
from results_db.records import (
    FailureRow,
    Lease,
    MeasurementRow,
    RankRow,
    StepRow,
    TrialOutcome,
    TrialRecord,
    TrialStatus,
)
from results_db.schema import (
    breakdowns,
    collectives,
    failure_reports,
    measurements,
    parallel_configs,
    rank_coordinates,
    rank_stages,
    ranks,
    software,
    software_versions,
    steps,
    studies,
    timeline,
    trials,
)
from results_db.values import (
    content_hash,
    finite_or_none,
    require_finite,
    split_nonfinite,
    to_json,
)

_FROM_QUEUED = (TrialStatus.CANCELLED, TrialStatus.INFEASIBLE, TrialStatus.FAILED)
"""Ends that a trial may meet before it runs: dropped, found illegal, could not be launched."""
_WITH_NUMBERS = (TrialStatus.COMPLETED, TrialStatus.PRUNED)
_CHUNK = 500


def check(outcome: TrialOutcome) -> None:
    """Refuse an outcome whose parts contradict each other.

    Raises:
        InvalidRecord: not terminal, completed without a measurement, a measurement of a trial that
            failed, or a number that is not finite.
    """
    status = outcome.status
    if not status.is_terminal:
        raise InvalidRecord(f"A trial cannot end as {status.value}")
    if status is TrialStatus.COMPLETED and outcome.measurement is None:
        raise InvalidRecord("A completed trial needs a measurement")
    if outcome.measurement is not None:
        if status not in _WITH_NUMBERS:
            raise InvalidRecord(f"A trial that is {status.value} has no measurement")
        require_finite(outcome.measurement, _FINITE)
        if outcome.measurement.step_time_s <= 0 or outcome.measurement.tokens_per_s <= 0:
            raise InvalidRecord("Step time and tokens/s of a measurement must be above zero")
    for step in outcome.steps:
        require_finite(step, ("step_time_s",))


_FINITE = (
    "step_time_s", "step_time_iqr_s", "tokens_per_s", "model_flops_per_step",
    "hardware_flops_per_step", "model_flops_per_s_per_device",
    "hardware_flops_per_s_per_device", "mfu", "startup_s", "overhead_s",
)  # fmt: skip


_Ended = tuple[int, TrialOutcome, datetime]


def finish(connection: Connection, ended: Sequence[_Ended], lease: Lease | None) -> None:
    """Make trials of one study terminal: (id, outcome, time of its end) each.

    Raises:
        NotFound: no such trial.
        IllegalTransition: it is terminal already, or queued and the outcome needs a run.
        LeaseLost: it runs for another owner than `lease`.
    """
    wanted = {"trials": [trial_id for trial_id, _, _ in ended]}
    # the study's row is the first lock of every write on PostgreSQL
    rows = {row.id: row for row in connection.execute(_TO_FINISH, wanted)}
    for trial_id, outcome, finished_at in ended:
        legal = [TrialStatus.RUNNING]
        if outcome.status in _FROM_QUEUED:
            legal.append(TrialStatus.QUEUED)
        if trial_id not in rows:
            raise trial_rows.refused(connection, trial_id, "finished", *legal)
        started_at = rows[trial_id].started_at
        change = _FINISH if lease is None else _FINISH.where(trial_rows.owned_by(lease))
        values = {
            "trial": trial_id,
            "legal": legal,
            "new_status": outcome.status.value,
            "new_finished_at": finished_at,
            "new_wall_s": (finished_at - started_at).total_seconds() if started_at else None,
        }
        if connection.execute(change, values).rowcount != 1:
            raise trial_rows.refused(connection, trial_id, "finished", *legal)
    write_details(
        connection, [(key, rows[key].measured_steps, outcome) for key, outcome, _ in ended]
    )
    completed: dict[int, set[int]] = {}
    for trial_id, outcome, _ in ended:
        if outcome.status is TrialStatus.COMPLETED:
            completed.setdefault(rows[trial_id].study_id, set()).add(rows[trial_id].config_id)
    for study_id, config_ids in completed.items():
        median_rows.refresh_study_configs(connection, study_id, sorted(config_ids))


# statements that every trial runs are built once: building costs more than running them
_TO_FINISH = (
    select(
        trials.c.id, trials.c.study_id, trials.c.config_id, trials.c.measured_steps,
        trials.c.started_at,
    )
    .join(studies, studies.c.id == trials.c.study_id)
    .where(trials.c.id.in_(bindparam("trials", expanding=True)))
    .with_for_update(key_share=True, of=studies)
)  # fmt: skip
_FINISH = (
    update(trials)
    .where(
        trials.c.id == bindparam("trial"),
        trials.c.status.in_(bindparam("legal", expanding=True)),
    )
    .values({name: bindparam(f"new_{name}") for name in ("status", "finished_at", "wall_s")})
)
_IDS_BY_NUMBER = (
    select(trials.c.id)
    .where(
        trials.c.study_id == bindparam("study"),
        trials.c.number.between(bindparam("first"), bindparam("last")),
    )
    .order_by(trials.c.number)
)


def add_finished(
    connection: Connection, study_id: int, results: Sequence[tuple[TrialRecord, TrialOutcome]]
) -> list[int]:
    """Insert trials that ran elsewhere, with their outcomes; returns their ids in order."""
    if not results:
        return []
    if len(results) == 1 and connection.dialect.name == "postgresql":
        trial_id = _add_alone(connection, study_id, *results[0])
        if trial_id is not None:
            return [trial_id]
    first = trial_rows.next_numbers(connection, study_id, len(results))
    configs = trial_rows.config_ids(
        connection, {trial.config_key: trial.knobs for trial, _ in results}
    )
    now = datetime.now(UTC)
    rows = [
        (study_id, first + place, configs[trial.config_key],
         *_finished_columns(trial, outcome, now))
        for place, (trial, outcome) in enumerate(results)
    ]  # fmt: skip
    ids = _insert_trials(connection, rows)
    write_details(
        connection,
        [
            (key, trial.measured_steps, outcome)
            for key, (trial, outcome) in zip(ids, results, strict=True)
        ],
    )
    completed = {
        configs[trial.config_key]
        for trial, outcome in results
        if outcome.status is TrialStatus.COMPLETED
    }
    median_rows.refresh_study_configs(connection, study_id, sorted(completed))
    return ids


def _add_alone(
    connection: Connection, study_id: int, trial: TrialRecord, outcome: TrialOutcome
) -> int | None:
    """Store one trial in one statement; none where it must be done the long way.

    Configurations and software that are not remembered have rows of their own, which may be written
    only once the study is locked.
    """
    versions = outcome.measurement.versions if outcome.measurement else None
    if known_ids.find(connection, parallel_configs.name, trial.config_key) is None:
        return None
    if versions and known_ids.find(connection, software.name, _versions_hash(versions)) is None:
        return None
    groups = _groups(connection, [(0, trial.measured_steps, outcome)])
    if not one_trial.is_small(groups):
        return None
    config_id = trial_rows.config_ids(connection, {trial.config_key: trial.knobs})[trial.config_key]
    values = (config_id, *_finished_columns(trial, outcome, datetime.now(UTC)))
    added = one_trial.add(connection, study_id, _TRIAL_COLUMNS[2:], values, groups)
    if added is None:
        return None
    trial_id, number = added
    if outcome.status is TrialStatus.COMPLETED:
        (measured,) = groups[0][2]
        found = dict(zip(_MEASUREMENT_COLUMNS, measured, strict=True))
        run = median_rows.Completed(
            number, *(found[name] for name in median_rows.Completed._fields[1:])
        )
        if not median_rows.add_first(connection, study_id, config_id, run):
            median_rows.refresh_study_configs(connection, study_id, [config_id])
    return trial_id


def _insert_trials(connection: Connection, rows: Sequence[tuple[Any, ...]]) -> list[int]:
    """Insert trials of one study with rising numbers; their ids in that order."""
    if len(rows) == 1:
        values = dict(zip(_TRIAL_COLUMNS, rows[0], strict=True))
        return [int(connection.execute(_ADD_ONE, values).scalar_one())]
    insert_rows(connection, trials, _TRIAL_COLUMNS, rows)
    study_id, first = rows[0][:2]
    span = {"study": study_id, "first": first, "last": first + len(rows) - 1}
    return [int(key) for key in connection.execute(_IDS_BY_NUMBER, span).scalars()]


_ADD_ONE = insert(trials).returning(trials.c.id)
_TRIAL_COLUMNS = (
    "study_id", "number", "config_id", "status", "purpose", "repeat", "attempt", "seed",
    "warmup_steps", "measured_steps", "source", "queued_at", "started_at", "finished_at", "wall_s",
    "folder",
)  # fmt: skip


def _finished_columns(trial: TrialRecord, outcome: TrialOutcome, now: datetime) -> tuple[Any, ...]:
    end = trial.finished_at or now
    wall_s = (end - trial.started_at).total_seconds() if trial.started_at else None
    return (
        outcome.status.value, trial.purpose.value, trial.repeat, trial.attempt, trial.seed,
        trial.warmup_steps, trial.measured_steps, trial.source, trial.queued_at or now,
        trial.started_at, end, wall_s, trial.folder,
    )  # fmt: skip


def write_details(
    connection: Connection, finished: Sequence[tuple[int, int, TrialOutcome]]
) -> None:
    """Write what trials left; `finished` holds (trial id, measured steps asked for, outcome)."""
    insert_together(connection, _groups(connection, finished))


def _groups(
    connection: Connection, finished: Sequence[tuple[int, int, TrialOutcome]]
) -> list[Rows]:
    failures = [
        (key, place, *_failure_values(failure))
        for key, _, outcome in finished
        for place, failure in enumerate(
            ((outcome.failure,) if outcome.failure else ()) + tuple(outcome.other_failures)
        )
    ]
    step_rows = [(key, *_step_values(row)) for key, _, outcome in finished for row in outcome.steps]
    return [
        (measurements, _MEASUREMENT_COLUMNS, _measurement_rows(connection, finished)),
        (failure_reports, _FAILURE_COLUMNS, failures),
        (steps, _STEP_COLUMNS, step_rows),
        *_rank_groups([(key, row) for key, _, out in finished for row in out.ranks]),
    ]


_STEP_COLUMNS = ("trial_id", "step", "is_warmup", "step_time_s", "loss", "loss_nonfinite", "tokens")
_FAILURE_COLUMNS = ("trial_id", "position", "kind", "phase", "message", "rank", "stage", "step",
                    "traceback", "peak_memory_bytes")  # fmt: skip


def _failure_values(row: FailureRow) -> tuple[Any, ...]:
    # PostgreSQL's text cannot hold the character NUL, which a crashed rank's words may
    words = [text.replace("\0", "\\0") for text in (row.kind, row.phase, row.message)]
    trace = row.traceback.replace("\0", "\\0")
    return (*words, row.rank, row.stage, row.step, trace, row.peak_memory_bytes)


def _step_values(row: StepRow) -> tuple[Any, ...]:
    loss, kind = split_nonfinite(row.loss)
    return (row.step, row.is_warmup, row.step_time_s, loss, kind, row.tokens)


def _measurement_rows(
    connection: Connection, finished: Sequence[tuple[int, int, TrialOutcome]]
) -> list[tuple[Any, ...]]:
    software_ids: dict[str, int | None] = {}
    rows = []
    for key, asked_steps, outcome in finished:
        row = outcome.measurement
        if row is None:
            continue
        versions = to_json(row.versions)
        if versions not in software_ids:
            software_ids[versions] = _software_id(connection, row)
        num_steps = sum(not step.is_warmup for step in outcome.steps) or max(asked_steps, 1)
        rows.append((key, *_measurement_values(row, num_steps), software_ids[versions]))
    return rows


_MEASUREMENT_COLUMNS = tuple(column.name for column in measurements.columns)


def _measurement_values(row: MeasurementRow, num_steps: int) -> tuple[Any, ...]:
    notch = throughput_interval(
        row.tokens_per_step, row.step_time_s, row.step_time_iqr_s, num_steps
    )
    # the trial's own throughput stays as measured; the notch is relative to it
    scale = row.tokens_per_s / notch.median if notch.median else 1.0
    loss, kind = split_nonfinite(row.final_loss)
    return (
        row.step_time_s, row.step_time_iqr_s, row.tokens_per_s, notch.low * scale,
        notch.high * scale, row.tokens_per_step, num_steps, row.num_microbatches,
        row.num_parameters, row.num_layers, row.model_flops_per_step, row.hardware_flops_per_step,
        row.model_flops_per_s_per_device, row.hardware_flops_per_s_per_device, row.mfu,
        row.peak_memory_bytes, loss, kind, row.startup_s, row.overhead_s,
    )  # fmt: skip


def _software_id(connection: Connection, row: MeasurementRow) -> int | None:
    if not row.versions:
        return None
    found = _versions_hash(row.versions)
    if (known := known_ids.find(connection, software.name, found)) is not None:
        return known[0]
    key = intern(connection, software, "versions_hash", {"versions_hash": found})
    rows = [
        {"software_id": key, "package": package, "version": version}
        for package, version in sorted(row.versions.items())
    ]
    insert_or_ignore(connection, software_versions, rows)
    return key


def _versions_hash(versions: Mapping[str, str]) -> str:
    return content_hash(to_json(versions))


def _rank_groups(rows: Sequence[tuple[int, RankRow]]) -> list[Rows]:
    plain, axes, stages, parts, calls, actions = [], [], [], [], [], []
    for key, row in rows:
        place = (key, row.rank)
        layers = ",".join(map(str, row.layers))
        plain.append((*place, row.hostname, row.device, layers, row.num_parameters,
                      row.peak_memory_bytes, row.state_memory_bytes))  # fmt: skip
        axes += [(*place, axis, value) for axis, value in row.coordinates.items()]
        stages += [(*place, stage) for stage in sorted(set(row.stages))]
        parts += [(*place, part, finite_or_none(value)) for part, value in row.breakdown_s.items()]
        calls += [(*place, name, *_call_values(item)) for name, item in row.collectives.items()]
        actions += [(*place, number, *item) for number, item in enumerate(row.timeline)]
    head = ("trial_id", "rank")
    actions_columns = (*head, "position", "op", "micro_batch", "stage", "start_s", "end_s")
    return [
        (ranks, tuple(column.name for column in ranks.columns), plain),
        (rank_coordinates, (*head, "axis", "coordinate"), axes),
        (rank_stages, (*head, "stage"), stages),
        (breakdowns, (*head, "part", "time_s"), parts),
        (collectives, (*head, "collective", "calls", "bytes", "seconds", "other"), calls),
        (timeline, actions_columns, actions),
    ]


def _call_values(item: Any) -> tuple[Any, ...]:
    named = ("calls", "bytes", "seconds")
    others = {name: value for name, value in item.items() if name not in named}
    values = [finite_or_none(item.get(name)) for name in named]
    return (*values, to_json(others) if others else None)
