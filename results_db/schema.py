"""The tables. Units are in the names: `_s` seconds, `_bytes` bytes, `_flops` operations.

Laws that hold in every column: times are UTC, floats are finite (a loss that is not finite is NULL
with its kind in `loss_nonfinite`), integers have 64 bits, booleans are real booleans.

`study_configs` is the one denormalised table: a row per configuration of a study with its median
over all completed trials and the interval of that median, kept in the transaction that finishes a
trial, so that a leaderboard is a walk over an index and not an aggregation of all trials.
"""

from sqlalchemy import Column, Table, Text

from results_db.tables.base import metadata
from results_db.tables.details import (
    breakdowns,
    collectives,
    failure_reports,
    rank_coordinates,
    rank_stages,
    ranks,
    steps,
    timeline,
)
from results_db.tables.studies import (
    clusters,
    models,
    predictions,
    provenance,
    studies,
    study_configs,
    study_tags,
    untried_points,
)
from results_db.tables.trials import (
    measurements,
    notes,
    parallel_configs,
    software,
    software_versions,
    trial_tags,
    trials,
)

SCHEMA_VERSION = "0002"
"""Newest migration; what `tuner db info` prints and `alembic_version` holds."""

schema_versions = Table(
    "alembic_version", metadata, Column("version_num", Text, primary_key=True)
)  # the name that Alembic looks for

__all__ = [
    "SCHEMA_VERSION",
    "breakdowns",
    "clusters",
    "collectives",
    "failure_reports",
    "measurements",
    "metadata",
    "models",
    "notes",
    "parallel_configs",
    "predictions",
    "provenance",
    "rank_coordinates",
    "rank_stages",
    "ranks",
    "schema_versions",
    "software",
    "software_versions",
    "steps",
    "studies",
    "study_configs",
    "study_tags",
    "timeline",
    "trial_tags",
    "trials",
    "untried_points",
]
