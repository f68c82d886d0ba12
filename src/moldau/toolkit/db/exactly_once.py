"""Exactly once into a database (C10): the offset of a record is stored in the transaction of its result.

    @app.handler("orders", order="partition", once=ExactlyOnce("postgresql+psycopg://…"))
    def book(order: Order, transaction: Connection) -> None: ...

When partitions are assigned, their rows get a new epoch, and reading begins where the rows say: they are the truth, not
the group's commits, which only follow. A transaction ends by moving its partition's offset under its own epoch; an old
owner's finds another epoch there and is rolled back. If a row was taken although the group says that the partition is
ours (by a former member that woke up late), it is taken again; the group's generation decides who may: a commit that
the coordinator refuses comes first.

Invariants: a partition's offset only moves together with the results before it. There is one epoch in which it can
move, and it belongs to the last who took the partition over.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    URL,
    BigInteger,
    Column,
    Connection,
    Engine,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    select,
    update,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.asyncio import AsyncEngine

from moldau.toolkit.db.clock import now_ms
from moldau.toolkit.db.database import Database, insert_or_ignore
from moldau.toolkit.db.once import digest_of
from moldau.toolkit.db.transactions import AlreadyDone, Step, Transactions, check, nobody_watches, provider
from moldau.toolkit.errors import SetupError, ToolkitError
from moldau.toolkit.handling import Function
from moldau.toolkit.message import Message
from moldau.toolkit.offset_map import Noted
from moldau.toolkit.positions import Start
from moldau.toolkit.scheduler import Where

if TYPE_CHECKING:
    from moldau.toolkit.spec import HandlerSpec, Home

log = logging.getLogger("moldau.toolkit")

_DIGEST_BYTES = 32
_AGAIN_S = 1.0
_LOOK_S = 0.02


class Fenced(ToolkitError):
    """Somebody else has taken the partition over: nothing of this transaction counts."""


class ExactlyOnce:
    """See the module. It may serve many handlers of one group."""

    def __init__(
        self,
        engine: Engine | AsyncEngine | str | URL,
        *,
        table: str = "moldau_offsets",
        create: bool = True,
        on_step: Step = nobody_watches,
    ) -> None:
        self.database = Database(engine)
        self.metadata = MetaData()
        digest = LargeBinary(_DIGEST_BYTES).with_variant(mysql.BINARY(_DIGEST_BYTES), "mysql", "mariadb")
        self.table = Table(
            table,
            self.metadata,
            Column("digest", digest, primary_key=True),
            Column("consumer", String(255), nullable=False),
            Column("topic", String(255), nullable=False),
            Column("partition_index", Integer, nullable=False),
            Column("next_offset", BigInteger, nullable=False),
            Column("epoch", BigInteger, nullable=False),
            Column("at_ms", BigInteger, nullable=False),
            mysql_charset="utf8mb4",
            mariadb_charset="utf8mb4",
        )
        self._create = create
        self._group = ""
        self._app: Home | None = None
        self._epochs: dict[Where, tuple[int, int]] = {}  # the generation of the app's assignment, and our epoch
        self._asked: dict[Where, float] = {}
        self._transactions = Transactions(self.database, self._enter, self._leave, on_step)

    # Asked by the app.

    def attach(self, app: Home, spec: HandlerSpec, function: Function) -> None:
        """A handler is declared with it."""
        check(self.database, spec, function, "ExactlyOnce")
        if spec.options.order != "partition":
            raise SetupError(f'{function.name}: offsets are stored one after the other: give order="partition"')
        if spec.options.retry.later and not spec.options.retry.keep_order:
            raise SetupError(
                f"{function.name}: a crash could send a record to its retry topic twice: give Retry(…, "
                "keep_order=True), or use a Store, which knows records by their id"
            )
        if self._app not in (None, app) or self._group not in ("", spec.group):
            raise SetupError("an ExactlyOnce serves the handlers of one group: make another for the other")
        if self._app is None:
            self._app, self._group = app, spec.group
            app.on_start(self.start)
            app.on_stop(self.database.close)

    def provides(self, hint: Any, *, is_async: bool, name: str) -> Callable[[Message], Any] | None:
        """What gives a handler a parameter of this type, such as its session; None: it is not ours to give."""
        return provider(hint, is_async=is_async, name=name)

    async def start(self) -> None:
        """Make the tables, if they are to be made (`create`)."""
        if self._create:
            await self.database.create(self.metadata)

    async def handle(self, message: Message, call: Callable[[], Awaitable[Any]]) -> Any:
        """Call the handler in a transaction, which also says that this message is done."""
        try:
            return await self._transactions.handle(message, call)
        except Fenced as error:
            log.info("%r: %s", message, error)
            while message.is_ours:  # until the group has told, or the partition is taken again
                self._take_again(message)
                await asyncio.sleep(_LOOK_S)
        return None  # it does not count: the partition is not ours any more as it was

    def handle_plain(self, message: Message, call: Callable[[], Any], given_up: threading.Event) -> Any:
        """The same for a handler that is no coroutine, on its thread."""
        try:
            return self._transactions.handle_plain(message, call, given_up)
        except Fenced as error:
            log.info("%r: %s", message, error)
            while message.is_ours and not given_up.wait(_LOOK_S):
                self._take_again(message)
        return None

    def _take_again(self, message: Message) -> None:
        """Now and then, ask for the partition once more."""
        where, now = message.entry.part.where, time.monotonic()
        assert self._app is not None
        if now - self._asked.get(where, -_AGAIN_S) >= _AGAIN_S:
            self._asked[where] = now
            for group in self._app.groups:
                if group.name == self._group:
                    group.take_again(where, message.generation)

    # Taking over.

    async def take_over(self, generation: int, starts: Sequence[Start], is_moved: bool) -> list[Start]:
        """These are assigned to us: from now on nobody else moves them. Returns where the database says they begin.

        `is_moved`: somebody sought there; then the database follows."""

        def work(connection: Connection) -> list[tuple[int, int]]:
            return [self._take(connection, start, is_moved) for start in starts]

        rows = await self.database.run_patiently(work, "taking partitions over")
        found = []
        for start, (offset, epoch) in zip(starts, rows, strict=True):
            self._epochs[start.where] = (generation, epoch)
            found.append(Start(start.where, offset, Noted((), start.noted.anchor), start.is_first))
        return found

    def _take(self, connection: Connection, start: Start, is_moved: bool) -> tuple[int, int]:
        topic, index = start.where
        rows, key = self.table.c, self._key(start.where)
        first = {
            "digest": key,
            "consumer": self._group[:255],
            "topic": topic,
            "partition_index": index,
            "next_offset": start.offset,
            "epoch": 0,
            "at_ms": now_ms(),
        }
        connection.execute(insert_or_ignore(self.table, connection.dialect.name).values(first))
        more: dict[str, Any] = {"next_offset": start.offset} if is_moved else {}
        connection.execute(
            update(self.table).where(rows.digest == key).values(epoch=rows.epoch + 1, at_ms=now_ms(), **more)
        )
        offset, epoch = connection.execute(select(rows.next_offset, rows.epoch).where(rows.digest == key)).one()
        return int(offset), int(epoch)

    def _key(self, where: Where) -> bytes:
        return digest_of(self._group, where[0], str(where[1]))

    # The transaction.

    def _enter(self, _connection: Connection, message: Message) -> bool:
        self._epoch_of(message)
        return True

    def _leave(self, connection: Connection, message: Message) -> None:
        """Last, so that the row is locked for a moment only: whoever takes over does not wait for a long handler."""
        rows, key, offset = self.table.c, self._key(message.entry.part.where), message.offset
        mine = (rows.digest == key, rows.epoch == self._epoch_of(message))
        moved = update(self.table).where(*mine, rows.next_offset <= offset)
        if connection.execute(moved.values(next_offset=offset + 1, at_ms=now_ms())).rowcount == 1:
            return
        if connection.execute(select(rows.next_offset).where(*mine)).one_or_none() is None:
            raise Fenced("another member has taken the partition over; what was done is rolled back")
        log.info("%r was done before; what was done now is rolled back", message)
        raise AlreadyDone

    def _epoch_of(self, message: Message) -> int:
        generation, epoch = self._epochs.get(message.entry.part.where, (-1, 0))
        if generation != message.generation:
            raise Fenced("the partition was assigned anew")
        return epoch
