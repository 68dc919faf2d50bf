"""Copies of an SQLite file that others may be writing to."""

import sqlite3
from contextlib import closing
from pathlib import Path

from results_db.errors import AlreadyExists, DatabaseUnreadable


def copy_sqlite(source: Path, target: Path) -> None:
    """Copy a database page by page into a new file, and look whether the copy is sound.

    Raises:
        AlreadyExists: the target file is there.
        DatabaseUnreadable: it cannot be written, or the copy is damaged.
    """
    if target.exists():
        raise AlreadyExists(f"{target} exists", "name a new file")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(source)) as reading, closing(sqlite3.connect(target)) as copy:
            reading.backup(copy, pages=4096)
            verdict = copy.execute("PRAGMA quick_check").fetchone()[0]
    except (OSError, sqlite3.Error) as error:
        raise DatabaseUnreadable(f"{target} cannot be written: {error}") from error
    if verdict != "ok":
        raise DatabaseUnreadable(f"The copy {target} is damaged: {verdict}", "check the source")
