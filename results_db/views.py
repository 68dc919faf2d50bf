"""The views: read from `views.sql`, dropped and made anew whenever the schema changes."""

import re
from functools import lru_cache
from importlib.resources import files

from sqlalchemy import Connection, inspect

_NAME = re.compile(r"CREATE VIEW (\w+) AS")


@lru_cache(maxsize=1)
def view_statements() -> dict[str, str]:
    """The CREATE VIEW statements by name, in an order in which they can be run."""
    text = files("results_db").joinpath("views.sql").read_text(encoding="utf-8")
    bare = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
    statements = [part.strip() for part in re.split(r";\s*\n", bare + "\n") if part.strip()]
    return {_name(statement): statement for statement in statements}


def _name(statement: str) -> str:
    found = _NAME.match(statement)
    if found is None:
        raise ValueError(f"not a view: {statement[:60]}")
    return found.group(1)


def view_docs() -> dict[str, str]:
    """The comment above each view, as one paragraph."""
    text = files("results_db").joinpath("views.sql").read_text(encoding="utf-8")
    docs = {}
    for block in text.split("\n\n"):
        found = _NAME.search(block)
        if found:
            lines = [line[2:].strip() for line in block.splitlines() if line.startswith("--")]
            docs[found.group(1)] = " ".join(lines)
    return docs


def drop_views(connection: Connection) -> None:
    """Drop our views, dependent ones first; others' views stay."""
    present = set(inspect(connection).get_view_names())
    for name in reversed(view_statements()):
        if name in present:
            connection.exec_driver_sql(f"DROP VIEW {name}")


def create_views(connection: Connection) -> None:
    """Make all views, which must not exist."""
    for statement in view_statements().values():
        # the PostgreSQL driver would read a % as a place for a value; the views hold none
        connection.exec_driver_sql(statement)
