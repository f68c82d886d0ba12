"""A handler's call inside a database transaction: begin, enter, call, leave, commit.

`enter` and `leave` are the pattern's own statements. When the database is away, busy, full or read-only at any of
these, everything is rolled back and done again, for as long as the partition is ours: such trouble takes none of the
record's attempts. What the handler itself raises is its failure.

Steps, in their order, for tests that kill the process after each: begun, entered, handled, left, committed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from moldau.toolkit.db.database import WAIT_S_FIRST, WAIT_S_MAX, Database, brief
from moldau.toolkit.db.trouble import is_passing
from moldau.toolkit.errors import SetupError
from moldau.toolkit.message import Message

if TYPE_CHECKING:
    from moldau.toolkit.handling import Function
    from moldau.toolkit.spec import HandlerSpec

log = logging.getLogger("moldau.toolkit")

STEPS = ("begun", "entered", "handled", "left", "committed")
Step = Callable[[str], None]
_CURRENT: ContextVar[Transaction] = ContextVar("moldau-transaction")


def nobody_watches(_step: str) -> None:
    """The usual case."""


class AlreadyDone(Exception):
    """Raised by `leave`: somebody has done it already. Everything is rolled back, and the record is finished."""


class Transaction:
    """What a handler's parameters are taken from."""

    __slots__ = ("_session", "connection")

    def __init__(self, connection: Connection | AsyncConnection) -> None:
        self.connection = connection
        self._session: Session | AsyncSession | None = None

    @property
    def session(self) -> Session | AsyncSession:
        """A session on the connection; its `commit` only flushes, the transaction ends after the handler."""
        if self._session is None:
            connection = self.connection
            self._session = Session(connection) if isinstance(connection, Connection) else AsyncSession(connection)
        return self._session

    def flush(self) -> None:
        if isinstance(self._session, Session):
            self._session.flush()

    async def flush_async(self) -> None:
        if isinstance(self._session, AsyncSession):
            await self._session.flush()


def provider(hint: Any, *, is_async: bool, name: str) -> Callable[[Message], Any] | None:
    """What gives a parameter of that annotation its argument; None if it is nothing of ours."""
    if hint in (Connection, Session):
        fits = not is_async
    elif hint in (AsyncConnection, AsyncSession):
        fits = is_async
    else:
        return None
    if not fits:
        right = "AsyncConnection or AsyncSession" if is_async else "Connection or Session"
        raise SetupError(f"{name}: {'an async' if is_async else 'a plain'} handler takes {right}, not {hint.__name__}")
    if hint in (Connection, AsyncConnection):
        return lambda _: _CURRENT.get().connection
    return lambda _: _CURRENT.get().session


def check(database: Database, spec: HandlerSpec, function: Function, name: str) -> None:
    """What cannot be kept is refused when the handler is declared."""
    options = spec.options
    if options.to is not None:
        raise SetupError(
            f"{function.name}: with once= there is no to=: a crash after the transaction would lose the result. "
            "Send it through an outbox, in the same transaction"
        )
    if options.commit != "after":
        raise SetupError(f'{function.name}: once= needs commit="after"')
    if not database.suits(is_async=function.is_async):
        kind, wanted = ("an async", "an AsyncEngine") if function.is_async else ("a plain", "an Engine")
        raise SetupError(f"{function.name} is {kind} function: give the {name} {wanted}, or a URL")
    database.prepare(is_async=function.is_async)


@dataclass(slots=True, frozen=True)
class Transactions:
    """See the module."""

    database: Database
    enter: Callable[[Connection, Message], bool]  # False: nothing to do, the record is finished
    leave: Callable[[Connection, Message], None]
    step: Step

    async def handle(self, message: Message, call: Callable[[], Awaitable[Any]]) -> Any:
        """For an async handler."""
        wait_s = WAIT_S_FIRST
        while True:
            where = _Where()
            try:
                return await self._once_async(message, call, where)
            except AlreadyDone:
                return None
            except Exception as error:
                self._ponder(error, message, where)
            await asyncio.sleep(wait_s)
            if not message.is_ours:
                return None  # the partition's next owner does it; what is returned now does not count
            wait_s = min(2 * wait_s, WAIT_S_MAX)

    async def _once_async(self, message: Message, call: Callable[[], Awaitable[Any]], where: _Where) -> Any:
        async with self.database.asynchronous.begin() as connection:
            self.step("begun")
            if not await connection.run_sync(self.enter, message):
                return None
            self.step("entered")
            transaction = Transaction(connection)
            token = _CURRENT.set(transaction)
            where.in_handler = True
            try:
                result = await call()
                await transaction.flush_async()
            finally:
                _CURRENT.reset(token)
            where.in_handler = False
            self.step("handled")
            await connection.run_sync(self.leave, message)
            self.step("left")
        self.step("committed")
        return result

    def handle_plain(self, message: Message, call: Callable[[], Any], given_up: threading.Event) -> Any:
        """For a plain handler, all of it in one thread. `given_up`: nobody waits for the result any more."""
        wait_s = WAIT_S_FIRST
        while True:
            where = _Where()
            try:
                return self._once_plain(message, call, where)
            except AlreadyDone:
                return None
            except Exception as error:
                self._ponder(error, message, where)
            if given_up.wait(wait_s) or not message.is_ours:
                return None
            wait_s = min(2 * wait_s, WAIT_S_MAX)

    def _once_plain(self, message: Message, call: Callable[[], Any], where: _Where) -> Any:
        with self.database.plain.begin() as connection:
            self.step("begun")
            if not self.enter(connection, message):
                return None
            self.step("entered")
            transaction = Transaction(connection)
            token = _CURRENT.set(transaction)
            where.in_handler = True
            try:
                result = call()
                transaction.flush()
            finally:
                _CURRENT.reset(token)
            where.in_handler = False
            self.step("handled")
            self.leave(connection, message)
            self.step("left")
        self.step("committed")
        return result

    @staticmethod
    def _ponder(error: Exception, message: Message, where: _Where) -> None:
        """Raise what does not pass by itself. A refused connection is the database's if we made it, not the handler."""
        if not is_passing(error) and (where.in_handler or not isinstance(error, OSError)):
            raise error
        log.warning("%r: the database does not do it (%s); trying on", message, brief(error))


class _Where:
    __slots__ = ("in_handler",)

    def __init__(self) -> None:
        self.in_handler = False
