"""Consume, produce and commit as one: what handlers with `transactional=True` send goes out with their offsets.

A handler sends nothing itself: what it sends is collected, and joins the next transaction when its record is finished.
A transaction takes the finished records as one snapshot: everything they sent, and the commit that says that they are
finished (its offset, and the map of what is finished beyond it). Handlers run outside of transactions, so a slow one
holds up nobody's readers, and one transaction carries the work of many.

Invariants
- A record's output and the note that it is finished are in one transaction, or neither is.
- Whose partition is gone commits nothing: the group's generation, asked for before the snapshot was taken, fences it.
- A transaction whose end is unknown is ended by fencing (the same transactional id begins again), and everything the
  member owns is read again from what is committed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka import Producer as Client

from moldau.toolkit.errors import SetupError
from moldau.toolkit.sending import Delivery, Receipt, Record
from moldau.toolkit.threads import DaemonThreads

if TYPE_CHECKING:
    from moldau.toolkit.scheduler import Entry, Part, Where

log = logging.getLogger("moldau.toolkit")

OUTPUTS_MAX = 20_000  # so many wait for a transaction before handlers do
_CALL_S = 10.0
_REPORTS_S = 1.0
_HANGS_S = 120.0
_HOPELESS = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_MSG,
    KafkaError.INVALID_RECORD,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._INVALID_ARG,
)

Offsets = Mapping["Where", tuple[int, str]]
Step = Callable[[str], None]
"""Called between the steps of a transaction, with their names; tests die there."""


# What a handler sends.


class Collected:
    """What one call of a handler has sent so far."""

    __slots__ = ("is_over", "records")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.is_over = False

    def add(self, record: Record) -> Delivery:
        """It goes out with the transaction; there is nothing to wait for."""
        if self.is_over:
            raise SetupError(
                "the transactional handler has ended, and what it sends later is in no transaction: await what you "
                "start in it"
            )
        self.records.append(record)
        delivery = Delivery(record, threading.Lock())
        delivery.complete(Receipt(record.topic, -1, -1, record.timestamp_ms or -1, is_spooled=True), None)
        return delivery


collecting: ContextVar[Collected | None] = ContextVar("moldau_collecting", default=None)
"""Set while a transactional handler runs, in its task and in the tasks and threads it starts."""


# What waits for the next transaction; on the loop.

Output = tuple["Entry", Sequence[Record]]


@dataclass(slots=True, frozen=True)
class Snapshot:
    """What one transaction does."""

    offsets: Offsets
    outputs: Sequence[Output]


class Outputs:
    """What records have sent that are finished, or about to be."""

    def __init__(self) -> None:
        self._by_part: dict[Part, dict[int, Output]] = {}
        self.count = 0
        self.room = asyncio.Event()
        self.room.set()

    def put(self, entry: Entry, records: Sequence[Record]) -> None:
        """Instead of what was put for it before."""
        if entry.part.alive and (records or entry.offset in self._by_part.get(entry.part, ())):
            mine = self._by_part.setdefault(entry.part, {})
            old = mine.get(entry.offset)
            self.count += len(records) - (len(old[1]) if old is not None else 0)
            mine[entry.offset] = entry, records
            if self.count >= OUTPUTS_MAX:
                self.room.clear()

    def snapshot(self, offsets: Offsets) -> Snapshot:
        """The outputs of everything finished in these partitions; the offsets are of this moment."""
        found = [
            output
            for part, mine in self._by_part.items()
            if part.alive and part.where in offsets
            for offset, output in mine.items()
            if offset not in part.unfinished
        ]
        return Snapshot(offsets, found)

    def done(self, snapshot: Snapshot) -> None:
        """It is committed."""
        for entry, records in snapshot.outputs:
            mine = self._by_part.get(entry.part)
            if mine is not None and mine.pop(entry.offset, None) is not None:
                self.count -= len(records)
        self._forget([part for part, mine in self._by_part.items() if not mine])

    def forget_gone(self) -> None:
        """What belongs to partitions that are not ours any more is nobody's."""
        self._forget([part for part in self._by_part if not part.alive])

    def _forget(self, parts: Iterable[Part]) -> None:
        for part in parts:
            self.count -= sum(len(records) for _, records in self._by_part.pop(part).values())
        if self.count < OUTPUTS_MAX:
            self.room.set()


@dataclass(slots=True, frozen=True)
class Surroundings:
    """What transactions need of their group."""

    offsets: Callable[[set[Where] | None], Offsets]  # what is finished now, whole
    metadata: Callable[[], Awaitable[Any]]  # the group's generation
    committed: Callable[[Offsets], None]
    refused: Callable[[Entry, KafkaError], Awaitable[Sequence[Record] | None]]  # what to send instead of its output
    begin_again: Callable[[], Awaitable[None]]  # read on from what is committed


class Transactions:
    """One after the other, for one group."""

    def __init__(self, thread: TransactionThread, around: Surroundings, step: Step) -> None:
        self.outputs = Outputs()
        self._thread = thread
        self._around = around
        self._step = step
        self._lock = asyncio.Lock()
        self._has_begun = False
        self._is_lost = False
        self._is_careful = False

    @property
    def is_busy(self) -> bool:
        return self._lock.locked() or self.outputs.count > 0

    async def commit(self, only: set[Where] | None = None, metadata: Any = None) -> bool:
        """Commit what is finished, with its outputs. False: it was not possible now; nothing of it has happened."""
        if metadata is None:
            # Before the snapshot: a partition that is lost in between is fenced. Outside of the lock: whoever gives
            # partitions back has it already, and the consumer's thread waits for them.
            metadata = await self._around.metadata()
            if metadata is None:
                return False  # our session is over, and the partitions with it
        async with self._lock:
            try:
                await self._begin()
                self.outputs.forget_gone()
                snapshot = self.outputs.snapshot(self._around.offsets(only))
                if not snapshot.offsets:
                    return True
                await self._thread.transact(snapshot, metadata, self._is_careful)
            except Refused as refused:
                log.info("a transaction was undone (%s); it is made again", refused)
                self._is_careful = True
                for entry, error in refused.failed:
                    instead = await self._around.refused(entry, error)
                    if instead is not None:
                        self.outputs.put(entry, instead)
                return False
            except Unknown as unknown:
                log.warning("a transaction's end is unknown (%s); reading on from what is committed", unknown)
                self._has_begun, self._is_lost = False, True
                return False
            self._is_careful = False
            self.outputs.done(snapshot)
            self._around.committed(snapshot.offsets)
            self._step("noted")
            return True

    async def _begin(self) -> None:
        if not self._has_begun:
            await self._thread.begin()
            self._has_begun = True
        if self._is_lost:
            await self._around.begin_again()
            self._is_lost = False

    def close(self) -> None:
        self._thread.close()


# Transactions; on a thread of their own.


class Unknown(Exception):
    """Nobody knows how the transaction ended, or the producer cannot go on: begin again from what is committed."""


class Refused(Exception):
    """The transaction was aborted. `failed` are outputs that the cluster will never take."""

    def __init__(self, why: str, failed: Sequence[tuple[Entry, KafkaError]]) -> None:
        super().__init__(why)
        self.failed = failed


class TransactionThread:
    """One transaction after the other, under one transactional id."""

    def __init__(self, config: Mapping[str, Any], transactional_id: str, step: Step) -> None:
        self._config = {
            "log_level": 2,
            "linger.ms": 5,
            "transaction.timeout.ms": 10_000,
            "topic.metadata.propagation.max.ms": 5_000,
            # When all brokers are away at once, librdkafka 2.16 forgets the coordinator and with it the request that
            # waits for it; the call then hangs beyond its timeout.
            "metadata.recovery.strategy": "none",
            **config,
            "enable.idempotence": True,
            "transactional.id": transactional_id,
        }
        self._step = step
        self._client: Client | None = None
        self._thread = DaemonThreads(1, "moldau-transactions")
        self._is_closing = threading.Event()
        self._suspects: set[Entry] = set()  # they were refused together with others: next time each goes alone

    async def begin(self) -> None:
        """Fence what went before under this id, and end its last transaction."""
        await self._call(self._begin)

    async def transact(self, snapshot: Snapshot, metadata: Any, careful: bool) -> None:
        """Carry it out; raises `Refused` if it was aborted, and `Unknown`."""
        await self._call(self._transact, snapshot, metadata, careful)

    async def _call(self, call: Callable[..., None], *arguments: Any) -> None:
        try:
            await asyncio.wait_for(asyncio.wrap_future(self._thread.submit(call, *arguments)), _HANGS_S)
        except TimeoutError as error:
            # Whoever hangs there is fenced when the id begins again.
            self._thread = DaemonThreads(1, "moldau-transactions")
            raise Unknown("the client does not answer") from error

    def close(self) -> None:
        self._is_closing.set()
        self._thread.close()

    def _begin(self) -> None:
        self._client = None
        client = Client(self._config, logger=log)
        try:
            self._retried(client.init_transactions)
        except KafkaException as error:
            raise Unknown(error.args[0].str()) from error
        self._client = client

    def _transact(self, snapshot: Snapshot, metadata: Any, careful: bool) -> None:
        client = self._client
        if client is None:
            raise Unknown("there is no producer yet")
        failed: dict[Entry, KafkaError] = {}
        try:
            client.begin_transaction()
            self._step("begun")
            self._produce(client, snapshot, failed, careful)
            self._step("produced")
            if failed:
                raise Refused("an output cannot be sent", [])  # noqa: TRY301  the same way out
            places = [TopicPartition(*where, *told) for where, told in snapshot.offsets.items()]
            self._retried(lambda seconds: client.send_offsets_to_transaction(places, metadata, seconds))
            self._step("offsets")
            self._retried(client.commit_transaction)
            self._step("committed")
        except (KafkaException, Refused) as error:
            self._abort(client, error)
            client.flush(_REPORTS_S)  # why, record by record
            why = error.args[0].str() if isinstance(error, KafkaException) else str(error)
            raise Refused(why, self._guilty(failed)) from error
        self._suspects.clear()

    def _guilty(self, failed: dict[Entry, KafkaError]) -> list[tuple[Entry, KafkaError]]:
        """Those that failed alone; of the others nobody knows yet, for a batch is refused as a whole."""
        guilty = [(entry, error) for entry, error in failed.items() if entry in self._suspects]
        if guilty:
            self._suspects -= failed.keys()
        else:  # or something else was the matter, and the suspects stay
            self._suspects |= failed.keys()
        return guilty

    def _abort(self, client: Client, error: KafkaException | Refused) -> None:
        if isinstance(error, KafkaException):
            kind = error.args[0]
            # A transaction that has failed already takes no more records: `_STATE`.
            if kind.fatal() or not (kind.txn_requires_abort() or kind.code() == KafkaError._STATE):
                raise Unknown(kind.str()) from error
        try:
            self._retried(client.abort_transaction)
        except KafkaException as trouble:
            raise Unknown(trouble.args[0].str()) from trouble

    def _produce(self, client: Client, snapshot: Snapshot, failed: dict[Entry, KafkaError], careful: bool) -> None:
        for entry, records in snapshot.outputs:
            is_alone = entry in self._suspects
            if is_alone:
                client.flush(_CALL_S)
            for record in records:
                more: dict[str, Any] = {} if record.timestamp_ms is None else {"timestamp": record.timestamp_ms}
                if careful:
                    more["on_delivery"] = _noting(failed, entry)
                try:
                    _produce_one(client, record, more)
                except KafkaException as error:
                    if failed and error.args[0].code() == KafkaError._STATE:
                        return
                    if error.args[0].code() not in _HOPELESS:
                        raise
                    failed[entry] = error.args[0]
                    self._suspects.add(entry)  # the client itself knows
            if is_alone:
                client.flush(_CALL_S)
        if careful:
            client.flush(_CALL_S)

    def _retried(self, call: Callable[[float], None]) -> None:
        """Again while the cluster says that it helps."""
        while True:
            try:
                call(_CALL_S)
            except KafkaException as error:
                if not error.args[0].retriable() or self._is_closing.is_set():
                    raise
            else:
                return


def _produce_one(client: Client, record: Record, more: dict[str, Any]) -> None:
    partition = -1 if record.partition is None else record.partition
    while True:
        try:
            client.produce(
                record.topic, record.value, record.key, partition=partition, headers=list(record.headers), **more
            )
        except BufferError:
            client.poll(0.05)
        else:
            return


def _noting(failed: dict[Entry, KafkaError], entry: Entry) -> Callable[[KafkaError | None, Any], None]:
    def noted(error: KafkaError | None, _: Any) -> None:
        if error is not None and error.code() in _HOPELESS:
            failed[entry] = error

    return noted
