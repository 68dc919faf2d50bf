"""Which schema a database has, and whether this program may use it."""

from sqlalchemy import Connection, func, insert, inspect, select

from results_db.errors import DatabaseUnreadable, NewerDatabase, NotFound, OutdatedDatabase
from results_db.schema import SCHEMA_VERSION, metadata, schema_versions
from results_db.views import create_views

KNOWN_VERSIONS: tuple[str, ...] = ("0001", "0002")
"""All released schemas, oldest first; a test holds this against the migration scripts."""

_CREATE_LOCK = 7_305_815  # any constant of our own: two programs must not create at one time


def stored_version(connection: Connection) -> str | None:
    """The schema version of a results database, or none for one without tables.

    Raises:
        DatabaseUnreadable: it holds tables, but not ours.
    """
    names = set(inspect(connection).get_table_names())
    if schema_versions.name not in names:
        if names:
            raise DatabaseUnreadable(
                "The database holds tables of something else", "name another file or database"
            )
        return None
    version = connection.execute(select(schema_versions.c.version_num)).scalar_one_or_none()
    if version is not None and "studies" not in names:
        raise DatabaseUnreadable("The database belongs to another program", "name another one")
    return version


def check_version(version: str | None, shown: str) -> None:
    """Refuse a database that this program must not touch.

    Raises:
        NotFound: it has no tables yet.
        NewerDatabase: it is of a later version of the program.
        OutdatedDatabase: it must be upgraded first.
    """
    if version is None:
        raise NotFound(f"{shown} holds no results yet", "a study makes the tables: tuner run")
    if version not in KNOWN_VERSIONS:
        raise NewerDatabase(
            f"{shown} has schema {version}, and this program knows up to {SCHEMA_VERSION}",
            "update the program",
        )
    if version != SCHEMA_VERSION:
        raise OutdatedDatabase(
            f"{shown} has schema {version}, and this program needs {SCHEMA_VERSION}",
            "run: tuner db upgrade",
        )


def create_tables(connection: Connection) -> None:
    """Make the schema unless another program just did."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_CREATE_LOCK)))
    if stored_version(connection) is None:
        metadata.create_all(connection)
        create_views(connection)
        connection.execute(insert(schema_versions).values(version_num=SCHEMA_VERSION))
