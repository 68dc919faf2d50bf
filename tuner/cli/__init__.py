"""The `tuner` command. Errors become one line on standard error and a documented exit code."""

import os
import signal
import sys
from collections.abc import Sequence

from tuner.errors import TunerError

EXIT_OK = 0
EXIT_BUG = 1
EXIT_USAGE = 2
EXIT_STORAGE = 5
EXIT_REGRESSION = 7
EXIT_INTERRUPTED = 128 + signal.SIGINT


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        0 ok, 1 a fault of the tuner, 2 usage or study file, 3 nothing feasible, 4 environment,
        5 results database, 6 not expressible for a trainer, 7 slower than before
        (`tuner compare`), 130 interrupted.
    """
    from tuner.cli.group import tuner

    try:
        code = tuner.main(
            args=None if arguments is None else list(arguments),
            prog_name="tuner",
            standalone_mode=False,
        )
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of a pipe (`| head`) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except KeyboardInterrupt:
        return _say("interrupted", "", EXIT_INTERRUPTED)
    except Exception as error:
        return _report(error)
    return code if isinstance(code, int) else EXIT_OK


def _report(error: Exception) -> int:
    """Say what went wrong and choose the exit code."""
    import click

    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, click.Abort):
        return _say("interrupted", "", EXIT_INTERRUPTED)
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        print(error.format_message())
        return EXIT_OK
    if isinstance(error, click.ClickException):
        ctx = getattr(error, "ctx", None)
        hint = f"see `{ctx.command_path} --help`" if ctx else ""
        return _say(error.format_message(), hint, error.exit_code)
    if isinstance(error, TunerError):
        return _say(error.message, error.hint, error.exit_code, error)
    return _report_foreign(error)


def _report_foreign(error: Exception) -> int:
    """Errors of the packages below this one, and what nobody expected."""
    from results_db.errors import InvalidQuery, ResultsDbError
    from search_spaces.errors import SearchSpaceError

    if isinstance(error, SearchSpaceError):
        return _say(error.message, error.hint, EXIT_USAGE, error)
    if isinstance(error, ResultsDbError):
        code = EXIT_USAGE if isinstance(error, InvalidQuery) else EXIT_STORAGE
        return _say(error.message, error.hint, code, error)
    what = f"{type(error).__name__}: {error}".rstrip(": ")
    return _say(f"the tuner failed: {what}", "run with -v for the traceback", EXIT_BUG, error)


def _say(message: str, hint: str, code: int, error: Exception | None = None) -> int:
    """One line for the error, one for the hint; the traceback only where it was asked for."""
    import logging
    import traceback

    if error is not None and logging.getLogger("tuner").level in (logging.INFO, logging.DEBUG):
        traceback.print_exception(error, file=sys.stderr)
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    if hint:
        print(f"hint: {' '.join(hint.split())}", file=sys.stderr)
    return code
