"""Look at the machine before the first trial: one sentence a check, with a hint if it fails."""

import importlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from trainer.contract import CONTRACT_VERSION
from tuner import provenance
from tuner.paths import RUNS_FOLDER

OUR_PACKAGES = ("tuner", "trainer", "search_spaces", "results_db")
_MIN_DISK_BYTES = 2 * 2**30
_MIN_SHARED_MEMORY_BYTES = 256 * 2**20
_MIN_OPEN_FILES = 1024


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    is_ok: bool
    message: str
    hint: str = ""
    is_required: bool = True
    """Whether a study cannot run without it; the rest are warnings."""


def _check_python() -> Check:
    text = ".".join(map(str, sys.version_info[:3]))
    return Check("python", sys.version_info >= (3, 11), text, "tuner needs Python 3.11 or newer")


def _folder(package: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    return Path(spec.origin).parent if spec and spec.origin else None


def check_packages() -> Check:
    """Whether the four packages lie side by side and nobody else installed one of these names.

    `trainer` is also the name of other projects' packages, and pip overwrites silently.
    """
    folders = {package: _folder(package) for package in OUR_PACKAGES}
    parents = {folder.parent for folder in folders.values() if folder}
    owners = importlib.metadata.packages_distributions()
    foreign = sorted(
        {owner for name in OUR_PACKAGES for owner in owners.get(name, ())} - {"parallel-tuner"}
    )
    if None in folders.values() or len(parents) != 1:
        found = ", ".join(f"{name}: {folder}" for name, folder in folders.items())
        return Check("packages", False, f"our packages are not side by side ({found})", _REINSTALL)
    if foreign:
        names = ", ".join(foreign)
        return Check("packages", False, f"{names} also installs a package of ours", _REINSTALL)
    return Check("packages", True, f"four packages under {parents.pop()}")


_REINSTALL = "install parallel-tuner into an environment of its own"


def _run_python(code: str, timeout_s: float = 120.0) -> tuple[bool, str]:
    """Run a snippet in a fresh interpreter; its last line, or the last line of its error."""
    try:
        done = subprocess.run(  # noqa: S603 -- fixed snippets of ours
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            env=provenance.child_environment(),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return False, str(error)
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    return done.returncode == 0, lines[-1] if lines else f"exit code {done.returncode}"


_TORCH = """
import json, torch, torch.distributed as dist
from trainer.contract import CONTRACT_VERSION
print(json.dumps({
    "torch": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip,
    "gloo": dist.is_available() and dist.is_gloo_available(), "nccl": dist.is_nccl_available(),
    "contract": CONTRACT_VERSION,
}))
"""


def _check_torch() -> Check:
    is_ok, line = _run_python(_TORCH)
    if not is_ok:
        return Check("torch", False, f"torch cannot be imported: {line}", "see README, Install")
    facts = json.loads(line)
    if facts["contract"] != CONTRACT_VERSION:
        return Check("torch", False, "trainer and tuner are of different versions", _REINSTALL)
    kind = f"CUDA {facts['cuda']}" if facts["cuda"] else facts["hip"] or "CPU build"
    backends = [name for name in ("gloo", "nccl") if facts[name]]
    message = f"{facts['torch']} ({kind}), backends: {', '.join(backends) or 'none'}"
    return Check("torch", bool(backends), message, "this torch has no distributed backend")


def _importable(package: str) -> Callable[[], Check]:
    def check() -> Check:
        is_ok, line = _run_python(f"import {package}; print({package}.__version__)")
        return Check(package, is_ok, line, f"reinstall {package}")

    return check


def _check_resources() -> Check:
    memory = psutil.virtual_memory()
    cores = provenance.usable_cores()
    message = f"{cores} cores, {memory.available / 2**30:.1f} GiB of memory free"
    return Check(
        "resources", memory.available > 2**30, message, "trials need at least 1 GiB", cores > 1
    )


def _check_devices() -> Check:
    facts = provenance.gather()
    found = facts["gpus"] or [f"CPU only ({facts['cpu']})"]
    return Check("devices", True, "; ".join(found), is_required=False)


def _check_disk() -> Check:
    folder = next(path for path in (RUNS_FOLDER, Path()) if path.exists())
    free = shutil.disk_usage(folder).free
    is_writable = os.access(folder, os.W_OK)
    message = f"{free / 2**30:.1f} GiB free in {folder.resolve()}"
    if not is_writable:
        return Check("disk", False, f"{folder.resolve()} cannot be written", "change the folder")
    return Check("disk", free > _MIN_DISK_BYTES, message, "free some space", is_required=False)


def _check_shared_memory() -> Check:
    folder = Path("/dev/shm")  # noqa: S108 -- looked at, not written
    if not folder.exists():
        return Check("shared memory", True, "not used here", is_required=False)
    free = shutil.disk_usage(folder).free
    return Check(
        "shared memory",
        free > _MIN_SHARED_MEMORY_BYTES,
        f"{free / 2**20:.0f} MiB free in {folder}",
        "Ray and NCCL need it; in a container raise --shm-size",
        is_required=False,
    )


def _check_open_files() -> Check:
    try:
        import resource
    except ImportError:
        return Check("open files", True, "no limit here", is_required=False)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Check("open files", soft >= _MIN_OPEN_FILES, f"limit {soft}", "raise `ulimit -n`", False)


CHECKS: tuple[Callable[[], Check], ...] = (
    _check_python,
    check_packages,
    _check_torch,
    _importable("ray"),
    _importable("deephyper"),
    _check_resources,
    _check_devices,
    _check_disk,
    _check_shared_memory,
    _check_open_files,
)


def run_checks() -> list[Check]:
    """All checks, in order; a check that itself fails is a failed check, never an exception."""
    results = []
    for check in CHECKS:
        try:
            results.append(check())
        except Exception as error:
            results.append(Check(check.__name__.strip("_"), False, f"could not look: {error}"))
    return results


def run_cluster_checks(
    *,
    address: str | None = None,
    num_devices: int | None = None,
    num_nodes: int | None = None,
    device_kind: Literal["cpu", "cuda", "rocm"] = "cpu",
) -> list[Check]:
    """Look at a Ray cluster on the way that trials take, or at a local one of `num_devices`.

    Versions must be equal on all nodes, devices seen, collectives work across nodes; a node that is
    much slower than the others is named.
    """
    from tuner.launchers.checks import check_cluster

    try:
        found = check_cluster(
            address=address,
            num_devices=num_devices,
            num_nodes=num_nodes,
            device_kind=device_kind,
        )
    except Exception as error:
        hint = "is the address right, and does Ray run there?"
        return [Check("cluster", False, f"could not look: {error}", hint)]
    return [
        # trials do run on unequal nodes, at the pace of the slowest
        Check(f"cluster {item.name}", item.is_ok, item.message, item.hint,
              is_required=item.name != "stragglers")
        for item in found
    ]  # fmt: skip
