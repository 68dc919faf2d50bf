"""What a study ran on: versions, commit, host, devices and the settings that change speed."""

import os
import platform
import re
import socket
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

PACKAGES = ("torch", "ray", "deephyper", "pandas", "sqlalchemy", "numpy", "pydantic")
# Settings that change speed or placement. A name that looks like a secret is never recorded.
_SETTINGS = re.compile(
    r"^(OMP|MKL|GOMP|KMP|NCCL|RCCL|GLOO|CUDA|HIP|ROCR|TORCH|RAY|SLURM|MALLOC)_|^LD_PRELOAD$"
)
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|KEY|CREDENTIAL", re.IGNORECASE)


def _command_output(*command: str, folder: Path | None = None) -> str | None:
    """Standard output of a short command, or none where it is missing, slow or fails."""
    try:
        done = subprocess.run(  # noqa: S603 -- fixed commands of ours, no shell
            command, cwd=folder, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def package_versions() -> dict[str, str]:
    """Versions of Python and of the libraries that can change a measurement."""
    found = {"python": platform.python_version()}
    for name in (*PACKAGES, "parallel-tuner"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def git_state() -> dict[str, Any] | None:
    """Commit of the tuner's own checkout and whether it was changed; none when installed."""
    folder = Path(__file__).resolve().parent.parent
    if not (folder / ".git").exists():
        return None
    commit = _command_output("git", "rev-parse", "HEAD", folder=folder)
    changes = _command_output("git", "status", "--porcelain", folder=folder)
    return {"commit": commit, "is_dirty": bool(changes)} if commit else None


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return platform.processor()
    found = re.search(r"model name\s*:\s*(.+)", text)
    return found[1].strip() if found else platform.processor()


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _topology() -> dict[str, Any]:
    """Cores, sockets and NUMA nodes as the kernel lists them."""
    nodes = Path("/sys/devices/system/node")
    return {
        "logical_cores": psutil.cpu_count(),
        "physical_cores": psutil.cpu_count(logical=False),
        "usable_cores": usable_cores(),
        "numa_nodes": len(list(nodes.glob("node[0-9]*"))) if nodes.is_dir() else None,
    }


def gather() -> dict[str, Any]:
    """Everything needed to repeat a study or to doubt it; JSON values only."""
    gpus = _command_output(
        "nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"
    )
    return {
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "versions": package_versions(),
        "git": git_state(),
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "memory_bytes": psutil.virtual_memory().total,
        "topology": _topology(),
        "gpus": gpus.splitlines() if gpus else [],
        "environment": {
            name: value
            for name, value in sorted(os.environ.items())
            if _SETTINGS.search(name) and not _SECRET.search(name)
        },
    }


def child_environment() -> dict[str, str]:
    """The environment of a Python process of ours: no user's module can take a name of ours."""
    return {**os.environ, "PYTHONSAFEPATH": "1"}
