"""What every benchmark shares: options, the host's description, fair timing, and the last line.

`python -m benchmarks.NAME [--quick] [--json]` prints for people what was measured on what; with
`--json` the last line of standard output is one JSON object of figures.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any


def parser(doc: str | None) -> argparse.ArgumentParser:
    """The options of every benchmark; a script may add its own before `parse_args`."""
    options = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--quick", action="store_true", help="small shapes and few repeats")
    options.add_argument("--json", action="store_true", help="end with one JSON object")
    return options


def parse_args(doc: str | None) -> argparse.Namespace:
    """Read the options of a benchmark that has none of its own; `doc` is its docstring."""
    return parser(doc).parse_args()


def describe_host() -> dict[str, Any]:
    """Processor, cores, memory, versions and load of this machine; figures mean little without."""
    packages = ("torch", "transformers", "numpy", "deephyper", "ray")
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "load_1min": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in packages},
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def finish(args: argparse.Namespace, figures: Mapping[str, Any]) -> None:
    """Print the host, the figures one a line, and under `--json` the object as the last line."""
    host = describe_host()
    print("host: " + ", ".join(f"{key} {value}" for key, value in host.items() if value))
    for key, value in figures.items():
        print(f"{key:32s} {f'{value:.4g}' if isinstance(value, float) else value}")
    if args.json:
        sys.stdout.flush()
        print(json.dumps({**figures, "host": host}))


@dataclass(frozen=True)
class Timing:
    """Seconds of the repeats of one subject, warm-up excluded."""

    seconds: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """Median of the repeats."""
        return statistics.median(self.seconds)

    @property
    def iqr_s(self) -> float:
        """Third minus first quartile; 0 for fewer than two repeats."""
        if len(self.seconds) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return high - low

    def __str__(self) -> str:
        return f"{self.median_s:.4f} s (IQR {self.iqr_s:.4f}, {len(self.seconds)} repeats)"


def interleave(
    subjects: Mapping[str, Callable[[], object]], repeats: int, warmup: int = 1
) -> dict[str, Timing]:
    """Time subjects in rounds, one call of each per round, so that drift of the machine hits all.

    Every other round goes in reverse order: none always runs on the heels of the same other.
    """
    seconds: dict[str, list[float]] = {name: [] for name in subjects}
    for turn in range(warmup + repeats):
        order = list(subjects) if turn % 2 == 0 else list(reversed(subjects))
        for name in order:
            start_s = time.perf_counter()
            subjects[name]()
            if turn >= warmup:
                seconds[name].append(time.perf_counter() - start_s)
    return {name: Timing(tuple(values)) for name, values in seconds.items()}


def paired_ratio(numerator: Timing, denominator: Timing) -> float:
    """Median over the rounds of two interleaved subjects' ratio of seconds."""
    pairs = zip(numerator.seconds, denominator.seconds, strict=True)
    return statistics.median(above / below for above, below in pairs)


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
