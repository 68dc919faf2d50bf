"""Ids of rows that are never changed or deleted, remembered so that writes need not ask for them.

Only what is committed is remembered: a transaction collects what it learns, and it is kept when the
commit is through. So an id that was rolled back is never used again.
"""

from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine

_Key = tuple[str, str]
_Known = dict[_Key, tuple[int, object]]

_MOST = 50_000
"""Ids remembered of one database; beyond, all are asked for anew."""
_STAGED = "results_db_staged_ids"
_OF_ENGINE: WeakKeyDictionary[Engine, _Known] = WeakKeyDictionary()


def begin(connection: Connection) -> _Known:
    """What the transaction that begins now will learn; given to `commit` when it is through."""
    staged: _Known = {}
    connection.execution_options(**{_STAGED: staged})
    return staged


def commit(engine: Engine, staged: _Known) -> None:
    """Keep what a committed transaction learnt."""
    if not staged:
        return
    known = _OF_ENGINE.setdefault(engine, {})
    if len(known) + len(staged) > _MOST:
        known.clear()
    known.update(staged)


def find(connection: Connection, table: str, key: str) -> tuple[int, object] | None:
    """The id and what was remembered with it; none when it must be asked for."""
    known = _OF_ENGINE.get(connection.engine, {}).get((table, key))
    return known or connection.get_execution_options().get(_STAGED, {}).get((table, key))


def learn(connection: Connection, table: str, key: str, found: int, facts: object = None) -> None:
    """Remember an id once the running transaction is committed; without effect in a read."""
    staged = connection.get_execution_options().get(_STAGED)
    if staged is not None and len(staged) < _MOST:
        staged[table, key] = (found, facts)
