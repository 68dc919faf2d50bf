"""Writes the reference pages from the commands and the study file's models.

`python -m tuner.cli.reference` rewrites docs/cli.md, docs/config.md and the tables of
docs/export.md; `--check` says whether they are in step and changes nothing.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel

from tuner.cli.export_page import export_page
from tuner.cli.group import tuner
from tuner.config import StudyConfig, toml_value
from tuner.config.problems import sections_of
from tuner.errors import UsageError

_WIDTH = 100
_WRITTEN_BY = "<!-- written by `python -m tuner.cli.reference`; do not edit -->"
_EXIT_CODES = (
    (0, "ok"),
    (1, "a fault of the tuner itself; `-v` shows the traceback"),
    (2, "wrong usage, study file, model or cluster description"),
    (3, "nothing feasible: no legal configuration, or no trial gave a number"),
    (4, "the machine lacks something: devices, packages, a cluster that cannot be reached"),
    (5, "the results database cannot be read or written"),
    (6, "the trainer that an export is for has no words for the configuration"),
    (7, "`tuner compare`: the best throughput fell by more than the noise"),
    (130, "interrupted; `tuner resume` goes on"),
)
_CLI_HEAD = """\
# Command line

Results go to standard output, as a table or with `--json` or `--csv` for machines. Everything else
(progress, messages, errors) goes to standard error; an error is one line `error: ...` and, where
something helps, one line `hint: ...`. On a terminal a running study redraws a few lines in place;
elsewhere, with `--plain` or with `NO_COLOR` set, it prints a line for every trial that ends.

`tuner run`, `tuner plan` and `tuner why` take a study file ([its keys](config.md)). Where neither a
file nor `--model` is given, `study.toml` or `tuner.toml` of the current folder is used, or of the
nearest folder above it, up to the root of a repository or the home folder. The results database is
the one of `--store`, else that of the study file, else that of the environment variable
`TUNER_STORE`, else `tuner_runs/results.db` of this folder, or beside a study file found above. See
also the [habits](habits.md) of the command line.

Shell completion: `tuner completion bash >> ~/.bashrc` (also `zsh`, `fish`).
"""
_CONFIG_HEAD = """\
# Study file

A study file is TOML. Every key is optional, except that a model must be named, here or with
`--model`. Later ones win: the defaults below, the file, `--set section.key=value`, options such as
`--max-trials`. `tuner init` writes a file with all keys in it, and `tuner run STUDY.toml --dry-run`
prints what they come to. Relative paths in a study file are relative to the file. An unknown key or
a wrong value is an error that names the legal ones.

The value of `--set` is read as TOML; a bare word is text, so `--set space.recompute=[none,full]`
works. Environment variables change nothing but the default of the database (`TUNER_STORE`). A
`sequence_length` that is not given is 64 on a CPU, and never more than the model has positions.
"""


def cli_page() -> str:
    """docs/cli.md: the exit codes and the help of every command."""
    lines = [_WRITTEN_BY, "", _CLI_HEAD, "## Exit codes", "", "| code | meaning |", "|---|---|"]
    lines += [f"| {code} | {meaning} |" for code, meaning in _EXIT_CODES]
    root = click.Context(
        tuner,
        info_name="tuner",
        max_content_width=_WIDTH,
        terminal_width=_WIDTH,
        help_option_names=["-h", "--help"],
    )
    for name in tuner.list_commands(root):
        command = tuner.get_command(root, name)
        assert command is not None  # noqa: S101 -- the name came from the list
        for context in _contexts(command, root, name):
            level = "##" if context.parent is root else "###"
            lines += ["", f"{level} {context.command_path}", "", "```text"]
            lines += [line.rstrip() for line in context.get_help().splitlines()]
            lines.append("```")
    return "\n".join(lines) + "\n"


def _contexts(command: click.Command, parent: click.Context, name: str) -> Iterator[click.Context]:
    """A command and those below it."""
    context = click.Context(command, parent=parent, info_name=name)
    yield context
    if isinstance(command, click.Group):
        for child_name in command.list_commands(context):
            child = command.get_command(context, child_name)
            if child is not None:
                yield from _contexts(child, context, child_name)


def config_page() -> str:
    """docs/config.md: every section and key of a study file."""
    schema = StudyConfig.model_json_schema()
    lines = [_WRITTEN_BY, "", _CONFIG_HEAD, "## Top of the file", *_table_head()]
    lines.append(_row("name", schema["properties"]["name"], schema))
    for name, section in sections_of(StudyConfig).items():
        lines += ["", *_section_lines(f"[{name}]", section)]
        for key, nested in sections_of(section).items():
            if (name, key) in _NESTED:
                lines += ["", *_section_lines(f"[{name}.{key}]", nested)]
    return "\n".join(lines) + "\n"


_NESTED = {("cluster", "intra_node")}


def _section_lines(title: str, section: type[BaseModel]) -> list[str]:
    schema = section.model_json_schema()
    about = " ".join((section.__doc__ or "").split("\n\n")[0].split())
    rows = [_row(key, facts, schema) for key, facts in schema["properties"].items()]
    return [f"## {title}", "", about, *_table_head(), *rows]


def _table_head() -> list[str]:
    return ["", "| key | value | default | meaning |", "|---|---|---|---|"]


def _row(key: str, facts: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    default = facts.get("default")
    shown = f"`{toml_value(default)}`" if default not in (None, {}) else ""
    if key == "source":
        shown = "required"
    meaning = facts.get("description", "")
    cells = (f"`{key}`", _legal(facts, schema.get("$defs", {})), shown, meaning)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _legal(facts: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """The legal values of a JSON schema in words."""
    if "$ref" in facts:
        name = facts["$ref"].rpartition("/")[2]
        return "knobs and values" if name == "ParallelConfig" else "`alpha_us` and `gb_per_s`"
    if "anyOf" in facts:
        kinds = [_legal(item, definitions) for item in facts["anyOf"] if item.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in facts:
        return ", ".join(f"`{value}`" for value in facts["enum"])
    if facts.get("type") == "array":
        inner = _legal(facts["items"], definitions)
        return f"list of {inner}" if "a list of" in inner else f"{inner}; or a list of these"
    if facts.get("type") == "object":
        return "table"
    return _number_or_text(facts)


def _number_or_text(facts: Mapping[str, Any]) -> str:
    words = {"integer": "integer", "number": "number", "boolean": "`true` or `false`"}
    kind = words.get(facts.get("type", ""), "text")
    bounds = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<="}
    limits = [f"{sign} {facts[name]:g}" for name, sign in bounds.items() if name in facts]
    return f"{kind} {' and '.join(limits)}".strip()


PAGES = {"cli.md": cli_page, "config.md": config_page, "export.md": export_page}


def main(arguments: list[str] | None = None) -> int:
    """Write the pages, or with `--check` compare them.

    Returns:
        0, or 1 where a page is out of step.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    folder = Path("docs")
    if not folder.is_dir():
        raise UsageError("there is no folder docs here", "run this in the repository's root")
    code = 0
    for name, page in PAGES.items():
        path = folder / name
        if "--check" not in arguments:
            path.write_text(page(), encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != page():
            print(f"{path} is out of step: run python -m tuner.cli.reference")
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
