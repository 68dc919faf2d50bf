"""`tuner serve`: the read-only dashboard over a results database."""

import errno
import socket
from typing import TYPE_CHECKING, Any

import click

from tuner.cli.options import store_option, verbosity_options
from tuner.cli.output import say
from tuner.cli.stores import store_and_name
from tuner.errors import EnvironmentProblem, UsageError

if TYPE_CHECKING:
    from tuner.web.app.security import Access

DEFAULT_PORT = 8765
_STOP_S = 3.0
"""How long open answers may go on after Ctrl-C."""


@click.command(
    epilog="\b\nExamples:\n"
    "  tuner serve                         the default database, for this machine\n"
    "  tuner serve --store runs/results.db --port 0 --open\n"
    "  tuner serve --host 0.0.0.0          for others, with a token that is printed once\n"
    "  ssh -L 8765:localhost:8765 cluster  from afar without opening it to others\n\n"
    "The dashboard cannot write: the database is opened read-only, and it answers GET alone. "
    "Ctrl-C ends it."
)
@store_option
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Where to listen; on other than loopback addresses a token is needed.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="0 takes a free one.",
)
@click.option("--open", "opens", is_flag=True, help="Open it in the browser.")
@click.option(
    "--token",
    "with_token",
    is_flag=True,
    help="Need a token on loopback, too, where others use this machine.",
)
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A further host name under which it may be asked, e.g. a proxy's; may be repeated.",
)
@verbosity_options
def serve(
    store: str | None,
    host: str,
    port: int,
    opens: bool,
    with_token: bool,
    hosts: tuple[str, ...],
) -> None:
    """Show studies and trials in the browser, read-only."""
    try:
        from tuner.web.app.application import build
        from tuner.web.app.security import access_for
    except ImportError as error:
        raise EnvironmentProblem(
            f"the dashboard needs the package {error.name}", 'pip install "parallel-tuner[web]"'
        ) from error
    from tuner.study import open_store

    url, _ = store_and_name(None, store)
    opened = open_store(url, read_only=True)
    access = access_for(host, hosts, needs_token=with_token)
    with opened, listen(host, port) as listener:
        address = address_of(host, listener, access)
        say(f"dashboard of {opened.url}")
        click.echo(address)
        say("read-only; Ctrl-C ends it")
        if opens:
            click.launch(address)
        _run(build(opened, url, access), listener)
    say("stopped")


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        EnvironmentProblem: the port is taken or not ours to take.
        UsageError: the address is none of this machine.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"{host!r} is no address of this machine", "e.g. 127.0.0.1") from error
    family, kind, protocol, _, place = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise _refusal(host, port, error) from error
    return listener


def _refusal(host: str, port: int, error: OSError) -> EnvironmentProblem | UsageError:
    if error.errno == errno.EADDRINUSE:
        return EnvironmentProblem(
            f"port {port} is taken", "another dashboard? choose --port N, or 0 for a free one"
        )
    if error.errno == errno.EACCES:
        return EnvironmentProblem(f"port {port} is not yours to take", "choose one above 1023")
    if error.errno == errno.EADDRNOTAVAIL:
        return UsageError(f"{host!r} is no address of this machine", "e.g. 127.0.0.1 or 0.0.0.0")
    return EnvironmentProblem(f"{host} port {port} cannot be listened on: {error.strerror}")


def address_of(host: str, listener: socket.socket, access: "Access") -> str:
    """The address to open, with the token where one is needed."""
    port = listener.getsockname()[1]
    name = host
    if host in ("0.0.0.0", "::", ""):  # noqa: S104 -- compared, not bound
        name = socket.gethostname()
    elif ":" in host:
        name = f"[{host}]"
    token = f"?token={access.token}" if access.token else ""
    return f"http://{name}:{port}/{token}"


def _run(app: Any, listener: socket.socket) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    import uvicorn

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,  # addresses hold the token once, and queries
        server_header=False,
        proxy_headers=False,
        ws="none",
        lifespan="on",
        limit_concurrency=200,
        timeout_graceful_shutdown=int(_STOP_S),
    )
    try:
        uvicorn.Server(config).run(sockets=[listener])
    except KeyboardInterrupt:  # uvicorn raises the signal again after an orderly end
        return
