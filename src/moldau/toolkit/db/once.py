"""Idempotent consumer (C6): a message's id is written in the handler's own transaction, under a unique index.

    @app.handler("orders", once=Store("postgresql+psycopg://…"))
    def bill(order: Order, transaction: Connection) -> None: ...

A second delivery finds the id and is skipped without running the handler; one that comes while the first is at work
waits for it. Ids are kept for a while (`keep`) and then deleted, a few at a time.

Invariant: an id is there if and only if what its handler did in the database is.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import URL, BigInteger, Column, Connection, Engine, LargeBinary, MetaData, String, Table, delete, select
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.asyncio import AsyncEngine

from moldau.toolkit import letters
from moldau.toolkit.db.clock import now_ms
from moldau.toolkit.db.database import Database, brief, insert_or_ignore
from moldau.toolkit.db.transactions import Step, Transactions, check, nobody_watches, provider
from moldau.toolkit.durations import Duration, milliseconds
from moldau.toolkit.errors import SetupError, Undecodable
from moldau.toolkit.handling import FromHeader, FromKey, Function
from moldau.toolkit.message import Message

if TYPE_CHECKING:
    from moldau.toolkit.spec import HandlerSpec, Home

log = logging.getLogger("moldau.toolkit")

_DIGEST_BYTES = 32
_SHOWN_MAX = 255

MessageId = FromHeader | FromKey | Callable[[Message], str | bytes]


class Store:
    """See the module. One store may serve many handlers of a group; each topic has ids of its own."""

    def __init__(
        self,
        engine: Engine | AsyncEngine | str | URL,
        *,
        id: MessageId | None = None,  # noqa: A002  it is one
        keep: Duration = "7d",
        table: str = "moldau_once",
        create: bool = True,
        clean_step: int = 1_000,
        on_step: Step = nobody_watches,
    ) -> None:
        """`id`: a header, the key, or a function of the message. By default the sender's id (header `moldau-id`), or
        else topic, partition and offset of the first delivery. `create=False` if your migrations make the table."""
        self.database = Database(engine)
        self.keep_ms = milliseconds(keep)
        self.metadata = MetaData()
        # The digest is of group, topic and id: databases disagree on which texts are equal and how long they may be.
        digest = LargeBinary(_DIGEST_BYTES).with_variant(mysql.BINARY(_DIGEST_BYTES), "mysql", "mariadb")
        self.table = Table(
            table,
            self.metadata,
            Column("digest", digest, primary_key=True),
            Column("consumer", String(_SHOWN_MAX), nullable=False),
            Column("topic", String(_SHOWN_MAX), nullable=False),
            Column("id", String(_SHOWN_MAX), nullable=False),
            Column("at_ms", BigInteger, nullable=False, index=True),
            mysql_charset="utf8mb4",
            mariadb_charset="utf8mb4",
        )
        self._id = id
        self._create = create
        self._clean_step = clean_step
        self._group = ""
        self._app: Home | None = None
        self._transactions = Transactions(self.database, self._enter, self._leave, on_step)
        self._insert = insert_or_ignore(self.table, self.database.dialect)

    # Asked by the app.

    def attach(self, app: Home, spec: HandlerSpec, function: Function) -> None:
        """A handler is declared with this store."""
        check(self.database, spec, function, "Store")
        if self._app not in (None, app) or self._group not in ("", spec.group):
            raise SetupError("a Store serves the handlers of one group: make another for the other")
        if self._app is None:
            self._app, self._group = app, spec.group
            app.on_start(self.start)
            app.on_stop(self.database.close)
            app.every("1m")(self.clean)

    def provides(self, hint: Any, *, is_async: bool, name: str) -> Callable[[Message], Any] | None:
        """What gives a handler a parameter of this type, such as its session; None: it is not ours to give."""
        return provider(hint, is_async=is_async, name=name)

    async def handle(self, message: Message, call: Callable[[], Awaitable[Any]]) -> Any:
        """Call the handler in a transaction, which also says that this message is done."""
        return await self._transactions.handle(message, call)

    def handle_plain(self, message: Message, call: Callable[[], Any], given_up: threading.Event) -> Any:
        """The same for a handler that is no coroutine, on its thread."""
        return self._transactions.handle_plain(message, call, given_up)

    async def start(self) -> None:
        """Make the tables, if they are to be made (`create`)."""
        if self._create:
            await self.database.create(self.metadata)

    # The transaction.

    def _enter(self, connection: Connection, message: Message) -> bool:
        topic, own = message.origin.topic, self.id_of(message)
        shown = own.decode(errors="replace") if isinstance(own, bytes) else own
        row = {
            "digest": digest_of(self._group, topic, own),
            "consumer": _shown(self._group),
            "topic": _shown(topic),
            "id": _shown(shown),
            "at_ms": now_ms(),
        }
        found: bool = connection.execute(self._insert.values(row)).rowcount == 1
        if not found:
            log.info("%r is skipped: %s was handled before", message, shown)
        return found

    def _leave(self, _connection: Connection, _message: Message) -> None:
        """The id was written when the transaction was entered."""

    def id_of(self, message: Message) -> str | bytes:
        """What makes two deliveries the same message."""
        match self._id:
            case None:
                return message.header(letters.ID) or message.origin.id
            case FromHeader(name):
                found = message.header(name)
                if found is None:
                    raise Undecodable(f"{message.topic}: the header {name!r}, the message's id, is missing")
                return found
            case FromKey():
                if message.key is None:
                    raise Undecodable(f"{message.topic}: the key, the message's id, is missing")
                return message.key
            case call:
                return call(message)

    # Cleaning up.

    async def clean(self) -> int:
        """Delete the ids that are older than `keep`; in steps, each a short transaction. Returns how many."""
        deleted = 0
        while True:
            try:
                count = await self.database.run(self._clean_some)
            except Exception as error:  # the next minute may be better
                log.warning("%s: old ids were not deleted: %s", self.table.name, brief(error))
                return deleted
            deleted += count
            if count < self._clean_step:
                return deleted

    def _clean_some(self, connection: Connection) -> int:
        table = self.table
        old = select(table.c.digest).where(table.c.at_ms < now_ms() - self.keep_ms).limit(self._clean_step)
        # Somebody else may be cleaning: each deletes what the other does not.
        digests: Sequence[bytes] = connection.scalars(old.with_for_update(skip_locked=True)).all()
        if digests:
            connection.execute(delete(table).where(table.c.digest.in_(digests)))
        return len(digests)


def digest_of(group: str, topic: str, own: str | bytes) -> bytes:
    """Of what identifies a message to a group."""
    found = hashlib.sha256()
    for part in (group.encode(), topic.encode(), own.encode() if isinstance(own, str) else own):
        found.update(len(part).to_bytes(4, "big") + part)
    return found.digest()


def _shown(text: str) -> str:
    """For people who look into the table; the digest is what counts. Without what PostgreSQL refuses."""
    return text.replace("\x00", "\ufffd")[:_SHOWN_MAX].encode("utf-8", "replace").decode()
