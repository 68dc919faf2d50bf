"""The dashboard as an ASGI application: addresses, errors, and what is around all of them."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from results_db.errors import InvalidQuery, NotFound, ResultsDbError, Unreachable
from results_db.store import Store
from tuner.web.app import (
    comparison,
    downloads,
    figure_pages,
    sql_page,
    studies,
    trial_detail,
    trial_list,
)
from tuner.web.app.dashboard import Dashboard, PageProblem
from tuner.web.app.rendering import HERE, environment, page, static_path
from tuner.web.app.security import TOKEN_FIELD, Access, Guard

_LOG = logging.getLogger(__name__)
_STATIC = {
    **{path.name: path.name for path in (HERE / "static").iterdir() if path.suffix != ".txt"},
    "plotly.min.js": "plotly.min.js",
}
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}

ROUTES = [
    Route("/", studies.index),
    Route("/studies/{id:int}", studies.study),
    Route("/studies/{id:int}/figures/{name}.json", figure_pages.figure),
    Route("/studies/{id:int}/trials", trial_list.trials),
    Route("/studies/{id:int}/trials.{kind}", downloads.trials),
    Route("/studies/{id:int}/trials/{number:int}", trial_detail.by_number),
    Route("/trials/{id:int}", trial_detail.trial),
    Route("/compare", comparison.compare),
    Route("/sql", sql_page.sql),
    Route("/sql.{kind}", downloads.sql),
]


def build(store: Store, store_url: str, access: Access) -> ASGIApp:
    """The application over a database that is open for reading; closed when it ends."""

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        store.close()

    app = Starlette(
        routes=[*ROUTES, Route("/static/{name}", _static)],
        # for Plotly's 5 MB through a tunnel; pages are smaller than what is worth it
        middleware=[Middleware(GZipMiddleware, minimum_size=50_000)],
        exception_handlers={
            PageProblem: _problem,
            ResultsDbError: _problem,
            HTTPException: _problem,
            Exception: _problem,
        },
        lifespan=lifespan,
    )
    app.state.dashboard = Dashboard(store, store_url)
    # around Starlette and not one of its middlewares: its answers to errors pass those by
    return Guard(app, access, _sign_in)


def _static(request: Request) -> Response:
    """A file of ours; its address changes with its content."""
    name = _STATIC.get(request.path_params["name"])
    if name is None:
        raise PageProblem(404, "There is no such file")
    path = static_path(name)
    lasts = "public, max-age=31536000, immutable" if "v" in request.query_params else "no-cache"
    return FileResponse(
        path, media_type=_TYPES.get(path.suffix), headers={"cache-control": lasts}
    )  # fmt: skip


def _problem(request: Request, error: Exception) -> Response:
    """One sentence and a hint instead of a page; what nobody expected is logged."""
    status, message, hint = _words(error)
    if status == 500:
        _LOG.error("%s failed", request.url.path, exc_info=error)
    return page(request, "problem.html", status, code=status, message=message, hint=hint)


def _words(error: Exception) -> tuple[int, str, str]:
    if isinstance(error, PageProblem):
        return error.status, error.message, error.hint
    if isinstance(error, HTTPException):
        return error.status_code, "There is no such page", ""
    if isinstance(error, NotFound):
        return 404, error.message, error.hint
    if isinstance(error, InvalidQuery):
        return 400, error.message, error.hint
    if isinstance(error, ResultsDbError):
        return 503 if isinstance(error, Unreachable) else 500, error.message, error.hint
    return 500, "The dashboard failed at this page", "its log tells why"


async def _sign_in(scope: Scope, receive: Receive, send: Send) -> None:
    """The only page for those who have not shown the token."""
    request = Request(scope)
    text = environment().get_template("sign_in.html").render(
        was_wrong=TOKEN_FIELD in request.query_params, path=request.url.path, field=TOKEN_FIELD
    )  # fmt: skip
    headers = {"cache-control": "no-store", "www-authenticate": "Bearer"}
    await Response(text, 401, headers, "text/html")(scope, receive, send)
