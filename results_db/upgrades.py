"""Upgrades of a database's schema, in one transaction each: all of it, or nothing."""

from importlib.resources import as_file, files
from pathlib import Path

from sqlalchemy import Connection, event

from results_db.copying import copy_sqlite
from results_db.engine import Database, parse_url
from results_db.errors import DatabaseUnreadable, NewerDatabase, NotFound
from results_db.schema import SCHEMA_VERSION
from results_db.versions import KNOWN_VERSIONS, stored_version
from results_db.views import create_views, drop_views


def upgrade(url_or_path: str | Path, backup: Path | None = None) -> tuple[str, str]:
    """Bring a database to the schema of this program; returns the versions before and after.

    Args:
        url_or_path: the database.
        backup: new file for a copy of an SQLite database as it was; none is made when it is
            current already.

    Raises:
        NotFound: there is no database.
        NewerDatabase: a later version of the program wrote it.
        DatabaseUnreadable: the upgrade would break references; nothing was changed.
    """
    database = Database(parse_url(url_or_path), create=False, read_only=False)
    if database.is_sqlite:
        # Alembic rebuilds SQLite tables by dropping the old one, which would cascade
        @event.listens_for(database.engine, "connect")
        def _no_cascades(connection: object, _record: object) -> None:
            connection.execute("PRAGMA foreign_keys=OFF")  # type: ignore[attr-defined]

    try:
        with database.read() as connection:
            current = stored_version(connection)
        is_behind = current in KNOWN_VERSIONS and current != SCHEMA_VERSION
        if backup is not None and database.is_sqlite and is_behind:
            copy_sqlite(Path(database.shown), backup)
        return database.write(lambda connection: _upgrade(connection, database.shown))
    finally:
        database.close()


def _upgrade(connection: Connection, shown: str) -> tuple[str, str]:
    before = stored_version(connection)
    if before is None:
        raise NotFound(f"{shown} holds no results yet", "there is nothing to upgrade")
    if before not in KNOWN_VERSIONS:
        raise NewerDatabase(
            f"{shown} has schema {before}, and this program knows up to {SCHEMA_VERSION}",
            "update the program",
        )
    drop_views(connection)
    run_migrations(connection)
    create_views(connection)
    if connection.dialect.name == "sqlite":
        broken = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
        if broken:
            raise DatabaseUnreadable(
                f"{shown} has {len(broken)} rows that refer to missing ones", "tuner db check"
            )
    return before, SCHEMA_VERSION


def run_migrations(connection: Connection, target: str = "head") -> None:
    """Run Alembic up to `target` in the connection's transaction."""
    from alembic import command
    from alembic.config import Config

    with as_file(files("results_db").joinpath("migrations")) as folder:
        config = Config()
        # Config interpolates %, which a path may hold
        config.set_main_option("script_location", str(folder).replace("%", "%%"))
        config.attributes["connection"] = connection
        command.upgrade(config, target)
