"""What a program may say of a study, and the study file that it comes to."""

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack, cast

from search_spaces.parallel_config import ParallelConfig
from search_spaces.training_spec import TrainingSpec
from tuner.config import Direction, StudyConfig, load_study_config, study_config_from
from tuner.config.problems import Origins
from tuner.errors import ConfigError


class RunOptions(TypedDict, total=False):
    """Everything of a study but its model and parts, in a study file's words (docs/config.md)."""

    name: str
    """Name of the study; left out: made from the model and the time."""
    devices: int
    """Devices to use in all; left out: those of the cluster."""
    cluster: str | Path | Mapping[str, Any]
    """A preset, a cluster file (`.toml`), or a description; left out: this machine."""
    training: Mapping[str, Any] | TrainingSpec
    """The recipe: `sequence_length`, `global_batch_size`, `dtype`, ..."""
    space: Mapping[str, Any]
    """Values that knobs may take, e.g. `{"tp": [1, 2], "zero_stage": 0}`; others are free."""
    baseline: Mapping[str, Any] | ParallelConfig
    """Knobs in use today: run first, and compared with."""
    searcher_options: Mapping[str, Any]
    """Options of the searcher."""
    max_trials: int
    """Configurations to search; repeats of the leaders come on top."""
    max_time_s: float
    """Wall clock of the study, seconds."""
    max_device_s: float
    """Device-seconds of all trials."""
    parallel_trials: int
    """Trials under way at one time."""
    seed: int
    """Of the search and of the trials' data."""
    objective_direction: Direction
    """Whether more of the objective is better (`maximize`), or less (`minimize`)."""
    measure: Mapping[str, Any]
    """How a trial is measured: `warmup_steps`, `measured_steps`, `deadline_s`, ..."""
    launcher_options: Mapping[str, Any]
    """Options of the launcher."""
    trainer: Mapping[str, Any]
    """Your own trainer as the trial: `adapter`, `command`, ... (docs/adapters.md)."""
    store: str | Path
    """SQLAlchemy URL or path of a SQLite file; left out: `TUNER_STORE` or the default."""
    more: Mapping[str, Any]
    """Any other key of a study file by its dotted name, e.g. `{"search.confirm_top": 0}`."""


class StudyOptions(RunOptions, total=False):
    """Everything of a study but its model: `RunOptions` and the names of its parts."""

    searcher: str
    """What proposes configurations."""
    launcher: str
    """What runs trials: `ray`, `local`, `simulated`, `command` or a plug-in."""


_KEYS: Mapping[str, str] = {
    "name": "name",
    "devices": "cluster.devices",
    "training": "training",
    "space": "space",
    "baseline": "search.baseline",
    "searcher": "search.searcher",
    "searcher_options": "search.options",
    "max_trials": "search.max_trials",
    "max_time_s": "search.max_time_s",
    "max_device_s": "search.max_device_s",
    "parallel_trials": "search.parallel_trials",
    "seed": "search.seed",
    "objective_direction": "search.objective_direction",
    "measure": "measure",
    "launcher": "launcher.name",
    "launcher_options": "launcher.options",
    "trainer": "trainer",
    "store": "store.url",
}


def describe(
    model: str | Path | StudyConfig | None = None,
    *,
    study_file: str | Path | None = None,
    **options: Unpack[StudyOptions],
) -> StudyConfig:
    """Describe a study without running anything.

    Args:
        model: a preset's name, the path of a Hugging Face `config.json`, or a study described
            before.
        study_file: a TOML study file that `model` and `options` change.
        **options: as in `StudyOptions` and `RunOptions`.

    Raises:
        ConfigError: an option is unknown, or a value is wrong; one sentence says which.
    """
    document = _base(model, study_file)
    if model is not None and not isinstance(model, StudyConfig):
        _put(document, "model.source", str(model))
    given = cast("Mapping[str, Any]", options)
    _refuse_unknown(given)
    if (cluster := given.get("cluster")) is not None:
        document["cluster"] = _cluster(cluster)
    for option, key in _KEYS.items():
        if (value := given.get(option)) is not None:
            _put(document, key, _plain(value))
    for key, value in given.get("more", {}).items():
        _put(document, key, _plain(value))
    return study_config_from(document, Origins("the options"))


def _base(model: str | Path | StudyConfig | None, study_file: str | Path | None) -> dict[str, Any]:
    if isinstance(model, StudyConfig) and study_file is not None:
        raise ConfigError("a described study and a study file exclude each other")
    if isinstance(model, StudyConfig):
        base = model
    elif study_file is not None:
        base = load_study_config(Path(study_file), model=None if model is None else str(model))
    else:
        return {}
    import tomllib

    return tomllib.loads(base.to_toml()) | {"store": {"url": base.store.url}}


def _refuse_unknown(options: Mapping[str, Any]) -> None:
    known = sorted(StudyOptions.__optional_keys__)
    for option in options:
        if option not in known:
            close = difflib.get_close_matches(option, known, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise ConfigError(
                f"a study has no option {option!r}", hint=f"{hint}known: {', '.join(known)}"
            )


def _cluster(cluster: Any) -> Any:
    if isinstance(cluster, Mapping):
        return dict(cluster)
    text = str(cluster)
    return {"path" if text.endswith(".toml") else "preset": text}


def _plain(value: Any) -> Any:
    """Values as TOML would give them."""
    if isinstance(value, ParallelConfig):
        return value
    if isinstance(value, TrainingSpec):
        return value.model_dump(exclude_unset=True)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value


def _put(document: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key; a table is laid over the one that is there."""
    *sections, last = key.split(".")
    table = document
    for section in sections:
        table = table.setdefault(section, {})
    if isinstance(value, dict) and isinstance(table.get(last), dict):
        table[last] = {**table[last], **value}
    else:
        table[last] = value
