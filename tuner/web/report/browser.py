"""PDF and image files by a headless Chromium: the engine that shows the report draws its files too.

No driver stands between: Chromium itself prints a page to PDF, and a page that turns its figures
into images is read back as the browser's dump of the document.
"""

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from tuner.errors import EnvironmentProblem
from tuner.web.figures.picture import Picture
from tuner.web.figures.style import THEMES

BROWSER_VARIABLE = "TUNER_BROWSER"
IMAGE_FORMATS = ("png", "svg")
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome",
          "microsoft-edge", "msedge")  # fmt: skip
_MAC = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"
_WIDTH, _SCALE = 900, 2
_TIMEOUT_S = 120.0
_HINT = (
    "install Chromium or Chrome (Debian and Ubuntu: apt-get install chromium) or name one in "
    f"{BROWSER_VARIABLE}; HTML, Markdown and JSON need none"
)


def find_browser() -> str:
    """Path of a Chromium or Chrome.

    Raises:
        EnvironmentProblem: there is none; the hint says what to install.
    """
    named = os.environ.get(BROWSER_VARIABLE)
    if named:
        found = shutil.which(named)
        if found is None:
            raise EnvironmentProblem(f"{BROWSER_VARIABLE} names {named!r}, which is no program")
        return found
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found is None and sys.platform == "darwin" and Path(_MAC).exists():
        found = _MAC
    if found is None:
        raise EnvironmentProblem(
            "PDF and images of figures need a browser, and none was found", _HINT
        )
    return found


def _run(arguments: Sequence[str], page: str) -> str:
    """Open a page in a headless browser of its own; what it wrote to standard output."""
    browser = find_browser()
    with tempfile.TemporaryDirectory(prefix="tuner-browser-") as folder:
        path = Path(folder, "page.html")
        path.write_text(page, encoding="utf-8")
        command = [
            browser, "--headless", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
            "--disable-extensions", "--disable-background-networking", "--disable-dev-shm-usage",
            f"--user-data-dir={folder}/profile", "--virtual-time-budget=60000",
            *(["--no-sandbox"] if _is_root() else []), *arguments, path.as_uri(),
        ]  # fmt: skip
        try:
            done = subprocess.run(  # noqa: S603 -- a browser that the user installed or named
                command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise EnvironmentProblem(f"{browser} did not end within {_TIMEOUT_S:.0f} s") from error
        except OSError as error:
            raise EnvironmentProblem(f"{browser} cannot be started: {error.strerror}") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise EnvironmentProblem(f"{browser} failed with exit code {done.returncode}: {last}")
    return done.stdout


def _is_root() -> bool:
    """Chromium refuses its sandbox to root, as in most containers; the page is our own."""
    return hasattr(os, "geteuid") and os.geteuid() == 0


def write_pdf(page: str, target: Path) -> None:
    """Print an HTML page to a PDF file.

    Raises:
        EnvironmentProblem: no browser, or it failed.
    """
    _run([f"--print-to-pdf={target.absolute()}", "--no-pdf-header-footer"], page)
    if not target.exists():
        raise EnvironmentProblem("the browser wrote no PDF", _HINT)


def write_images(
    pictures: Mapping[str, Picture], folder: Path, image_format: str, theme: str = "light"
) -> dict[str, Path]:
    """Write every figure to `folder`/NAME.FORMAT; returns the files by name.

    Raises:
        EnvironmentProblem: no browser, or it failed.
    """
    from plotly.offline import get_plotlyjs

    folder.mkdir(parents=True, exist_ok=True)
    figures = {name: _themed(picture, theme) for name, picture in pictures.items()}
    data = json.dumps(figures, allow_nan=False).replace("<", "\\u003c")
    options = json.dumps({"format": image_format, "scale": _SCALE if image_format == "png" else 1})
    page = _PAGE % {"library": get_plotlyjs(), "data": data, "options": options, "width": _WIDTH}
    found = re.search(r'<pre id="out">(.*?)</pre>', _run(["--dump-dom"], page), re.DOTALL)
    if found is None:
        raise EnvironmentProblem("the browser drew no figures", _HINT)
    urls = json.loads(
        found.group(1).replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    )
    files = {}
    for name, url in urls.items():
        files[name] = folder / f"{name}.{image_format}"
        files[name].write_bytes(_payload(url))
    return files


def _themed(picture: Picture, theme: str) -> dict[str, Any]:
    figure = picture.to_json()
    figure["layout"] = {**figure["layout"], "template": THEMES[theme]}
    return figure


def _payload(url: str) -> bytes:
    """The bytes of a data URL, in either of its two encodings."""
    head, _, body = url.partition(",")
    return base64.b64decode(body) if head.endswith(";base64") else unquote(body).encode()


_PAGE = """<!doctype html><meta charset="utf-8"><body><script>%(library)s</script>
<script type="application/json" id="data">%(data)s</script><script>
(async () => {
  const figures = JSON.parse(document.getElementById("data").textContent);
  const found = {};
  for (const [name, figure] of Object.entries(figures)) {
    found[name] = await Plotly.toImage(figure,
      {...%(options)s, width: %(width)d, height: figure.layout.height || 450});
  }
  document.body.innerHTML = '<pre id="out"></pre>';
  document.getElementById("out").textContent = JSON.stringify(found);
})();
</script></body>"""
