"""The database's own clock, in milliseconds since 1970, as an expression: one clock for all who share a table."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement


class now_ms(FunctionElement[int]):  # noqa: N801  a function of SQL
    """Milliseconds since 1970, whatever time zone the session has."""

    type = BigInteger()
    inherit_cache = True


@compiles(now_ms, "sqlite")
def _sqlite(_element: Any, _compiler: Any, **_: Any) -> str:
    return "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)"


@compiles(now_ms, "postgresql")
def _postgresql(_element: Any, _compiler: Any, **_: Any) -> str:
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)"


@compiles(now_ms, "mysql")
@compiles(now_ms, "mariadb")
def _mariadb(_element: Any, _compiler: Any, **_: Any) -> str:
    # Not UNIX_TIMESTAMP(NOW()): that goes through the session's time zone, and an hour of autumn comes twice.
    return "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000)"
