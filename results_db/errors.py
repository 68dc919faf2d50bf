"""Errors of the results database, each with a sentence that says what is wrong and a hint.

ResultsDbError
├── NotFound             no such study, trial or database
├── AlreadyExists        the name or the trial is taken
├── IllegalTransition    a trial or study cannot change in this way
│   └── LeaseLost        it belongs to another process now
├── InvalidRecord        a record that cannot be stored (unknown knob, NaN time, naive date)
├── Busy                 another controller owns the study
│   └── Locked           another writer held the database for too long
├── ReadOnly             a write on a database or query opened for reading
├── InvalidQuery         a user's SQL that the database refused
├── DatabaseUnreadable   not a results database, or damaged
│   └── Unreachable      the server does not answer, or the file is gone
├── OutdatedDatabase     written by an older version: upgrade it
└── NewerDatabase        written by a newer version than this program
"""


class ResultsDbError(Exception):
    """Base of this package: a sentence that says what is wrong, and a hint that says what helps."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class NotFound(ResultsDbError):
    """No such study, trial or database."""


class AlreadyExists(ResultsDbError):
    """The study name is taken, or the same trial was stored before."""


class IllegalTransition(ResultsDbError):
    """The trial or study is not in a state from which it can change in this way."""


class LeaseLost(IllegalTransition):
    """The trial belongs to another process now: it was requeued and claimed again."""


class InvalidRecord(ResultsDbError):
    """A record holds a value that the schema has no place for."""


class Busy(ResultsDbError):
    """Another writer held the database for too long, or a live controller owns the study."""


class Locked(Busy):
    """Another writer is in the way; the same transaction may pass when it is begun anew."""


class ReadOnly(ResultsDbError):
    """A write was asked of a database that is open for reading."""


class InvalidQuery(ResultsDbError):
    """The database refused a user's SQL: wrong, not read-only, or over its limits."""


class DatabaseUnreadable(ResultsDbError):
    """The file or server is no results database, is damaged, or cannot be reached."""


class Unreachable(DatabaseUnreadable):
    """The server does not answer or went away, or the file was moved; it may come back."""


class OutdatedDatabase(ResultsDbError):
    """The database was written by an older version of the program."""


class NewerDatabase(ResultsDbError):
    """The database was written by a newer version of the program."""
