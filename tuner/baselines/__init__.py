"""Baselines: the configuration in use today, read from the files of the trainer that runs it."""

from tuner.baselines.base import Baseline
from tuner.baselines.reading import read_baseline

__all__ = ["Baseline", "read_baseline"]
