"""Outbox (C9): what a transaction wants to send is written in it, and a relay sends it afterwards.

    with engine.begin() as transaction:
        transaction.execute(…)
        outbox.send(transaction, "orders", key="o-1", value=Order("o-1"))

The table has Debezium's columns (`id, aggregatetype, aggregateid, type, payload`; the aggregate type is the topic) and
our own: rows that others insert with the five alone are sent, too. `OutboxRelay` sends: pending, (sent,) confirmed.
Every message carries its row's id, in the headers `id` (as Debezium's) and `moldau-id`.
"""

from __future__ import annotations

import base64
import json
import re
import uuid
import zlib
from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from sqlalchemy import (
    URL,
    BigInteger,
    Column,
    Connection,
    Dialect,
    Engine,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    insert,
    text,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from moldau.toolkit import letters
from moldau.toolkit.codec import Codec, Part
from moldau.toolkit.codecs import codec_for, codec_of_value
from moldau.toolkit.db.clock import now_ms
from moldau.toolkit.db.database import Database
from moldau.toolkit.errors import SetupError, WrongType
from moldau.toolkit.letters import Header
from moldau.toolkit.sending import Record, Topic

if TYPE_CHECKING:
    from moldau.toolkit.registry import Registry

PENDING, SENT, CONFIRMED, FAILED = range(4)
LANES = 64
ID, TYPE = "id", "eventType"
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_SHOWN_MAX = 255

PlainTransaction = Connection | Session
AsyncTransaction = AsyncConnection | AsyncSession


class Outbox:
    """The table, and how a row gets into it. `OutboxRelay` empties it."""

    def __init__(
        self,
        engine: Engine | AsyncEngine | str | URL,
        *,
        table: str = "outbox",
        topics: Sequence[Topic] = (),
        registry: Registry | None = None,
    ) -> None:
        """`topics` declares what topics hold: from then on sending something else is an error at the call."""
        self.database = Database(engine)
        self.metadata = MetaData()
        self.table = _outbox_table(table, self.metadata)
        self.lanes = Table(
            f"{table}_lanes",
            self.metadata,
            Column("lane", SmallInteger, primary_key=True, autoincrement=False),
            Column("relay", String(36)),
            Column("until_ms", BigInteger, nullable=False, server_default="0"),
        )
        self._registry = registry
        self._codecs: dict[tuple[str, Part, type | None], Codec] = {}
        for topic in topics:
            for part, annotation in (("key", topic.key), ("value", topic.value)):
                if annotation is not None:
                    own: Part = "key" if part == "key" else "value"
                    self._codecs[topic.name, own, None] = codec_for(annotation, topic.name, own, registry)

    async def create(self) -> None:
        """Make the tables that are not there; a relay does so at its start. Or take `metadata` into your migrations."""
        await self.database.create(self.metadata)

    @overload
    def send(
        self,
        transaction: PlainTransaction,
        topic: str,
        key: Any = None,
        value: Any = None,
        *,
        headers: Mapping[str, bytes | str] | Sequence[Header] = (),
        type: str | None = None,
    ) -> str: ...

    @overload
    def send(
        self,
        transaction: AsyncTransaction,
        topic: str,
        key: Any = None,
        value: Any = None,
        *,
        headers: Mapping[str, bytes | str] | Sequence[Header] = (),
        type: str | None = None,
    ) -> Coroutine[Any, Any, str]: ...

    def send(
        self,
        transaction: PlainTransaction | AsyncTransaction,
        topic: str,
        key: Any = None,
        value: Any = None,
        *,
        headers: Mapping[str, bytes | str] | Sequence[Header] = (),
        type: str | None = None,  # noqa: A002  Debezium's word
    ) -> str | Coroutine[Any, Any, str]:
        """Write a message into the transaction: it is sent if and only if that is committed. Returns its id.

        In an async transaction, await it. A wrong type raises `WrongType` here."""
        row = self.row(topic, key, value, headers=headers, type=type)
        statement = insert(self.table).values(**row, created_ms=now_ms())
        if isinstance(transaction, Connection | Session):
            transaction.execute(statement)
            return str(row["id"])

        async def execute() -> str:
            await transaction.execute(statement)
            return str(row["id"])

        return execute()

    def row(
        self,
        topic: str,
        key: Any = None,
        value: Any = None,
        *,
        headers: Mapping[str, bytes | str] | Sequence[Header] = (),
        type: str | None = None,  # noqa: A002  Debezium's word
    ) -> dict[str, Any]:
        """The row of a message, for who inserts many at once: `connection.execute(outbox.table.insert(), rows)`."""
        if not _TOPIC.fullmatch(topic):
            raise WrongType(f"{topic!r} is no name of a topic: letters, digits, dots, dashes and underscores")
        payload, beside = self._codec(topic, "value", value).write(value)
        encoded = None if key is None else self._codec(topic, "key", key).write(key)[0]
        own = str(uuid.uuid4())
        more = list(headers.items()) if isinstance(headers, Mapping) else list(headers)
        return {
            "id": own,
            "aggregatetype": topic,
            "aggregateid": None if encoded is None else _shown(encoded),
            "type": type,
            "payload": payload,
            "message_key": encoded,
            "headers": _packed([*more, *beside]),
            # Messages without a key have no order among them.
            "lane": zlib.crc32(topic.encode() + b"\x00" + (own.encode() if encoded is None else encoded)) % LANES,
        }

    def _codec(self, topic: str, part: Part, value: Any) -> Codec:
        declared = self._codecs.get((topic, part, None))
        if declared is not None:
            return declared
        kind = type(value)
        found = self._codecs.get((topic, part, kind))
        if found is None:
            found = self._codecs[topic, part, kind] = codec_of_value(value, topic, part, self._registry)
        return found


def _outbox_table(name: str, metadata: MetaData) -> Table:
    long_bytes = LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
    # Whoever writes the five columns of Debezium alone gets the defaults: pending, and in the first lane.
    is_pending, has_left = text(f"state = {PENDING}"), text(f"state > {PENDING}")
    return Table(
        name,
        metadata,
        Column("seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
        Column("id", String(36), nullable=False, unique=True),
        Column("aggregatetype", String(255), nullable=False),
        Column("aggregateid", String(255)),
        Column("type", String(255)),
        Column("payload", long_bytes),
        Column("message_key", long_bytes),
        Column("headers", Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")),
        Column("lane", SmallInteger, nullable=False, server_default="0"),
        Column("state", SmallInteger, nullable=False, server_default="0"),
        Column("created_ms", BigInteger),
        Column("at_ms", BigInteger),
        Column("error", String(500)),
        Index(f"{name}_pending", "lane", "seq", postgresql_where=is_pending, sqlite_where=is_pending).ddl_if(
            callable_=_has_partial_indexes
        ),
        # Where the first column is one the index is about, a partial index has no use for it, and is read to its end.
        Index(f"{name}_pending", "state", "lane", "seq").ddl_if(callable_=_has_none),
        Index(f"{name}_left", "state", "at_ms", postgresql_where=has_left, sqlite_where=has_left),
        mysql_charset="utf8mb4",
        mariadb_charset="utf8mb4",
        sqlite_autoincrement=True,  # a number is never given twice, or order by it would mean nothing
    )


def _has_partial_indexes(*_: Any, dialect: Dialect, **__: Any) -> bool:
    return dialect.name in ("postgresql", "sqlite")


def _has_none(*_: Any, dialect: Dialect, **__: Any) -> bool:
    return not _has_partial_indexes(dialect=dialect)


def record_of(row: Any, route: str) -> Record:
    """The message of a row, whoever wrote it."""
    key = row.message_key
    if key is None and row.aggregateid is not None:
        key = row.aggregateid.encode()
    id_ = row.id.encode()
    headers: list[Header] = [(ID, id_), (letters.ID, id_)]
    if row.type is not None:
        headers.append((TYPE, row.type.encode()))
    headers += _unpacked(row.headers)
    return Record(route.format(aggregatetype=row.aggregatetype), row.payload, key, headers)


def check_route(route: str) -> None:
    try:
        found = route.format(aggregatetype="x")
    except (KeyError, IndexError, ValueError) as error:
        raise SetupError(f'route={route!r}: write "{{aggregatetype}}" or "outbox.event.{{aggregatetype}}"') from error
    if not _TOPIC.fullmatch(found):
        raise SetupError(f"route={route!r} makes no name of a topic")


def _packed(headers: Sequence[tuple[str, bytes | str | None]]) -> str | None:
    """As text: what is text stays readable."""
    if not headers:
        return None
    found: list[list[str | None]] = []
    for name, value in headers:
        data = value.encode() if isinstance(value, str) else value
        found.append([name, None if data is None else base64.b64encode(data).decode()])
    return json.dumps(found)


def _unpacked(packed: str | None) -> list[Header]:
    if not packed:
        return []
    return [(name, None if data is None else base64.b64decode(data)) for name, data in json.loads(packed)]


def _shown(key: bytes) -> str:
    return key.decode(errors="replace").replace("\x00", "\ufffd")[:_SHOWN_MAX]
