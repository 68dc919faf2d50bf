"""Figures as JSON: a small script of ours hands them to Plotly, which draws them."""

import json
import logging

from starlette.requests import Request
from starlette.responses import Response

from tuner import __version__
from tuner.web.app.dashboard import Dashboard, PageProblem, dashboard_of, id_of
from tuner.web.app.rendering import with_etag
from tuner.web.app.studies import version_of
from tuner.web.figures import FIGURES, FigureSpec, Missing

_LOG = logging.getLogger(__name__)
UNFORESEEN = "The study holds values that this figure cannot show; the dashboard's log tells which."


def figure(request: Request) -> Response:
    """One figure of a study: Plotly's JSON with its caption, or the reason why there is none."""
    dashboard = dashboard_of(request)
    study_id = id_of(request)
    name = request.path_params["name"]
    spec = FIGURES.get(name)
    if spec is None:
        raise PageProblem(404, f"There is no figure {name!r}", f"there are {', '.join(FIGURES)}")
    now = dashboard.pulse(study_id)
    etag = f'W/"{__version__}-{version_of(now)}"'
    if etag in request.headers.get("if-none-match", "").split(", "):
        return Response(status_code=304, headers={"etag": etag})
    dashboard.study(study_id)
    text = dashboard.figure((study_id, name), now, lambda: _made(dashboard, study_id, spec))
    answer = with_etag(request, Response(text, media_type="application/json"))
    answer.headers["etag"] = etag
    return answer


def _made(dashboard: Dashboard, study_id: int, spec: FigureSpec) -> str:
    data = dashboard.study_data(study_id, dashboard.pulse(study_id))
    try:
        made = spec.build(data)
    except Exception:
        # studies of other tools and versions hold values that nobody foresaw; the other figures,
        # and all that a page says beside them, are still worth showing
        _LOG.exception("figure %s of study %s cannot be made", spec.name, study_id)
        made = Missing(UNFORESEEN)
    if isinstance(made, Missing):
        return json.dumps({"missing": made.reason})
    return json.dumps({**made.to_json(), "caption": made.caption}, allow_nan=False)
