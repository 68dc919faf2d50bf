"""The section of a study file that puts a trainer of the user's in place of the built-in kernel."""

import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from tuner.config.section import Section


def _as_command(value: Any) -> Any:
    """Text is taken apart as a shell would do it; a list is taken as it is."""
    if isinstance(value, str):
        try:
            return tuple(shlex.split(value))
        except ValueError as error:
            raise ValueError(f"a command whose quotes match ({error})") from error
    return tuple(value) if isinstance(value, list) else value


def anchored_command(command: Any, folder: Path) -> Any:
    """The command of a study file with `{study_dir}` filled in: the file's own folder."""
    try:
        parts = shlex.split(command) if isinstance(command, str) else command
    except ValueError:
        return command  # the section says what is wrong
    if not isinstance(parts, list):
        return command
    name = str(folder.resolve()).replace("{", "{{").replace("}", "}}")
    return [p.replace("{study_dir}", name) if isinstance(p, str) else p for p in parts]


class TrainerSection(Section):
    """A trainer of your own, run once per trial in place of the built-in kernel."""

    adapter: str = Field(min_length=1)
    """what reads its log: megatron-lm, deepspeed, hf-trainer, report, ... or a plug-in"""
    command: Annotated[
        tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_as_command)
    ] = Field(min_length=1)
    """program and arguments with placeholders such as {tp}, {args} and {torchrun}; no shell"""
    exporter: str | None = None
    """what gives {args} and the files of {export_dir}; left out: the one named like the adapter"""
    processes: Literal["one", "ranks"] = "one"
    """one: the command starts its ranks itself; ranks: it is started once per rank"""
    environment: dict[str, str] = Field(default_factory=dict)
    """further variables of the command"""

    @property
    def needs_export(self) -> bool:
        """Whether the command holds what an exporter gives."""
        return any("{args}" in part or "{export_dir}" in part for part in self.command)

    def launcher_options(self) -> dict[str, Any]:
        """The options of the launcher `command` that say the same."""
        return {**self.model_dump(), "exporter": self.exporter or self.adapter}
