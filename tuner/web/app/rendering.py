"""Pages from templates: everything escaped, numbers as people read them, ETags where pages repeat.

All templates escape, whatever their name; nothing in the application marks text as safe.
"""

import hashlib
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from tuner import __version__, formats
from tuner.web.app.dashboard import dashboard_of

HERE = Path(__file__).parent


@lru_cache(maxsize=1)
def environment() -> Environment:
    """The templates and their filters."""
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "throughput": formats.throughput,
        "step_time": formats.step_time,
        "duration": formats.duration,
        "memory": formats.memory,
        "percent": formats.percent,
        "ratio": formats.ratio,
        "flops": formats.flops,
        "count": formats.count,
        "parameters": formats.parameters,
        "plural": formats.plural,
        "moment": moment,
        "iso": lambda time: time.astimezone(UTC).isoformat(timespec="seconds"),
        "value": value,
        "query": query_string,
    }
    made.globals |= {
        "unknown": formats.UNKNOWN,
        "version": __version__,
        "static": static_url,
        "plotly_style_ids": plotly_style_ids,
    }
    return made


def moment(time: datetime | None) -> str:
    """A stored time in UTC: whoever looks may be in another zone than the server."""
    return formats.UNKNOWN if time is None else time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def value(item: Any) -> str:
    """A knob's value in words."""
    if item is None:
        return formats.UNKNOWN
    if isinstance(item, bool):
        return "yes" if item else "no"
    if isinstance(item, list | tuple):
        return ", ".join(map(str, item))
    return str(item)


def query_string(pairs: Mapping[str, Any] | list[tuple[str, str]]) -> str:
    """Pairs as the query of an address, with its question mark; empty without any."""
    text = urlencode(pairs, doseq=True)
    return f"?{text}" if text else ""


@lru_cache(maxsize=64)
def static_url(name: str) -> str:
    """A static file's address; it changes with the file, so that browsers may keep it for good."""
    digest = hashlib.sha256(static_path(name).read_bytes()).hexdigest()[:12]
    return f"/static/{name}?v={digest}"


@lru_cache(maxsize=64)
def static_path(name: str) -> Path:
    """Where a static file is; Plotly's own script comes from its package."""
    if name == "plotly.min.js":
        import plotly

        return Path(str(plotly.__file__)).parent / "package_data" / name
    return HERE / "static" / name


@lru_cache(maxsize=1)
def plotly_style_ids() -> tuple[str, ...]:
    """Ids of the style elements that Plotly's script makes unless they are there.

    One library within it does so as soon as it is loaded; the page's policy forbids that, and an
    element of the same id keeps it from trying.
    """
    text = static_path("plotly.min.js").read_text(encoding="utf-8")
    return tuple(sorted(set(re.findall(r'getElementById\("([0-9a-f]{64})"\)', text))))


def render(template: str, request: Request, **context: Any) -> str:
    """A template's text."""
    dashboard = dashboard_of(request)
    return environment().get_template(template).render(
        request=request, database=dashboard.store.url, **context
    )  # fmt: skip


def page(request: Request, template: str, status: int = 200, **context: Any) -> Response:
    """A page; with an ETag, so that asking again for an unchanged one costs no transfer."""
    text = render(template, request, **context)
    return with_etag(request, HTMLResponse(text, status))


def with_etag(request: Request, response: Response) -> Response:
    """The response, or 304 when the browser has the same already."""
    body = bytes(response.body)
    etag = f'W/"{hashlib.sha256(body).hexdigest()[:32]}"'
    vary = {"etag": etag, "vary": "HX-Request, Cookie"}
    if response.status_code == 200 and etag in _known(request):
        return Response(status_code=304, headers=vary)
    response.headers.update(vary)
    return response


def _known(request: Request) -> list[str]:
    return [part.strip() for part in request.headers.get("if-none-match", "").split(",")]


def is_fragment(request: Request) -> bool:
    """Whether htmx wants a part of the page to put into the one it has."""
    headers = request.headers
    return headers.get("hx-request") == "true" and "hx-history-restore-request" not in headers
