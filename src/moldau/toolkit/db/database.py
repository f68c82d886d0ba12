"""An engine, plain or async, or a URL from which either is made: what the patterns need of SQLAlchemy.

Our own statements are plain functions of a `Connection`; `run` calls one in a transaction, in a thread or through the
async engine. A handler's transaction is of its own kind: plain functions get a plain one, async functions an async one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Engine, MetaData, Table, create_engine, event, inspect, make_url
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import SingletonThreadPool, StaticPool

from moldau.toolkit.db.trouble import is_passing
from moldau.toolkit.errors import SetupError

log = logging.getLogger("moldau.toolkit")
T = TypeVar("T")

_ASYNC_DRIVERS = {"sqlite": "sqlite+aiosqlite", "mysql": "mysql+asyncmy", "mariadb": "mariadb+asyncmy"}
_SQLITE_WAIT_S = 30
WAIT_S_FIRST, WAIT_S_MAX = 0.1, 5.0


class Database:
    """See the module. What was made from a URL is closed by `close`; engines that were given are their owner's."""

    def __init__(self, engine: Engine | AsyncEngine | str | URL) -> None:
        self._url: URL | None = None
        self._plain: Engine | None = None
        self._async: AsyncEngine | None = None
        self._is_closed = False
        self._making = threading.Lock()  # of two engines made by two threads at once, one would be lost, still open
        match engine:
            case Engine():
                self._plain = engine
            case AsyncEngine():
                self._async = engine
            case _:
                self._take_url(engine)
        given = self._plain or (self._async.sync_engine if self._async is not None else None)
        if given is not None and isinstance(given.pool, StaticPool | SingletonThreadPool):
            raise SetupError("a database in memory has one connection, and every transaction needs its own: use a file")

    def _take_url(self, engine: str | URL) -> None:
        try:
            url = make_url(engine)
            is_async = url.get_dialect().is_async
        except (ArgumentError, NoSuchModuleError, ImportError) as error:
            raise SetupError(f"{engine!r} names no database: {error}") from error
        if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
            raise SetupError("a database in memory has one connection, and every transaction needs its own: use a file")
        self._url = url
        if is_async:
            self._async = self._made_async(url)

    @property
    def dialect(self) -> str:
        """sqlite, postgresql, mysql or mariadb."""
        if self._url is not None:
            return self._url.get_backend_name()
        engine = self._plain or self._async
        assert engine is not None
        return engine.dialect.name

    def suits(self, *, is_async: bool) -> bool:
        """Whether async (or plain) functions can use it."""
        if self._url is not None:
            return is_async or not self._url.get_dialect().is_async
        return (self._async if is_async else self._plain) is not None

    @property
    def plain(self) -> Engine:
        with self._making:
            if self._plain is None:
                assert self._url is not None
                made = create_engine(self._url, connect_args=self._connect_args(), pool_pre_ping=True)
                _tune(made)
                event.listen(made, "checkin", self._on_checkin)
                self._plain = made
            return self._plain

    @property
    def asynchronous(self) -> AsyncEngine:
        with self._making:
            if self._async is None:
                assert self._url is not None
                driver = _ASYNC_DRIVERS.get(self._url.get_backend_name(), self._url.drivername)
                self._async = self._made_async(self._url.set(drivername=driver))
            return self._async

    def _made_async(self, url: URL) -> AsyncEngine:
        try:
            engine = create_async_engine(url, connect_args=self._connect_args(), pool_pre_ping=True)
        except ImportError as error:
            raise SetupError(f"{url.drivername} is not installed: {error}") from error
        _tune(engine.sync_engine)
        return engine

    def _connect_args(self) -> dict[str, Any]:
        return {"timeout": _SQLITE_WAIT_S} if self._url is not None and self.dialect == "sqlite" else {}

    async def run(self, work: Callable[[Connection], T]) -> T:
        """Call it in a transaction of its own."""
        if self._async is not None and self._plain is None:
            async with self._async.execution_options(**self._calm()).begin() as connection:
                return await connection.run_sync(work)
        self.prepare(is_async=False)
        return await asyncio.to_thread(self.run_here, work)

    def prepare(self, *, is_async: bool) -> None:
        """Make the engine now, in this thread: SQLAlchemy's registry of events is not made for two at once."""
        self._is_closed = False  # an app may be started again
        _ = self.asynchronous if is_async else self.plain

    def run_here(self, work: Callable[[Connection], T]) -> T:
        """The same in this thread; blocks."""
        with self.plain.execution_options(**self._calm()).begin() as connection:
            return work(connection)

    def _calm(self) -> dict[str, Any]:
        """Our own statements lock the rows they change, and no gaps beside them."""
        return {} if self.dialect == "sqlite" else {"isolation_level": "READ COMMITTED"}

    async def run_patiently(self, work: Callable[[Connection], T], what: str) -> T:
        """Until it works; while the database is away, say so and wait."""
        wait_s = WAIT_S_FIRST
        while True:
            try:
                return await self.run(work)
            except (DBAPIError, OSError) as error:
                if isinstance(error, DBAPIError) and not is_passing(error):
                    raise
                log.warning("%s: the database does not do it (%s); trying on", what, brief(error))
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, WAIT_S_MAX)

    async def _run_at_once(self, work: Callable[[Connection], T], _what: str) -> T:
        return await self.run(work)

    async def create(self, metadata: MetaData, *, patiently: bool = True) -> None:
        """Make the tables that are not there; several may do so at once."""
        run = self.run_patiently if patiently else self._run_at_once

        def missing(connection: Connection) -> set[str]:
            return set(metadata.tables) - set(inspect(connection).get_table_names())

        def create(connection: Connection) -> None:
            if missing(connection):
                metadata.create_all(connection)

        try:
            await run(create, "making tables")
        except DBAPIError:
            if await run(missing, "looking for tables"):
                raise
            # Somebody else was quicker.

    def _on_checkin(self, connection: Any, record: Any) -> None:
        """A thread whose caller was cancelled works on, and gives its connection back after the pool was closed."""
        if self._is_closed and connection is not None:
            record.invalidate()

    async def close(self) -> None:
        if self._url is None:
            return
        self._is_closed = True
        if self._async is not None:
            await self._async.dispose()
        if self._plain is not None:
            await asyncio.to_thread(self._plain.dispose)


def _tune(engine: Engine) -> None:
    """Of SQLite: readers and a writer at the same time."""
    if engine.dialect.name == "sqlite":

        @event.listens_for(engine, "connect")
        def _set(connection: Any, _record: Any) -> None:
            with contextlib.closing(connection.cursor()) as cursor:
                cursor.execute("PRAGMA journal_mode=WAL")


def insert_or_ignore(table: Table, dialect: str) -> Any:
    """An insert that leaves alone what is there, and waits for whoever is just writing it; `rowcount` tells."""
    if dialect in ("sqlite", "postgresql"):
        statement: Any = (sqlite if dialect == "sqlite" else postgresql).insert(table).on_conflict_do_nothing()
    elif dialect in ("mysql", "mariadb"):
        statement = mysql.insert(table).prefix_with("IGNORE")
    else:
        raise SetupError(f"{dialect}: SQLite, PostgreSQL, MariaDB and MySQL are what it can")
    return statement.execution_options(preserve_rowcount=True)


def brief(error: BaseException) -> str:
    """One line of what a database said."""
    orig = getattr(error, "orig", None)
    return (str(orig or error).splitlines() or [repr(error)])[0]
