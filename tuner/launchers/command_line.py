"""The command of a trial: placeholders filled in, files of an export written. No shell sees it."""

import json
import re
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from search_spaces.cluster_spec import ClusterSpec
from trainer.contract import JOB_FILE, FailureKind, FailureReport, Phase, TrialJob
from tuner.errors import LauncherError, NotExpressible
from tuner.launchers.network import free_port
from tuner.ports import Export, Exporter, ExportRequest

EXPORT_FOLDER = "export"
# Exporters put a trainer's arguments, if it takes any, into a file of such a name.
_ARGUMENT_FILES = ("arguments.txt", "overrides.txt")
_PLACEHOLDER = re.compile(r"\{([a-z_0-9]*)\}")
# Placeholders that stand for any number of arguments, so that each must be one by itself.
ARGUMENTS, TORCHRUN = "args", "torchrun"
_LISTS = (ARGUMENTS, TORCHRUN)
_HOST = "127.0.0.1"
# The last lines of a log may come all at once, so that their times are not known. A trial ends as
# soon as it has what it needs, so spare steps cost next to nothing.
_SPARE_STEPS = 2


def placeholders(job: TrialJob, folder: Path) -> dict[str, str]:
    """What may stand in braces in a command."""
    knobs = {name: _text(value) for name, value in job.config.model_dump(mode="json").items()}
    return {
        **knobs,
        "folder": str(folder.resolve()),
        "export_dir": str((folder / EXPORT_FOLDER).resolve()),
        "job": str((folder / JOB_FILE).resolve()),
        "num_devices": str(job.config.world_size),
        "num_microbatches": str(job.num_microbatches),
        "num_steps": str(num_steps(job) + _SPARE_STEPS),
        "seed": str(job.seed),
        "sequence_length": str(job.training.sequence_length),
        "global_batch_size": str(job.training.global_batch_size),
        "model": job.model.name,
        "python": sys.executable,
        "port": str(free_port(_HOST)),
    }


def num_steps(job: TrialJob) -> int:
    """Optimizer steps that a trial needs, warm-up included."""
    return job.measure.warmup_steps + job.measure.measured_steps


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def as_arguments(command: str | Sequence[str]) -> list[str]:
    """A command as a list; text is taken apart as a shell would, and nothing in it is expanded.

    Raises:
        LauncherError: There is no command, or its quotes do not match.
    """
    try:
        parts = shlex.split(command) if isinstance(command, str) else [str(p) for p in command]
    except ValueError as error:
        raise LauncherError(f"the command {command!r} cannot be taken apart: {error}") from error
    if not parts:
        raise LauncherError(
            "the launcher `command` needs a list of arguments",
            'in the study file: [launcher] options.command = ["./train.sh", "--tp", "{tp}"]',
        )
    return parts


def uses(command: Sequence[str], *names: str) -> bool:
    """Whether any of these placeholders is in the command."""
    found = {name for part in command for name in _PLACEHOLDER.findall(part.replace("{{", ""))}
    return bool(found & set(names))


def fill(
    command: Sequence[str],
    values: Mapping[str, str],
    lists: Mapping[str, Sequence[str]] | None = None,
) -> tuple[str, ...]:
    """The command with its placeholders filled in; `{{` and `}}` are literal braces.

    Args:
        command: Program and arguments.
        values: Texts by placeholder; one is never taken apart, whatever is in it.
        lists: Lists of arguments by placeholder; such a one is an argument by itself.

    Raises:
        LauncherError: A placeholder is unknown; the legal ones are listed.
    """
    lists = lists or {}

    def value_of(match: re.Match[str]) -> str:
        name = match.group(1)
        if name in _LISTS:
            raise LauncherError(
                f"{{{name}}} stands for several arguments, so it must be one by itself",
                f'write ["program", "{{{name}}}"] and not "program {{{name}}}"',
            )
        if name not in values:
            known = ", ".join(sorted({*values, *lists}))
            raise LauncherError(
                f"the command has an unknown placeholder {{{name}}}", f"known: {known}"
            )
        return values[name]

    filled: list[str] = []
    for part in command:
        if part.startswith("{") and part[1:-1] in lists and part.endswith("}"):
            filled += lists[part[1:-1]]
            continue
        text = _PLACEHOLDER.sub(value_of, part.replace("{{", "\0").replace("}}", "\1"))
        filled.append(text.replace("\0", "{").replace("\1", "}"))
    return tuple(filled)


def torchrun(job: TrialJob) -> list[str]:
    """The start of a command that runs a script on all ranks of a trial, on this machine."""
    return [
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        "--nproc-per-node", str(job.config.world_size),
    ]  # fmt: skip


def write_export(export: Export, folder: Path) -> None:
    """Put the files of an export into the trial's folder.

    Raises:
        LauncherError: A file's name leads out of the folder.
    """
    target = (folder / EXPORT_FOLDER).resolve()
    target.mkdir(parents=True, exist_ok=True)
    for name, text in export.files.items():
        path = (target / name).resolve()
        if not path.is_relative_to(target):
            raise LauncherError(f"the export's file {name!r} lies outside of the trial's folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def export_of(exporter: Exporter, job: TrialJob, cluster: ClusterSpec) -> Export | FailureReport:
    """A trial's configuration in the words of a trainer, or why it has none for it."""
    request = ExportRequest(
        model=job.model, training=job.training, cluster=cluster, config=job.config,
        origin=f"trial {job.trial_id}",
    )  # fmt: skip
    try:
        return exporter.export(request)
    except NotExpressible as error:
        return FailureReport(
            failure=FailureKind.ILLEGAL, phase=Phase.LAUNCH, message=error.message,
            time_s=time.time(),
        )  # fmt: skip


def arguments_of(export: Export) -> list[str]:
    """What `{args}` stands for: the export's file of arguments, taken apart.

    Raises:
        LauncherError: It has none.
    """
    files = [text for name, text in export.files.items() if name.endswith(_ARGUMENT_FILES)]
    if not files:
        raise LauncherError(
            f"the exporter gives no arguments for {{args}}, but {', '.join(export.files)}",
            "name a file of it instead, such as {export_dir}/" + next(iter(export.files), ""),
        )
    return shlex.split(files[0], comments=True)


def rendezvous(job: TrialJob, rank: int, port: int) -> dict[str, str]:
    """Torch's variables of one rank on this machine."""
    size = str(job.config.world_size)
    return {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size,
        "GROUP_RANK": "0", "MASTER_ADDR": _HOST, "MASTER_PORT": str(port),
    }  # fmt: skip


# What another launcher around the tuner may have set, and what would misplace a trial's ranks.
FOREIGN_VARIABLES = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR",
    "MASTER_PORT", "TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK", "PMI_SIZE",
)  # fmt: skip
