"""Which database and which study a command means."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.config import StudyConfig, default_store_url, find_study_file, load_study_config
from tuner.errors import ConfigError

if TYPE_CHECKING:
    from results_db.records import StudyRecord
    from results_db.store import Store

log = logging.getLogger(__name__)


def store_and_name(study: str | None, store: str | None) -> tuple[str, str | None]:
    """The database's URL and the study's name, if any was given.

    `study` is a name, a number or a study file. The database is the one given, else that of the
    study file (where none is named: of the one in this folder or above), else `TUNER_STORE` or
    the default.
    """
    config = _config_of(study)
    if study is not None and study.endswith(".toml"):
        study = config.name if config else None
    if store is not None:
        return store, study
    return config.store.url if config else default_store_url(), study


def _config_of(study: str | None) -> StudyConfig | None:
    if study is not None and study.endswith(".toml"):
        return load_study_config(Path(study))
    path = find_study_file(Path())
    if path is None:
        return None
    try:
        return load_study_config(path, is_found=True)
    except ConfigError as error:
        log.warning("%s is not used to find the database: %s", path, error)
        return None


def open_for_reading(study: str | None, store: str | None) -> tuple["Store", "StudyRecord"]:
    """An open database and the study that is meant: the named one or the newest.

    Raises:
        StorageProblem: the database cannot be read.
        ConfigError: it has no such study.
    """
    from tuner.study import find_study, open_store

    url, name = store_and_name(study, store)
    opened = open_store(url, read_only=True)
    return opened, find_study(opened, name)


def study_names(store: str | None) -> list[str]:
    """Names of the stored studies, newest first."""
    from tuner.study import open_store

    url, _ = store_and_name(None, store)
    with open_store(url, read_only=True) as opened:
        return [record.name for record in reversed(opened.list_studies())]
