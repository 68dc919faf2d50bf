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

from results_db import known_ids
from results_db.errors import DatabaseUnreadable, Locked, NotFound, ReadOnly, Unreachable
from results_db.filesystems import network_filesystem
from results_db.translation import translate

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")

BUSY_TIMEOUT_S = 10.0
"""How long SQLite itself waits for a lock before the transaction is begun anew."""
WRITE_DEADLINE_S = 60.0
"""How long a write is repeated before `Busy`."""
TOLD_AFTER_S = 5.0
"""A lock that lasts longer is told to the user."""
GONE_DEADLINE_S = 120.0
"""How long a server that answered before is waited for, as while it restarts."""


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
            # a relative path must go on meaning the same file when the process changes its folder
            url = url.set(database=str(Path(str(url.database)).absolute()))
        self._path = Path(str(url.database))
        self.engine = _make_engine(url, read_only=read_only)
        self._file_identity: tuple[int, int] | None = None

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

    def query(self, work: Callable[[Connection], _T]) -> _T:
        """Run `work` in one read transaction, begun anew while the server cannot be reached.

        Raises:
            DatabaseUnreadable: it could not be reached for `GONE_DEADLINE_S`.
        """

        def attempt() -> _T:
            self._check_file()
            with self.read() as connection:
                return work(connection)

        return self._repeat(attempt)

    def write(self, work: Callable[[Connection], _T]) -> _T:
        """Run `work` in one write transaction; repeated as a whole while others are in the way.

        It is also repeated when the server went away before the commit was sent; when it went away
        during the commit nobody knows whether the change is stored, so that is the caller's.

        Raises:
            ReadOnly: the database is open for reading.
            Locked: others held it for `WRITE_DEADLINE_S`.
            DatabaseUnreadable: it could not be reached for `GONE_DEADLINE_S`.
        """
        if self.is_read_only:
            raise ReadOnly(f"{self.shown} is open for reading only", "open it without read_only")

        def attempt() -> _T:
            self._check_file()
            is_done = False
            try:
                with self.engine.begin() as connection:
                    learnt = known_ids.begin(connection)
                    result = work(connection)
                    is_done = True
                known_ids.commit(self.engine, learnt)
                return result
            except (SQLAlchemyError, OverflowError, ImportError) as error:
                problem = translate(error, self.shown)
                if isinstance(problem, Unreachable) and is_done:
                    raise DatabaseUnreadable(
                        f"{self.shown} went away during a commit",
                        "look whether it was stored before you do it again",
                    ) from error
                raise problem from error

        return self._repeat(attempt)

    def _check_file(self) -> None:
        """Whether the SQLite file is the one that was opened: what is written after that is lost.

        An open file can be moved or deleted; SQLite then goes on writing into nowhere, and a new
        connection makes a new, empty file.
        """
        if not self.is_sqlite:
            return
        try:
            status = self._path.stat()
        except FileNotFoundError:
            if self._file_identity is None:
                return  # it is made by the first write
            raise Unreachable(
                f"{self.shown} was moved or deleted while in use", "put it back"
            ) from None
        found = (status.st_dev, status.st_ino)
        if self._file_identity is None:
            self._file_identity = found
        if found != self._file_identity:
            raise Unreachable(f"{self.shown} is another file now", "put the first one back")

    def _repeat(self, attempt: Callable[[], _T]) -> _T:
        """Begin anew while others are in the way or the server is away, up to a deadline each."""
        began_s = time.monotonic()
        pause_s, is_told = 0.005, False
        while True:
            try:
                return attempt()
            except (Locked, Unreachable) as problem:
                is_gone = isinstance(problem, Unreachable)
                deadline_s = GONE_DEADLINE_S if is_gone else WRITE_DEADLINE_S
                waited_s = time.monotonic() - began_s
                if waited_s > deadline_s:
                    raise
                if not is_told and (is_gone or waited_s > TOLD_AFTER_S):
                    _LOG.warning("%s; trying again for %g s", problem.message, deadline_s)
                    is_told = True
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
