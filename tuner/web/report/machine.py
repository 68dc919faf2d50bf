"""The report for machines: every fact and caption as JSON values."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tuner.web.figures import FIGURES, Picture
from tuner.web.report.document import Report


def as_document(report: Report, images: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Facts by name, and per figure its caption or why there is none; `images` are its files."""
    return {
        "study_name": report.title,
        "headline": report.headline,
        "doubts": report.doubts,
        **asdict(report.facts),
        "figures": {
            name: {
                "title": spec.title,
                "question": spec.question,
                **_told(report, name),
                "file": (images or {}).get(name),
            }
            for name, spec in FIGURES.items()
        },
    }


def _told(report: Report, name: str) -> dict[str, Any]:
    picture = report.pictures[name]
    if isinstance(picture, Picture):
        return {"caption": picture.caption, "missing": None}
    return {"caption": None, "missing": picture.reason}
