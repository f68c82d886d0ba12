"""Which errors of a database pass by themselves: it is away, busy, full, read-only, or chose us to break a deadlock.

What passes is tried again with everything that was rolled back, for as long as it takes; it is not the record's fault
and takes none of its attempts. Everything else (a constraint, a wrong statement) is a failure of the handler.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

# PostgreSQL, by class: connection, rolled back (deadlock, serialization), out of resources, shutdown, system error.
_SQLSTATE_CLASSES = ("08", "40", "53", "57", "58")
_SQLSTATES = {"25006", "25P03", "55P03"}  # read-only, idle in transaction for too long, a lock not available
_NOT_PASSING = {"57014"}  # the statement's own timeout: it may be slow for ever
_SQLITE = {5, 6, 8, 10, 13, 14, 15}  # busy, locked, read-only, input/output, full, cannot open, protocol
_MYSQL = {
    *(3, 1021, 1026, 1030, 1114),  # no room, or a failing disk
    *(1037, 1040, 1041, 1203, 1226),  # no memory, no connection left
    *(1042, 1043, 1053, 1152, 1158, 1159, 1160, 1161, 1927, 2002, 2003, 2006, 2013, 2014, 2055),  # away, or going
    *(1020, 1205, 1213),  # a lock, a deadlock
    *(1290, 1792, 1836),  # read-only
}


def is_passing(error: BaseException) -> bool:
    """Whether to try again, and how often does not matter."""
    if isinstance(error, PoolTimeout):
        return True
    if not isinstance(error, DBAPIError):
        return False
    if error.connection_invalidated:
        return True
    orig: Any = error.orig
    if (code := getattr(orig, "sqlite_errorcode", None)) is not None:
        return code & 0xFF in _SQLITE
    number = orig.args[0] if orig is not None and orig.args else None
    if isinstance(number, int):  # MariaDB, MySQL; their states say less than their numbers
        return number in _MYSQL
    if hasattr(orig, "sqlstate"):  # PostgreSQL; without a state nobody answered
        state = orig.sqlstate
        if state is None:
            return isinstance(error, OperationalError | InterfaceError)
        return state not in _NOT_PASSING and (state[:2] in _SQLSTATE_CLASSES or state in _SQLSTATES)
    return isinstance(error, InterfaceError)
