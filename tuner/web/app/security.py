"""What guards the dashboard: methods, host names, the token, and headers on every answer.

Threats and what meets them:

- another web page in the same browser asks for our pages: answers are unreadable to it (no CORS),
  requests that browsers mark as coming from elsewhere get nothing, and nothing here writes;
- DNS rebinding makes another page's name point here: its name is no host of ours;
- another user or machine: the token, without which nothing but the sign-in page is shown;
- text in the database that is HTML or script: templates escape, and no script runs that is not a
  file of ours (Content-Security-Policy).
"""

import ipaddress
import secrets
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlencode

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
TOKEN_FIELD = "token"  # noqa: S105 -- the name of a form field
PUBLIC_PATHS = ("/static/style.css", "/static/icon.svg")
"""What the sign-in page needs."""

_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}


@dataclass(frozen=True)
class Access:
    """Who may ask: with which token, under which host names."""

    token: str | None = None
    """Needed for every page when given."""
    hosts: frozenset[str] = LOOPBACK_NAMES
    """Names that a request may give as its host."""
    allows_addresses: bool = False
    """Whether any IP address is a good host too: rebinding needs a name, so addresses are safe."""

    def knows_host(self, header: str) -> bool:
        """Whether a Host header names this server."""
        name = host_name(header)
        if name is None:
            return False
        return name in self.hosts or (self.allows_addresses and _is_address(name))

    def accepts(self, token: str) -> bool:
        """Whether this is the token, in constant time."""
        return self.token is not None and secrets.compare_digest(
            token.encode(errors="replace"), self.token.encode()
        )


def access_for(host: str, more_hosts: Iterable[str] = (), *, needs_token: bool = False) -> Access:
    """Who may ask a server bound to `host`.

    A token is made for other than loopback addresses, and where further host names are given: a
    proxy that has one opens the server to others.
    """
    is_local = is_loopback(host)
    further = {name.lower() for name in more_hosts}
    names = set(LOOPBACK_NAMES) | further
    if not is_local:
        names |= {host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()}
    token = secrets.token_urlsafe(32) if needs_token or further or not is_local else None
    return Access(token=token, hosts=frozenset(names), allows_addresses=not is_local)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_name(header: str) -> str | None:
    """The name of a Host header without its port, in lower case; none when it is malformed."""
    text = header.strip().lower()
    if text.startswith("["):
        name, closing, port = text[1:].partition("]")
        return name if closing and _is_port(port.removeprefix(":")) else None
    name, colon, port = text.partition(":")
    return name if name and (not colon or _is_port(port)) else None


def _is_port(text: str) -> bool:
    return text == "" or (text.isascii() and text.isdigit() and len(text) <= 5)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_from_elsewhere(request: Request) -> bool:
    """Whether the browser says that another page caused this request.

    Other ports of this host are another page, too: the cookie and loopback do not tell them apart.
    """
    return request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin")


class Guard:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, access: Access, sign_in: ASGIApp) -> None:
        self.app = app
        self.access = access
        self.sign_in = sign_in

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it here."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-cache")
            await send(message)

        await self._answer(scope)(scope, receive, send_guarded)

    def _answer(self, scope: Scope) -> ASGIApp:
        """The application, or what is said instead."""
        headers = Headers(scope=scope)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse(
                "The dashboard is read-only: GET and HEAD only.\n", 405, {"allow": "GET, HEAD"}
            )
        if len(headers.getlist("host")) != 1 or not self.access.knows_host(headers["host"]):
            return PlainTextResponse(
                "This host name is not served here: use the address that `tuner serve` printed, "
                "or name it with --allow-host.\n", 403,
            )  # fmt: skip
        request = Request(scope)
        if is_from_elsewhere(request) and headers.get("sec-fetch-mode") != "navigate":
            return PlainTextResponse("Other pages get nothing from here.\n", 403)
        if self.access.token is None:
            return self.app
        return self._checked(request)

    def _checked(self, request: Request) -> ASGIApp:
        """The application for those who know the token."""
        given = request.query_params.get(TOKEN_FIELD)
        if given is not None and self.access.accepts(given):
            return _signed_in(request, given)
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        cookie = request.cookies.get(cookie_name(request), "")
        if self.access.accepts(cookie):
            return self.app
        if scheme.lower() == "bearer" and self.access.accepts(bearer.strip()):
            return self.app
        return self.app if request.url.path in PUBLIC_PATHS else self.sign_in


def cookie_name(request: Request) -> str:
    """One name per port, because browsers share cookies between the ports of a host."""
    return f"tuner_token_{request.url.port or 80}"


def _signed_in(request: Request, token: str) -> Response:
    """Keep the token in a cookie and leave it out of the address."""
    rest = [(key, value) for key, value in _pairs(request.query_params) if key != TOKEN_FIELD]
    # a path that begins with two slashes would be another host's address
    path = "/" + request.url.path.lstrip("/\\")
    answer = RedirectResponse(path + (f"?{urlencode(rest)}" if rest else ""), 303)
    answer.set_cookie(
        cookie_name(request),
        token,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
        path="/",
    )
    answer.headers["cache-control"] = "no-store"
    return answer


def _pairs(params: QueryParams) -> list[tuple[str, str]]:
    return list(params.multi_items())
