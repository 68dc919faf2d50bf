"""The pages: links and anchors lead somewhere, commands parse, study files and names are real."""

import re
import runpy
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
import yaml
from markdown.extensions.toc import slugify

import tuner
from tuner.cli import main
from tuner.cli.group import tuner as cli
from tuner.config import parse_study_text
from tuner.config.sections import StudyConfig

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "examples").rglob("*.md")])
_FENCE = re.compile(r"^(?P<indent> *)```(?P<kind>\w*)[^\n]*\n(?P<text>.*?)^ *```$", re.M | re.S)
_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_SHELLS = ("console", "sh", "bash", "shell")


@dataclass(frozen=True)
class Block:
    page: Path
    kind: str
    text: str

    def __str__(self) -> str:
        return (
            f"{self.page.relative_to(ROOT)}:{self.text.splitlines()[0][:40] if self.text else ''}"
        )


def blocks(*kinds: str) -> Iterator[Block]:
    for page in PAGES:
        for match in _FENCE.finditer(page.read_text(encoding="utf-8")):
            if match["kind"] in kinds:
                yield Block(page, match["kind"], match["text"])


def prose(page: Path) -> str:
    """A page without its code."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(page: Path) -> set[str]:
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    found: list[str] = []
    for line in re.findall(r"^#+ +(.*)$", text, re.M):
        plain = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", line)
        found.append(slugify(plain, "-"))
    return {*found, *re.findall(r'<a (?:id|name)="([^"]+)"', text)}


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for match in _LINK.finditer(prose(page)):
        target, _, anchor = match["target"].partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        place = (page.parent / target).resolve() if target else page
        assert place.exists(), f"{name(page)} links to {target}, which is not there"
        if anchor and place.suffix == ".md":
            assert anchor in anchors(place), f"{name(page)}: no heading #{anchor} in {name(place)}"


def test_every_page_has_one_title_and_is_in_the_site() -> None:
    for page in DOCS.rglob("*.md"):
        text = _FENCE.sub("", page.read_text(encoding="utf-8"))
        assert len(re.findall(r"^# ", text, re.M)) == 1, name(page)
    site = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader=_Loader)
    listed = set(_pages(site["nav"])) - {"decisions"}
    assert {page for page in listed if not (DOCS / page).exists()} == set()


class _Loader(yaml.SafeLoader):
    """Reads mkdocs.yml, whose `!ENV` only mkdocs knows."""


_Loader.add_constructor("!ENV", lambda loader, node: "")


def _pages(nav: object) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    items = list(nav.values()) if isinstance(nav, dict) else list(nav)  # type: ignore[call-overload]
    return [page for item in items for page in _pages(item)]


def test_the_pictures_are_what_the_code_draws() -> None:
    drawn = runpy.run_path(str(DOCS / "pictures.py"))["main"]
    assert drawn(["--check"]) == 0


# commands


def commands(text: str) -> Iterator[list[str]]:
    """The `tuner` commands of a shell block, as argument lists."""
    joined = re.sub(r"\\\n\s*", " ", text)
    for line in joined.splitlines():
        stripped = line.strip().removeprefix("$ ")
        if not re.search(r"(^|[ &|;])tuner ", stripped) or stripped.startswith("#"):
            continue
        lexer = shlex.shlex(stripped, posix=True, punctuation_chars="|&;<>()")
        lexer.whitespace_split = True
        yield from _split(list(lexer))


def _split(words: list[str]) -> Iterator[list[str]]:
    command: list[str] = []
    for word in [*words, ";"]:
        if set(word) <= set("|&;()"):
            while command and "=" in command[0] and not command[0].startswith("-"):
                command.pop(0)
            if command and command[0] == "tuner":
                yield _without_redirects(command[1:])
            command = []
        else:
            command.append(word)


def _without_redirects(words: list[str]) -> list[str]:
    for place, word in enumerate(words):
        if set(word) <= set("<>"):
            return [item for item in words[:place] if not item.isdigit() or place > 1]
    return words


COMMANDS = [
    (name(block.page), words)
    for block in blocks(*_SHELLS)
    for words in commands(block.text)
    if "..." not in " ".join(words)
]


def parse(words: list[str]) -> None:
    """As the command line would, up to the command itself."""
    context = cli.make_context("tuner", list(words))
    while isinstance(context.command, click.Group):
        rest = [*context._protected_args, *context.args]
        command_name, command, rest = context.command.resolve_command(context, rest)
        assert command is not None
        context = command.make_context(command_name, rest, parent=context)


def test_there_are_commands() -> None:
    assert len(COMMANDS) > 60


@pytest.mark.parametrize(("page", "words"), COMMANDS, ids=lambda item: str(item)[:60])
def test_commands_parse(page: str, words: list[str]) -> None:
    try:
        parse(words)
    except click.exceptions.Exit:
        return  # --help and --version end here


_CHEAP = ("presets", "spaces", "completion", "why")


def is_cheap(words: list[str]) -> bool:
    named = [word for word in words if not word.startswith("-")]
    if not named:
        return False
    is_dry = named[0] == "run" and "--dry-run" in words
    return is_dry or named[0] in _CHEAP or "--help" in words or "--list" in words


def console_commands() -> list[tuple[Block, list[str]]]:
    return [
        (block, words)
        for block in blocks("console")
        for words in commands(block.text)
        if is_cheap(words)
    ]


@pytest.mark.parametrize(("block", "words"), console_commands(), ids=lambda item: str(item)[:70])
def test_cheap_commands_run(
    block: Block, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for entry in ("examples", "search_spaces"):
        (tmp_path / entry).symlink_to(ROOT / entry)
    for other in blocks("toml"):
        if other.page == block.page and "[model]" in other.text:
            (tmp_path / "study.toml").write_text(other.text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TUNER_STORE", raising=False)
    assert main(words) == (3 if "why" in words else 0)
    assert not (tmp_path / "tuner_runs").exists()


# other code


def study_files() -> Iterator[Block]:
    known = {*StudyConfig.model_fields}
    for block in blocks("toml"):
        try:
            document = tomllib.loads(block.text)
        except tomllib.TOMLDecodeError:
            document = {"not": "toml"}
        if set(document) <= known or document == {"not": "toml"}:
            yield block


@pytest.mark.parametrize("block", list(study_files()), ids=str)
def test_study_files_are_legal(block: Block) -> None:
    text = block.text
    if "[model]" not in text:
        text += '\n[model]\nsource = "gpt2-tiny"\n'
    parse_study_text(text)


@pytest.mark.parametrize("block", list(blocks("python")), ids=str)
def test_python_is_python_and_names_exist(block: Block) -> None:
    compile(block.text.replace("...)", ")"), str(block), "exec")
    for found in re.findall(r"\btuner\.([A-Za-z_]+)", block.text):
        is_module = (ROOT / "tuner" / found).is_dir() or (ROOT / "tuner" / f"{found}.py").exists()
        assert found in tuner.__all__ or is_module, found
