"""The report of a study: one document to read, send and print."""

from tuner.web.report.document import Report, make_report

__all__ = ["Report", "make_report"]
