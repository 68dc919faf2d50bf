"""Optuna: a study of any of its storages (`sqlite:///x.db`, a journal file's URL, PostgreSQL).

Parameters are taken as knobs when they have our names or one of the usual other ones; a study with
a parameter that is neither is refused, because two different points would look the same.
"""

import warnings
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from results_db import knobs
from results_db.errors import DatabaseUnreadable, InvalidRecord, NotFound
from results_db.importers.base import ForeignTrial, Recipe, crash
from results_db.records import TrialStatus

SYNONYMS = {
    "data_parallel": "dp", "data_parallel_size": "dp", "dp_degree": "dp",
    "tensor_parallel": "tp", "tensor_parallel_size": "tp", "tp_degree": "tp", "mp_degree": "tp",
    "tensor_model_parallel_size": "tp", "mp": "tp",
    "pipeline_parallel": "pp", "pipeline_parallel_size": "pp", "pp_degree": "pp",
    "pipeline_model_parallel_size": "pp",
    "context_parallel_size": "cp", "expert_parallel_size": "ep",
    "mbs": "micro_batch_size", "micro_batch": "micro_batch_size",
    "train_micro_batch_size_per_gpu": "micro_batch_size",
    "zero": "zero_stage", "vpp": "virtual_stages", "vpp_degree": "virtual_stages",
    "schedule": "pipeline_schedule", "precision": "dtype",
}  # fmt: skip


def read(source: str, recipe: Recipe, study: str | None = None) -> Iterator[ForeignTrial | str]:
    """Trials of one study of an Optuna storage.

    Args:
        source: the storage's URL.
        recipe: its `unit` is that of the objective (tokens/s when absent).
        study: the study's name; may be left out when the storage holds one.

    Raises:
        NotFound: no such study, or several and none was named.
        DatabaseUnreadable: the storage cannot be opened, or Optuna is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise DatabaseUnreadable(
            "Optuna storages need the package optuna", 'pip install "parallel-tuner[optuna]"'
        ) from error
    names: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna announces experimental parts of its storages
        try:
            names = optuna.get_all_study_names(storage=source)
            if study is None and len(names) != 1:
                raise NotFound("Name the Optuna study", f"there are {', '.join(names) or 'none'}")
            loaded = optuna.load_study(study_name=study or names[0], storage=source)
            trials = loaded.get_trials(deepcopy=False)
        except KeyError as error:
            raise NotFound(f"No Optuna study {study!r}", f"there are {', '.join(names)}") from error
        except NotFound:
            raise
        except Exception as error:  # its storages raise what their drivers raise
            raise DatabaseUnreadable(f"The Optuna storage cannot be read: {error}") from error
    for trial in trials:
        yield _trial(trial, recipe)


def _trial(trial: Any, recipe: Recipe) -> ForeignTrial | str:
    state = trial.state.name
    if state in ("RUNNING", "WAITING"):
        return f"trial {trial.number}: still {state.lower()}"
    value = trial.value if state == "COMPLETE" else None
    status = TrialStatus.PRUNED if state == "PRUNED" else None
    reason = str(trial.system_attrs.get("fail_reason", "the objective failed"))
    return ForeignTrial(
        knobs=_knobs(trial.params),
        value=value,
        unit=recipe.unit or "tokens_per_s",
        failure=crash(reason) if state == "FAIL" else None,
        status=status,
        started_at=_zoned(trial.datetime_start),
        finished_at=_zoned(trial.datetime_complete),
    )


def _zoned(moment: datetime | None) -> datetime | None:
    # Optuna stores the local time of its machine without a zone; ours is the best guess
    return moment.astimezone() if moment is not None else None


def _knobs(params: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    kinds = {knob.name: knob.kind for knob in knobs.KNOBS}
    for name, value in params.items():
        knob = SYNONYMS.get(name, name)
        if knob not in kinds:
            raise InvalidRecord(
                f"Optuna's parameter {name!r} is no knob", f"the knobs are {', '.join(kinds)}"
            )
        found[knob] = kinds[knob](value) if kinds[knob] in (int, bool) else value
    return found
