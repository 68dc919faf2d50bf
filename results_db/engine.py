"""Connections: URLs, pragmas, and the one place where transactions begin, repeat and fail.

SQLite runs in WAL mode with `synchronous=FULL`: readers never block the writer, and a committed
trial survives a power cut. Every write takes the write lock at its start (`BEGIN IMMEDIATE`), so
two writers wait for each other instead of failing halfway. On PostgreSQL a write is a transaction
in READ COMMITTED that locks its study's row first, which gives all writers one lock order.
"""

import logging
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DisconnectionError,
    NoSuchModuleError,
    SQLAlchemyError,
)

from results_db.errors import DatabaseUnreadable, NotFound, ReadOnly
from results_db.filesystems import network_filesystem
from results_db.translation import is_repeatable, translate

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")

BUSY_TIMEOUT_S = 10.0
"""How long SQLite itself waits for a lock before the transaction is begun anew."""
WRITE_DEADLINE_S = 60.0
"""How long a write is repeated before `Busy`."""


def parse_url(url_or_path: str | Path) -> URL:
    """A SQLAlchemy URL from a URL or the path of an SQLite file.

    Raises:
        DatabaseUnreadable: the URL is malformed or of another kind of database.
    """
    text = str(url_or_path)
    if "://" not in text:
        return URL.create("sqlite", database=text)
    try:
        url = make_url(text)
    except ArgumentError:
        # the text may hold a password, so it is not repeated
        raise DatabaseUnreadable("The database URL cannot be read", _LEGAL) from None
    kind = url.drivername.split("+")[0]
    if kind in ("postgresql", "postgres"):
        return url.set(drivername="postgresql+psycopg")
    if kind != "sqlite":
        raise DatabaseUnreadable(f"{kind} databases are not supported", _LEGAL)
    if url.database in (None, "", ":memory:"):
        raise DatabaseUnreadable("An SQLite database needs a file", _LEGAL)
    return url


_LEGAL = "give a file path, sqlite:///path or postgresql://user@host/database"


def safe_url(url: URL) -> str:
    """The URL as it may be shown: the path of a file, else the URL without its secrets."""
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    secret = {"password", "passfile", "sslpassword", "sslkey"}
    query = {key: value for key, value in url.query.items() if key not in secret}
    return url.set(query=query).render_as_string(hide_password=True)


class Database:
    """An engine with our transaction rules; the boundary where foreign errors are translated."""

    def __init__(self, url: URL, *, create: bool, read_only: bool) -> None:
        self.url = url
        self.shown = safe_url(url)
        self.is_sqlite = url.get_backend_name() == "sqlite"
        self.is_read_only = read_only
        if self.is_sqlite:
            _check_path(Path(str(url.database)), create=create and not read_only)
        self.engine = _make_engine(url, read_only=read_only)

    def close(self) -> None:
        """Return every connection; the object is unusable afterwards."""
        self.engine.dispose()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A connection in one read transaction: all its queries see the same state."""
        try:
            with self.engine.connect() as plain:
                options: dict[str, Any] = {"results_db_mode": "read"}
                if not self.is_sqlite:
                    options["isolation_level"] = "REPEATABLE READ"
                connection = plain.execution_options(**options)
                with connection.begin():
                    yield connection
        except (SQLAlchemyError, OverflowError, ImportError) as error:
            raise translate(error, self.shown) from error

    def write(self, work: Callable[[Connection], _T]) -> _T:
        """Run `work` in one write transaction; repeated as a whole while others are in the way.

        Raises:
            ReadOnly: the database is open for reading.
            Busy: others held it for `WRITE_DEADLINE_S`.
        """
        if self.is_read_only:
            raise ReadOnly(f"{self.shown} is open for reading only", "open it without read_only")
        give_up_at = time.monotonic() + WRITE_DEADLINE_S
        pause_s = 0.005
        while True:
            try:
                with self.engine.begin() as connection:
                    return work(connection)
            except (SQLAlchemyError, OverflowError, ImportError) as error:
                problem = translate(error, self.shown)
                is_over = time.monotonic() > give_up_at
                if is_over or not is_repeatable(error):
                    raise problem from error
            # jitter keeps two writers that met once from meeting again and again
            time.sleep(pause_s * (0.5 + random.random()))
            pause_s = min(2 * pause_s, 0.5)


def _check_path(path: Path, *, create: bool) -> None:
    """Name the usual mistakes before SQLite answers `unable to open database file`."""
    if path.is_dir():
        raise DatabaseUnreadable(f"{path} is a folder, not a database file")
    if not path.exists():
        if not create:
            raise NotFound(f"There is no database {path}", "a study makes one: tuner run")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DatabaseUnreadable(
                f"The folder of {path} cannot be made: {error.strerror}"
            ) from error
    kind = network_filesystem(path)
    if kind:
        _LOG.warning(
            "%s lies on a network file system (%s), where SQLite's locks are unreliable and two "
            "writers can damage it; use a local disk or PostgreSQL", path, kind,
        )  # fmt: skip


def _make_engine(url: URL, *, read_only: bool) -> Engine:
    if url.get_backend_name() == "sqlite":
        return _sqlite_engine(url, read_only=read_only)
    # jit compiles for longer than our queries run
    options = "-c timezone=UTC -c jit=off"
    if read_only:
        options += " -c default_transaction_read_only=on"
    arguments = {"options": options, "connect_timeout": 10, "application_name": "tuner"}
    try:
        engine = create_engine(url, connect_args=arguments, hide_parameters=True)
    except (ImportError, NoSuchModuleError) as error:
        raise DatabaseUnreadable(
            "PostgreSQL needs the package psycopg", 'pip install "parallel-tuner[postgres]"'
        ) from error

    _ping_idle_connections(engine)
    return engine


IDLE_S = 20.0
"""A pooled connection that rested so long is tried out before it is used again."""


def _ping_idle_connections(engine: Engine) -> None:
    """Replace connections that a server's restart or a firewall has cut.

    SQLAlchemy's own `pool_pre_ping` asks before every transaction, which costs a round trip each.
    """

    @event.listens_for(engine, "checkin")
    def _rest(_connection: Any, record: Any) -> None:
        record.info["rests_since"] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def _try_out(connection: Any, record: Any, _proxy: Any) -> None:
        if time.monotonic() - record.info.get("rests_since", time.monotonic()) < IDLE_S:
            return
        try:
            connection.execute("SELECT 1")
            connection.rollback()
        except Exception as error:
            raise DisconnectionError from error


def _sqlite_engine(url: URL, *, read_only: bool) -> Engine:
    path = Path(str(url.database)).absolute()
    if read_only:
        url = url.set(database=path.as_uri(), query={"mode": "ro", "uri": "true"})
    engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S}, hide_parameters=True)

    @event.listens_for(engine, "connect")
    def _connect(connection: Any, _record: Any) -> None:
        # the driver must not begin transactions by itself: it would take the lock too late
        connection.isolation_level = None
        pragmas = ["foreign_keys=ON", "synchronous=FULL", "cache_size=-65536", "mmap_size=0"]
        pragmas.append("query_only=ON" if read_only else "journal_mode=WAL")
        cursor = connection.cursor()
        for pragma in pragmas:
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        is_read = connection.get_execution_options().get("results_db_mode") == "read"
        connection.exec_driver_sql("BEGIN" if is_read else "BEGIN IMMEDIATE")

    return engine
