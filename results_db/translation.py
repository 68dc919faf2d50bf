"""Driver errors in our words. Messages never carry a URL's password or a statement's values."""

from sqlalchemy.exc import DBAPIError, IntegrityError, NoSuchModuleError, OperationalError

from results_db.errors import (
    AlreadyExists,
    DatabaseUnreadable,
    InvalidRecord,
    Locked,
    ReadOnly,
    ResultsDbError,
    Unreachable,
)

_REPEATABLE_STATES = frozenset({"40001", "40P01", "55P03"})
"""PostgreSQL: serialization failure, deadlock, lock not available."""
_GONE_STATES = ("08", "57P01", "57P02", "57P03")
"""PostgreSQL: connection lost, shut down by an administrator or after a crash, starting up."""
_BUSY_NAMES = ("SQLITE_BUSY", "SQLITE_LOCKED")
_DAMAGED_NAMES = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_FORMAT")


def _sqlite_name(error: BaseException) -> str:
    return str(getattr(getattr(error, "orig", None), "sqlite_errorname", "") or "")


def _sqlstate(error: BaseException) -> str:
    return str(getattr(getattr(error, "orig", None), "sqlstate", "") or "")


def _is_locked(error: BaseException) -> bool:
    """Whether the same transaction may pass when it is begun anew."""
    return _sqlite_name(error).startswith(_BUSY_NAMES) or _sqlstate(error) in _REPEATABLE_STATES


def translate(error: BaseException, where: str) -> ResultsDbError:
    """Our error for a driver's; `where` is the database as it may be shown."""
    inner = getattr(error, "orig", None)
    if isinstance(inner, ResultsDbError):
        return inner  # a column type of ours refused a value
    if isinstance(error, OverflowError) or isinstance(inner, OverflowError):
        return _TOO_LARGE
    if isinstance(error, DBAPIError):
        return _of_driver(error, where)
    if isinstance(error, ImportError | NoSuchModuleError):
        return DatabaseUnreadable(
            "PostgreSQL needs the package psycopg", 'pip install "parallel-tuner[postgres]"'
        )
    return DatabaseUnreadable(f"{where} cannot be used: {error}")


_TOO_LARGE = InvalidRecord("A whole number does not fit in 64 bits", "store it as a float")


def _of_driver(error: DBAPIError, where: str) -> ResultsDbError:
    """Our error for one that the database or its driver raised."""
    if _is_locked(error):
        return Locked(f"{where} is locked by another writer", "try again, or end the other writer")
    if isinstance(error, IntegrityError):
        return _integrity(error, where)
    name, state = _sqlite_name(error), _sqlstate(error)
    if name.startswith(_DAMAGED_NAMES):
        return DatabaseUnreadable(f"{where} is not a database or is damaged")
    if name.startswith("SQLITE_READONLY") or state in ("25006", "42501"):
        return ReadOnly(f"{where} may not be written", "check the file's and the role's rights")
    if state == "22003":
        return _TOO_LARGE
    return _other(error, where, name, state)


def _other(error: DBAPIError, where: str, name: str, state: str) -> ResultsDbError:
    if name.startswith(("SQLITE_CANTOPEN", "SQLITE_IOERR", "SQLITE_FULL", "SQLITE_PERM")):
        return DatabaseUnreadable(f"{where} cannot be opened or written: {error.orig}")
    is_silent = isinstance(error, OperationalError) and not state and not name
    if is_silent or error.connection_invalidated or state.startswith(_GONE_STATES):
        # without SQLSTATE the server was never reached; the driver's text may repeat the password
        return Unreachable(f"{where} cannot be reached", "check host, port, user and password")
    first_line = str(error.orig).strip().splitlines()[:1]
    return DatabaseUnreadable(f"{where} refused a statement: {''.join(first_line)}")


def _integrity(error: IntegrityError, where: str) -> ResultsDbError:
    name, state = _sqlite_name(error), _sqlstate(error)
    if name in ("SQLITE_CONSTRAINT_UNIQUE", "SQLITE_CONSTRAINT_PRIMARYKEY") or state == "23505":
        return AlreadyExists(f"The record is already in {where}")
    constraint = getattr(getattr(error.orig, "diag", None), "constraint_name", None)
    detail = constraint or str(error.orig).splitlines()[0]
    return InvalidRecord(f"A record breaks a rule of the schema: {detail}")
