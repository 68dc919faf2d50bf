"""Logging for people: one line a record on standard error. Only the command line sets it up."""

import logging
import sys

OUR_PACKAGES = ("tuner", "trainer", "search_spaces", "results_db")
_LEVELS = {-1: logging.ERROR, 0: logging.WARNING, 1: logging.INFO, 2: logging.DEBUG}


class _StandardError(logging.Handler):
    """Writes to what `sys.stderr` is now, so that a live display can keep lines apart from it."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr)  # noqa: T201 -- a log handler writes
        except OSError:  # nobody reads standard error any more
            return
        except Exception:
            self.handleError(record)


class _OneLine(logging.Formatter):
    """`warning: text`; the module and the traceback only for those who asked for more."""

    def __init__(self, verbosity: int) -> None:
        super().__init__()
        self._verbosity = verbosity

    def format(self, record: logging.LogRecord) -> str:
        where = f" [{record.name}]" if self._verbosity > 0 else ""
        text = f"{record.levelname.lower()}: {record.getMessage()}{where}"
        if self._verbosity > 0 and record.exc_info:
            text += f"\n{self.formatException(record.exc_info)}"
        return text


def configure_logging(verbosity: int = 0) -> None:
    """Send log records to standard error; calling it again replaces what was set before.

    Args:
        verbosity: -1 errors only, 0 warnings, 1 what is being done, 2 and more every detail. Other
            people's libraries speak one step less.
    """
    bounded = max(-1, min(2, verbosity))
    root = logging.getLogger()
    for handler in [item for item in root.handlers if isinstance(item, _StandardError)]:
        root.removeHandler(handler)
    handler = _StandardError()
    handler.setFormatter(_OneLine(bounded))
    root.addHandler(handler)
    root.setLevel(_LEVELS[max(-1, bounded - 1)] if bounded > 0 else _LEVELS[bounded])
    for package in OUR_PACKAGES:
        logging.getLogger(package).setLevel(_LEVELS[bounded])
