"""What a trial left behind (steps, ranks, failures) and what a study knows of points not run."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Table, select

from results_db import knobs, trial_rows, trial_summaries
from results_db.bulk import insert_or_replace
from results_db.records import FailureRow, PredictionRow, RankRow, StepRow, UntriedRow
from results_db.schema import (
    breakdowns,
    collectives,
    failure_reports,
    parallel_configs,
    predictions,
    rank_coordinates,
    rank_stages,
    ranks,
    steps,
    timeline,
    untried_points,
)
from results_db.values import finite_or_none, from_json, join_nonfinite

_CHUNK = 1000


def read_steps(connection: Connection, trial_id: int) -> list[StepRow]:
    """Steps of a trial in order."""
    query = select(steps).where(steps.c.trial_id == trial_id).order_by(steps.c.step)
    return [
        StepRow(
            step=row.step,
            is_warmup=row.is_warmup,
            step_time_s=row.step_time_s,
            loss=join_nonfinite(row.loss, row.loss_nonfinite),
            tokens=row.tokens,
        )
        for row in connection.execute(query)
    ]


def read_failures(connection: Connection, trial_id: int) -> list[FailureRow]:
    """Failures of a trial, the cause first."""
    query = select(failure_reports).where(failure_reports.c.trial_id == trial_id)
    rows = connection.execute(query.order_by(failure_reports.c.position)).mappings()
    return [trial_summaries.failure_record(row) for row in rows]


def _by_rank(connection: Connection, table: Table, trial_id: int) -> dict[int, list[Any]]:
    query = select(table).where(table.c.trial_id == trial_id).order_by(*table.primary_key.columns)
    found: dict[int, list[Any]] = defaultdict(list)
    for row in connection.execute(query):
        found[row.rank].append(row)
    return found


def read_ranks(connection: Connection, trial_id: int) -> list[RankRow]:
    """Ranks of a trial in order, with all they reported."""
    tables = (rank_coordinates, rank_stages, breakdowns, collectives, timeline)
    axes, stages, parts, calls, actions = (
        _by_rank(connection, table, trial_id) for table in tables
    )
    query = select(ranks).where(ranks.c.trial_id == trial_id).order_by(ranks.c.rank)
    return [
        RankRow(
            rank=row.rank,
            hostname=row.hostname,
            device=row.device,
            coordinates={item.axis: item.coordinate for item in axes[row.rank]},
            stages=tuple(item.stage for item in stages[row.rank]),
            layers=tuple(int(layer) for layer in row.layers.split(",") if layer),
            num_parameters=row.num_parameters,
            peak_memory_bytes=row.peak_memory_bytes,
            state_memory_bytes=row.state_memory_bytes,
            breakdown_s={item.part: item.time_s for item in parts[row.rank]},
            collectives={item.collective: _quantities(item) for item in calls[row.rank]},
            timeline=tuple(
                (item.op, item.micro_batch, item.stage, item.start_s, item.end_s)
                for item in actions[row.rank]
            ),
        )
        for row in connection.execute(query)
    ]


def _quantities(row: Any) -> dict[str, float]:
    named = {"calls": row.calls, "bytes": row.bytes, "seconds": row.seconds}
    known = {name: value for name, value in named.items() if value is not None}
    return known | (from_json(row.other) if row.other else {})


def write_predictions(connection: Connection, study_id: int, rows: Sequence[PredictionRow]) -> None:
    """Store predictions; a later one of the same cost model for the same point replaces it."""
    floats = ("step_time_s", "step_time_low_s", "step_time_high_s", "peak_memory_bytes",
              "probability_fits")  # fmt: skip
    values = [
        {
            "study_id": study_id,
            "config_key": row.config_key,
            "model_name": row.model_name,
            **{name: finite_or_none(getattr(row, name)) for name in floats},
        }
        for row in rows
    ]
    for start in range(0, len(values), _CHUNK):
        insert_or_replace(connection, predictions, values[start : start + _CHUNK])


def read_predictions(connection: Connection, study_id: int) -> list[PredictionRow]:
    """Predictions of a study by configuration key and cost model."""
    query = select(predictions).where(predictions.c.study_id == study_id)
    rows = connection.execute(query.order_by(*predictions.primary_key.columns)).mappings()
    names = PredictionRow.__dataclass_fields__
    return [PredictionRow(**{name: row[name] for name in names}) for row in rows]


def write_untried(connection: Connection, study_id: int, rows: Sequence[UntriedRow]) -> None:
    """Store points that were not run; a later reason of the same rule replaces the earlier."""
    ids = trial_rows.config_ids(connection, {row.config_key: row.knobs for row in rows})
    values = {
        (ids[row.config_key], row.rule): {
            "study_id": study_id,
            "config_id": ids[row.config_key],
            "rule": row.rule,
            "reason": row.reason,
        }
        for row in rows
    }
    ordered = [values[key] for key in sorted(values)]
    for start in range(0, len(ordered), _CHUNK):
        insert_or_replace(connection, untried_points, ordered[start : start + _CHUNK])


def read_untried(connection: Connection, study_id: int) -> list[UntriedRow]:
    """Points of a study that were not run, with their reasons."""
    query = (
        select(untried_points.c.rule, untried_points.c.reason, parallel_configs)
        .join(parallel_configs, untried_points.c.config_id == parallel_configs.c.id)
        .where(untried_points.c.study_id == study_id)
        .order_by(untried_points.c.config_id, untried_points.c.rule)
    )
    return [
        UntriedRow(
            config_key=row["config_key"],
            knobs=knobs.from_columns(row),
            rule=row["rule"],
            reason=row["reason"],
        )
        for row in connection.execute(query).mappings()
    ]
