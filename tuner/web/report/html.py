"""The report as one HTML file that opens without a network and may be sent to anybody.

plotly.js is inlined once. Text of the study is escaped by the template; data lies in JSON blocks,
which browsers do not run, and a policy with the hashes of our two scripts keeps anything else from
running.
"""

import base64
import hashlib
import json
from importlib.resources import files
from typing import Any

from tuner.web.figures import FIGURES, Picture
from tuner.web.figures.style import THEMES
from tuner.web.report import words
from tuner.web.report.document import Report


def render_html(report: Report, *, for_print: bool = False) -> str:
    """The whole document.

    Args:
        report: what to show.
        for_print: light, as wide as a page of A4, without what needs a screen.
    """
    from jinja2 import Environment, PackageLoader
    from plotly.offline import get_plotlyjs

    environment = Environment(
        loader=PackageLoader("tuner.web.report"), autoescape=True, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    for name in words.FILTERS:
        environment.filters[name] = getattr(words, name)
    library, script = get_plotlyjs(), _resource("report.js")
    return environment.get_template("report.html.j2").render(
        report=report,
        facts=report.facts,
        figures=FIGURES,
        data={
            name: as_script_data(picture.to_json())
            for name, picture in report.pictures.items()
            if isinstance(picture, Picture)
        },
        themes=as_script_data(THEMES),
        style=_resource("report.css"),
        library=library,
        script=script,
        hashes=[script_hash(library), script_hash(script)],
        for_print=for_print,
        min_width=_min_width,
        height=_height,
    )


def _min_width(picture: Picture) -> int:
    """Pixels below which the figure scrolls sideways instead of shrinking."""
    return int((picture.figure.layout.meta or {}).get("min_width", 0))


def _height(picture: Picture) -> int:
    return int(picture.figure.layout.height or 450)


def _resource(name: str) -> str:
    return files("tuner.web.report").joinpath("templates", name).read_text(encoding="utf-8")


def as_script_data(value: Any) -> str:
    """JSON that may stand in a script block: no text in it can end the block or start a comment."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def script_hash(text: str) -> str:
    """The hash of an inline script as a content security policy names it."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
