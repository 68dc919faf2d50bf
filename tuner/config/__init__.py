"""The study file: what it may hold, how it is read, and how its resolved form is written."""

from tuner.config.loading import (
    STUDY_FILES,
    find_study_file,
    load_study_config,
    parse_override,
    parse_study_text,
    parse_value,
    study_config_from,
)
from tuner.config.problems import nearest
from tuner.config.sections import (
    STORE_VARIABLE,
    ClusterSection,
    Direction,
    LauncherSection,
    LinkSection,
    MeasureSection,
    ModelSection,
    SearchSection,
    SpaceSection,
    StoreSection,
    StudyConfig,
    default_store_url,
)
from tuner.config.toml_text import to_toml_text, toml_value, without_password, without_secrets
from tuner.config.trainer import TrainerSection

__all__ = [
    "STORE_VARIABLE",
    "STUDY_FILES",
    "ClusterSection",
    "Direction",
    "LauncherSection",
    "LinkSection",
    "MeasureSection",
    "ModelSection",
    "SearchSection",
    "SpaceSection",
    "StoreSection",
    "StudyConfig",
    "TrainerSection",
    "default_store_url",
    "find_study_file",
    "load_study_config",
    "nearest",
    "parse_override",
    "parse_study_text",
    "parse_value",
    "study_config_from",
    "to_toml_text",
    "toml_value",
    "without_password",
    "without_secrets",
]
