"""Numbers as people read them, for the command line; the pages use the same ones."""

from tuner.formats import (
    UNKNOWN,
    count,
    duration,
    flops,
    memory,
    moment,
    parameters,
    percent,
    plural,
    ratio,
    step_time,
    throughput,
)

__all__ = [
    "UNKNOWN",
    "count",
    "duration",
    "flops",
    "memory",
    "moment",
    "parameters",
    "percent",
    "plural",
    "ratio",
    "step_time",
    "throughput",
]
