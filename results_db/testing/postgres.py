"""A private PostgreSQL server in a temporary folder, for tests and benchmarks.

PostgreSQL refuses to run as root, so under root it runs as `postgres` or `nobody`.
"""

import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from results_db.errors import ResultsDbError

_USERS = ("postgres", "nobody")
_INSTALLED = Path("/usr/lib/postgresql")
_START_S = 60.0


class PostgresUnavailable(ResultsDbError):
    """This machine cannot start a private server; the message says what is missing."""


@dataclass
class PostgresServer:
    """A running server that trusts everyone who reaches its socket."""

    folder: Path
    data: Path
    process: "subprocess.Popen[bytes]"
    start: Callable[[], "subprocess.Popen[bytes]"]
    starter: threading.Thread | None = None

    def stop(self) -> None:
        """End it as a crash would: at once, connections cut; the data stay."""
        if self.starter is not None:
            self.starter.join()
        # without a last checkpoint: the data are deleted in the end
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait(_START_S)

    def restart(self, down_s: float) -> None:
        """Stop it now and start it again after a while, in a thread of its own."""

        def start() -> None:
            time.sleep(down_s)
            self.process = self.start()

        self.stop()
        self.starter = threading.Thread(target=start)
        self.starter.start()

    def url(self, database: str = "postgres", user: str = "postgres") -> str:
        """The SQLAlchemy URL of one of its databases."""
        return f"postgresql+psycopg://{user}@/{database}?host={self.folder}"

    def new_database(self, name: str, template: str = "template1") -> str:
        """Make a database, empty or a copy of another that nobody uses; returns its URL."""
        from psycopg import connect, sql

        with connect(f"host={self.folder} user=postgres dbname=postgres", autocommit=True) as link:
            command = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
            link.execute(command.format(sql.Identifier(name), sql.Identifier(template)))
        return self.url(name)


def find_binaries() -> Path:
    """The folder of `initdb` and `postgres`, the newest version when there are several.

    Raises:
        PostgresUnavailable: the server is not installed.
    """
    on_path = shutil.which("initdb")
    if on_path and (Path(on_path).parent / "postgres").exists():
        return Path(on_path).resolve().parent
    found = [path.parent for path in _INSTALLED.glob("*/bin/initdb")]
    if not found:
        raise PostgresUnavailable(
            f"no PostgreSQL server: initdb is neither on PATH nor under {_INSTALLED}",
            "install the package postgresql",
        )
    return max(found, key=lambda path: [int(part) for part in re.findall(r"\d+", str(path))])


def _other_user() -> pwd.struct_passwd | None:
    """Whom the server runs as; none for ourselves."""
    if os.geteuid() != 0:
        return None
    for name in _USERS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise PostgresUnavailable(
        f"PostgreSQL does not run as root, and there is no user {' or '.join(_USERS)}"
    )


@contextmanager
def private_postgres(*, durable: bool = False) -> Iterator[PostgresServer]:
    """Start a server, and end it and delete its data at exit.

    Args:
        durable: whether commits reach the disk; tests do without, measurements must not.

    Raises:
        PostgresUnavailable: no binaries, or the server did not come up.
    """
    binaries, user = find_binaries(), _other_user()
    folder = Path(tempfile.mkdtemp(prefix="tuner_pg_"))
    if user:
        os.chown(folder, user.pw_uid, user.pw_gid)
    options: dict[str, Any] = {"cwd": folder, "stdin": subprocess.DEVNULL}
    if user:
        options |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    server = None
    try:
        data = _initdb(binaries, folder, options)
        start = partial(_start, binaries, folder, data, options, durable=durable)
        server = PostgresServer(folder, data, start(), start)
        yield server
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _initdb(binaries: Path, folder: Path, options: dict[str, Any]) -> Path:
    data = folder / "data"
    command = [str(binaries / "initdb"), "-D", str(data), "-U", "postgres", "-A", "trust",
               "-E", "UTF8", "--locale=C", "--no-sync"]  # fmt: skip
    done = subprocess.run(  # noqa: S603 - the command is ours
        command, **options, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise PostgresUnavailable(f"initdb failed: {done.stderr.strip().splitlines()[-1:]}")
    return data


def _start(
    binaries: Path, folder: Path, data: Path, options: dict[str, Any], *, durable: bool
) -> "subprocess.Popen[bytes]":
    settings = {"listen_addresses": "", "unix_socket_directories": str(folder),
                "max_connections": "60"}  # fmt: skip
    if durable:
        # what PostgreSQL's manual advises for a server of its own; the defaults are for any laptop
        settings |= {"shared_buffers": "1GB", "max_wal_size": "4GB"}
    else:
        settings |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off",
                     "autovacuum": "off"}  # fmt: skip
    command = [str(binaries / "postgres"), "-D", str(data)]
    for name, value in settings.items():
        command += ["-c", f"{name}={value}"]
    log = folder / "server.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(  # noqa: S603
            command, **options, stdout=sink, stderr=sink
        )
    give_up_at = time.monotonic() + _START_S
    while time.monotonic() < give_up_at and process.poll() is None:
        if _answers(folder):
            return process
        time.sleep(0.05)
    process.kill()
    process.wait()
    raise PostgresUnavailable(f"the server did not come up: {log.read_text()[-500:]}")


def _answers(folder: Path) -> bool:
    import psycopg

    try:
        psycopg.connect(f"host={folder} user=postgres dbname=postgres").close()
    except psycopg.OperationalError:
        return False
    return True
