"""What every importer shares: the recipe that foreign files leave out, and the way into the store.

Quantities that a foreign tool does not record stay 0 in `measurements` (operation counts, layers)
or NULL (`mfu`); a spread that it does not record is 0, so its configurations share no position.
"""

import csv
import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import update

from results_db import knobs
from results_db.errors import DatabaseUnreadable, InvalidRecord
from results_db.records import (
    FailureRow,
    MeasurementRow,
    StudyRecord,
    StudyStatus,
    TrialOutcome,
    TrialRecord,
    TrialStatus,
)
from results_db.schema import studies
from results_db.store import Store

UNITS = ("tokens_per_s", "tokens_per_s_per_device", "samples_per_s", "step_time_s", "step_time_ms")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What was trained, as far as the foreign file does not say."""

    model_name: str = "imported"
    num_parameters: int | None = None
    num_layers: int | None = None
    sequence_length: int | None = None
    global_batch_size: int | None = None
    metric: str | None = None
    """Name of the file's column or value that holds the result, when not the tool's usual one."""
    unit: str | None = None
    """Its unit, one of `UNITS`."""
    devices_per_node: int = 8
    device_name: str = "unknown"


@dataclass(frozen=True, kw_only=True)
class ForeignTrial:
    """One row of another tool: a configuration with its result, or with its failure."""

    knobs: Mapping[str, Any]
    value: float | None = None
    unit: str = "tokens_per_s"
    global_batch_size: int | None = None
    sequence_length: int | None = None
    peak_memory_bytes: int | None = None
    failure: FailureRow | None = None
    status: TrialStatus | None = None
    """When neither the result nor the failure tells it."""
    model_flops_per_s_per_device: float = 0.0
    hardware_flops_per_s_per_device: float = 0.0
    started_at: datetime | None = None
    finished_at: datetime | None = None


@dataclass
class ImportReport:
    """What an import brought; `skipped` says of each row left out why."""

    study: str
    num_trials: int = 0
    num_completed: int = 0
    skipped: list[str] = field(default_factory=list)


def read_csv(path: Path, needed: Sequence[str]) -> list[dict[str, str]]:
    """Rows of a CSV file with a header.

    Raises:
        DatabaseUnreadable: the file is missing, is no text, or lacks a needed column.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as source:
            reader = csv.DictReader(source)
            columns = reader.fieldnames or []
            rows = [dict(row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DatabaseUnreadable(f"{path} cannot be read: {error}") from error
    missing = [name for name in needed if name not in columns]
    if missing:
        raise DatabaseUnreadable(
            f"{path} has no column {', '.join(missing)}", f"it has {', '.join(columns) or 'none'}"
        )
    return rows


def number(text: Any) -> float | None:
    """A cell as a finite number; none for an empty, `None` or `nan` cell."""
    try:
        value = float(str(text).strip())
    except ValueError:
        return None
    return value if abs(value) < float("inf") else None


def whole(row: Mapping[str, Any], name: str, default: int = 1) -> int:
    """A cell as a whole number, or the default when it is absent or empty."""
    value = number(row.get(name))
    return default if value is None else int(value)


def truth(text: Any) -> bool:
    """A cell as a boolean."""
    return str(text).strip().lower() in ("true", "1", "1.0", "yes")


def oom(message: str = "out of memory") -> FailureRow:
    """The failure of a configuration that did not fit."""
    return FailureRow(kind="oom", phase="measure", message=message)


def crash(message: str) -> FailureRow:
    """The failure of a configuration that ended in another error."""
    return FailureRow(kind="crash", phase="measure", message=message)


def import_trials(
    store: Store,
    tool: str,
    source: Path | str,
    name: str,
    recipe: Recipe,
    trials: Iterable[ForeignTrial | str],
) -> ImportReport:
    """Store foreign trials as a new study; a text instead of a trial says why a row is left out.

    Raises:
        AlreadyExists: the study's name is taken, as it is when the same file is imported again.
        InvalidRecord: the sequence length is needed and neither the file nor the recipe has it.
    """
    report = ImportReport(name)
    found: list[ForeignTrial] = []
    for item in trials:
        if isinstance(item, str):
            report.skipped.append(item)
        else:
            found.append(item)
    pairs = _pairs(found, recipe)
    study = store.create_study(_study(tool, source, name, recipe, found))
    if study.id is None:
        raise InvalidRecord("The store gave the study no id")
    owned = [(replace(trial, study_id=study.id), outcome) for trial, outcome in pairs]
    store.add_results(study.id, owned)
    mark = update(studies).where(studies.c.id == study.id).values(imported_from=tool)
    store.database.write(lambda connection: connection.execute(mark).rowcount)
    report.num_trials = len(owned)
    report.num_completed = sum(out.status is TrialStatus.COMPLETED for _, out in owned)
    return report


def _study(
    tool: str, source: Path | str, name: str, recipe: Recipe, trials: Sequence[ForeignTrial]
) -> StudyRecord:
    devices = max((_world_size(trial.knobs) for trial in trials), default=1)
    path = Path(source)
    is_file = path.is_file()
    return StudyRecord(
        name=name,
        searcher=tool,
        launcher=tool,
        model={
            "name": recipe.model_name,
            "num_parameters": recipe.num_parameters,
            "num_layers": recipe.num_layers,
        },
        cluster={
            "name": "imported",
            "device_name": recipe.device_name,
            "num_nodes": -(-devices // recipe.devices_per_node),
            "devices_per_node": min(devices, recipe.devices_per_node),
        },
        training={
            "sequence_length": recipe.sequence_length,
            "global_batch_size": recipe.global_batch_size,
        },
        resolved_config="",
        config_hash=hashlib.sha256(path.read_bytes()).hexdigest() if is_file else "",
        provenance={"import": {"tool": tool, "file": path.name, "at": datetime.now(UTC)}},
        status=StudyStatus.COMPLETED,
        finished_at=datetime.now(UTC),
    )


def _world_size(config: Mapping[str, Any]) -> int:
    return int(knobs.to_columns(config)["world_size"])


def _pairs(
    trials: Sequence[ForeignTrial], recipe: Recipe
) -> list[tuple[TrialRecord, TrialOutcome]]:
    repeats: Counter[str] = Counter()
    pairs = []
    for trial in trials:
        key = knobs.config_key(trial.knobs)
        record = TrialRecord(
            study_id=0,
            config_key=key,
            knobs=trial.knobs,
            repeat=repeats[key],
            source="import",
            started_at=trial.started_at,
            queued_at=trial.started_at,
            finished_at=trial.finished_at,
        )
        repeats[key] += 1
        pairs.append((record, _outcome(trial, recipe)))
    return pairs


def _outcome(trial: ForeignTrial, recipe: Recipe) -> TrialOutcome:
    if trial.status is not None and trial.value is None:
        return TrialOutcome(status=trial.status, failure=trial.failure)
    if trial.failure is not None:
        kind = trial.failure.kind
        status = TrialStatus.INFEASIBLE if kind == "oom" else TrialStatus.FAILED
        return TrialOutcome(status=status, failure=trial.failure)
    if trial.value is None or trial.value <= 0:
        return TrialOutcome(status=TrialStatus.FAILED, failure=crash("no result was recorded"))
    status = trial.status or TrialStatus.COMPLETED
    return TrialOutcome(status=status, measurement=_measurement(trial, recipe, trial.value))


def _measurement(trial: ForeignTrial, recipe: Recipe, value: float) -> MeasurementRow:
    world_size = _world_size(trial.knobs)
    sequences = trial.global_batch_size or recipe.global_batch_size
    length = trial.sequence_length or recipe.sequence_length
    if sequences is None or length is None:
        raise InvalidRecord(
            "Tokens cannot be counted without sequence length and global batch size",
            "pass --sequence-length and --global-batch-size",
        )
    tokens = sequences * length
    step_time_s = _step_time_s(value, trial.unit, tokens, sequences, world_size)
    dp = int(trial.knobs.get("dp", 1)) * int(trial.knobs.get("micro_batch_size", 1))
    flops = 6.0 * (recipe.num_parameters or 0) * tokens
    rate = trial.model_flops_per_s_per_device or flops / step_time_s / world_size
    return MeasurementRow(
        step_time_s=step_time_s,
        step_time_iqr_s=0.0,
        tokens_per_s=tokens / step_time_s,
        tokens_per_step=tokens,
        num_microbatches=max(sequences // dp, 1),
        num_parameters=recipe.num_parameters or 0,
        num_layers=recipe.num_layers or 0,
        model_flops_per_step=flops,
        hardware_flops_per_step=0.0,
        model_flops_per_s_per_device=rate,
        hardware_flops_per_s_per_device=trial.hardware_flops_per_s_per_device,
        mfu=None,
        peak_memory_bytes=trial.peak_memory_bytes or 0,
        final_loss=None,
        startup_s=0.0,
    )


def _step_time_s(value: float, unit: str, tokens: int, sequences: int, world_size: int) -> float:
    seconds = {
        "tokens_per_s": tokens / value,
        "tokens_per_s_per_device": tokens / (value * world_size),
        "samples_per_s": sequences / value,
        "step_time_s": value,
        "step_time_ms": value / 1e3,
    }
    if unit not in seconds:
        raise InvalidRecord(f"Unknown unit {unit!r}", f"the units are {', '.join(UNITS)}")
    return seconds[unit]
