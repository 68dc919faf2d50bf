"""Hooks of the site: the list of decisions, and links that lead out of docs/."""

import re
from pathlib import Path
from typing import Any

_LINK = re.compile(
    r"(?<!!)\[(?P<label>[^\]]+)\]\((?P<target>(?:\.\./)+[^)\s#]*)(?P<anchor>#[^)]*)?\)"
)


def on_config(config: Any) -> Any:
    """Put the decisions into the navigation by their titles, and what others add by its name."""
    docs = Path(config.docs_dir)
    decisions = [
        {_title(path): path.relative_to(docs).as_posix()}
        for path in sorted((docs / "decisions").glob("*.md"))
    ]
    config.nav = [
        {"Decisions": decisions} if entry == {"Decisions": "decisions"} else entry
        for entry in config.nav
    ]
    named = set(_pages(config.nav))
    extra = [
        {_title(path): path.relative_to(docs).as_posix()}
        for path in sorted(docs.rglob("*.md"))
        if path.relative_to(docs).as_posix() not in named
    ]
    if extra:
        config.nav.append({"More": extra})
    return config


def _pages(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    items = nav.values() if isinstance(nav, dict) else nav
    return [page for item in items for page in _pages(item)]


def _title(path: Path) -> str:
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            return line.removeprefix("# ").strip()
    return path.stem


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Lead links to files of the repository there, where it is known, or leave their text."""
    docs = Path(config.docs_dir).resolve()
    here = (docs / page.file.src_uri).parent

    def replace(match: re.Match[str]) -> str:
        target = (here / match["target"]).resolve()
        if target.is_relative_to(docs):
            return match[0]
        if not config.repo_url:
            return match["label"]
        place = target.relative_to(docs.parent).as_posix()
        return f"[{match['label']}]({config.repo_url.rstrip('/')}/blob/main/{place})"

    return _LINK.sub(replace, markdown)
