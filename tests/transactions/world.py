"""A small cluster around the shard, for random runs: producers old and new, zombies among them; partitions that
know markers and epochs as Kafka's log does; coordinators that fail over, time out, and go on for a while after they
were deposed.

What is checked while it runs:
- A transaction ends one way: all markers of it, from whichever coordinator, carry one decision, and so do its
  records.
- A producer that was told "committed" finds its records committed, everywhere.
- Once a producer has initialised, no other producer of that transactional id gets a success, or a record into the
  log.
- The committed log replayed is the live state.
- A request is answered once; an active coordinator's marker is never refused for good.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from moldau.transactions import (
    Append,
    Effects,
    Now,
    ProducerIdAllocator,
    Record,
    RequestContext,
    TopicPartition,
    TransactionConfig,
    TransactionMetadata,
    TransactionRequest,
    TransactionShard,
    TransactionState,
    TxnMarker,
)
from moldau.transactions import records as txn_records
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode
from moldau.wire.message import Struct
from tests.transactions.harness import NEW_CLIENT, OLD_CLIENT, add, end, error_of, init, replayed

IDS = ("a", "b", "c")
PARTITIONS = tuple(f"t-{number}" for number in range(4))
CONFIG = TransactionConfig(
    max_timeout_ms=10_000,
    transactional_id_expiration_ms=20_000,
    abort_timed_out_interval_ms=50,
    remove_expired_interval_ms=400,
    retry_backoff_ms=10,
)
_APPEND_FAILURES = (
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.KAFKA_STORAGE_ERROR,
)
_MARKER_FAILURES = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)
_RETRY = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


@dataclass
class Entry:
    """What a partition knows about a producer."""

    epoch: int = -1
    coordinator_epoch: int = -1
    open_transaction: int | None = None


@dataclass
class Partition:
    """Kafka's rules for transactional records and markers (ProducerAppendInfo), without the records."""

    entries: dict[int, Entry] = field(default_factory=dict)

    def write(self, producer_id: int, epoch: int, transaction: int) -> bool:
        entry = self.entries.setdefault(producer_id, Entry())
        if epoch < entry.epoch:
            return False
        assert entry.open_transaction in {None, transaction}, "a transaction was left open"
        entry.epoch, entry.open_transaction = epoch, transaction
        return True

    def mark(self, marker: TxnMarker) -> tuple[ErrorCode, int | None]:
        """The answer, and the transaction that the marker ended."""
        entry = self.entries.setdefault(marker.producer_id, Entry())
        is_strict = marker.transaction_version >= 2
        is_stale = marker.producer_epoch <= entry.epoch if is_strict else marker.producer_epoch < entry.epoch
        is_again = is_strict and marker.producer_epoch == entry.epoch and entry.open_transaction is None
        if is_stale and not is_again:
            return ErrorCode.INVALID_PRODUCER_EPOCH, None
        if marker.coordinator_epoch < entry.coordinator_epoch:
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED, None
        ended, entry.open_transaction = entry.open_transaction, None
        entry.epoch, entry.coordinator_epoch = marker.producer_epoch, marker.coordinator_epoch
        return ErrorCode.NONE, ended


@dataclass
class Coordinator:
    shard: TransactionShard
    appends: dict[int, Append] = field(default_factory=dict)
    outcomes: dict[int, bool] = field(default_factory=dict)
    """Appends whose fate was sealed by a failover: whether they are in the log."""
    markers: list[TxnMarker] = field(default_factory=list)
    is_active: bool = True


@dataclass
class Producer:
    name: int
    transactional_id: str
    is_new: bool
    timeout_ms: int
    producer_id: int = -1
    epoch: int = -1
    transaction: int | None = None
    to_write: list[str] = field(default_factory=list)
    waits_for: int | None = None
    again: TransactionRequest | None = None
    """The request to send again: its answer was lost, or said so."""
    is_dead: bool = False

    @property
    def versions(self) -> dict[str, int]:
        return NEW_CLIENT if self.is_new else OLD_CLIENT


class World:
    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.now = Now(0, 1_000_000)
        self.version = self.rng.choice((2, 2, 2, 1, 0))
        self.producer_ids = ProducerIdAllocator()
        self.next_block = 0
        self.log: list[Record] = []
        self.partitions = {name: Partition() for name in PARTITIONS}
        self.producers: list[Producer] = []
        self.requests: dict[int, tuple[Producer, TransactionRequest]] = {}
        self.request_id = 0
        self.owner: dict[str, Producer] = {}
        self.decisions: dict[tuple[str, int, int, int], bool] = {}
        self.ended: dict[int, bool] = {}
        self.promised: dict[int, bool] = {}
        self.next_transaction = 0
        self.uncertain: set[str] = set()
        self.deposed: list[Coordinator] = []
        self.counts: dict[str, int] = {}
        self._seed_log()
        self.active = self._elect(0)

    def _seed_log(self) -> None:
        """One id close to the end of its epochs."""
        epoch = self.rng.choice((32_760, 32_765, 32_766))
        metadata = TransactionMetadata(
            "c", 500, epoch, 1_000, TransactionState.EMPTY, last_update_ms=self.now.wall_ms, previous_producer_id=500
        )
        self.next_block = 1_000
        self.log.append(txn_records.encode(metadata, self.version))

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    # ---- coordinators ----

    def _elect(self, epoch: int) -> Coordinator:
        coordinator = Coordinator(TransactionShard(epoch, CONFIG, self.producer_ids, self.version))
        for record in self.log:
            coordinator.shard.replay(record.key, record.value)
        self.uncertain.clear()
        self.take(coordinator, coordinator.shard.finish_load(self.now))
        return coordinator

    def fail_over(self) -> None:
        old = self.active
        old.is_active = False
        for token, append in old.appends.items():
            old.outcomes[token] = self.rng.random() < 0.5
            if old.outcomes[token]:
                self.log.extend(append.records)
        self.deposed.append(old)
        self.active = self._elect(old.shard.coordinator_epoch + 1)
        self.count("failover")

    def take(self, coordinator: Coordinator, effects: Effects) -> None:
        coordinator.appends.update((append.token, append) for append in effects.appends)
        for marker in effects.markers:
            self._check_decision(coordinator, marker)
            coordinator.markers.append(marker)
        for response in effects.responses:
            self._on_response(coordinator, response.request_id, response.message)
        for abandoned in effects.abandoned:
            assert not coordinator.is_active, abandoned
            self.count("abandoned")

    def _check_decision(self, coordinator: Coordinator, marker: TxnMarker) -> None:
        metadata = coordinator.shard.metadata(marker.transactional_id)
        assert metadata is not None
        key = (marker.transactional_id, marker.producer_id, marker.producer_epoch, metadata.start_ms)
        assert self.decisions.setdefault(key, marker.committed) == marker.committed, key

    def settle_append(self, coordinator: Coordinator, token: int, *, is_calm: bool = False) -> None:
        append = coordinator.appends.pop(token)
        ids = {loaded.transactional_id for r in append.records if (loaded := txn_records.decode(r.key, r.value))}
        error = ErrorCode.NONE
        if not coordinator.is_active:
            # After the fact the old leader may still hear that its record was committed, but only if it was.
            if not (coordinator.outcomes.pop(token, False) and self.rng.random() < 0.5):
                error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif not is_calm and self.rng.random() < 0.15:
            error = self.rng.choice(_APPEND_FAILURES)
            if self.rng.random() < 0.5:
                self.log.extend(append.records)
            self.uncertain |= ids
            self.count("append failed")
        else:
            self.log.extend(append.records)
            if not self._may_be_fenced_in_memory():
                self.uncertain -= ids
        self.take(coordinator, coordinator.shard.on_append(token, error, self.now))

    def _may_be_fenced_in_memory(self) -> bool:
        return self.version < 2  # the old way of fencing raises the epoch before it is in the log

    def deliver_marker(self, coordinator: Coordinator, marker: TxnMarker, *, is_calm: bool = False) -> None:
        names = list(marker.partitions)
        if not is_calm and len(names) > 1 and self.rng.random() < 0.5:
            self.rng.shuffle(names)
            cut = self.rng.randrange(1, len(names))
            coordinator.markers.append(marker._replace(partitions=tuple(names[cut:])))
            names = names[:cut]
        results: dict[TopicPartition, ErrorCode] = {}
        for partition in names:
            results[partition] = self._mark(marker, partition, is_calm)
        effects = coordinator.shard.on_marker_results(marker.transactional_id, marker.token, results, self.now)
        self.take(coordinator, effects)

    def _mark(self, marker: TxnMarker, partition: TopicPartition, is_calm: bool) -> ErrorCode:
        if not is_calm and self.rng.random() < 0.15:
            return self.rng.choice(_MARKER_FAILURES)
        error, ended = self.partitions[f"{partition.topic}-{partition.partition}"].mark(marker)
        if ended is not None:
            assert self.ended.setdefault(ended, marker.committed) == marker.committed, "one transaction, two ends"
            assert self.promised.get(ended, marker.committed) == marker.committed, "the producer was told otherwise"
            self.count("committed" if marker.committed else "aborted")
        if not is_calm and self.rng.random() < 0.1:
            return ErrorCode.NETWORK_EXCEPTION  # written, but the answer is lost
        return error

    def tick(self, coordinator: Coordinator) -> None:
        self.take(coordinator, coordinator.shard.tick(self.now))
        if self.producer_ids.poll(self.now.monotonic_ms):
            response = m.AllocateProducerIdsResponse(producer_id_start=self.next_block, producer_id_len=50)
            self.next_block += 50
            self.producer_ids.on_response(response, self.now.monotonic_ms)

    def advance(self, duration_ms: int) -> None:
        self.now = Now(self.now.monotonic_ms + duration_ms, self.now.wall_ms + duration_ms)

    # ---- producers ----

    def start_producer(self) -> None:
        self.producers.append(
            Producer(
                name=len(self.producers),
                transactional_id=self.rng.choice(IDS),
                is_new=self.version == 2 and self.rng.random() < 0.6,
                timeout_ms=self.rng.choice((60, 200, 5_000)),
            )
        )

    def send(self, producer: Producer, request: TransactionRequest, version: int) -> None:
        self.request_id += 1
        # Before KIP-890 an epoch does not name a transaction, and a coordinator that does not know that it was deposed
        # may take the current transaction for the last one it saw, in Kafka too. So old producers find the right one.
        is_deposed = bool(self.deposed) and producer.is_new and self.rng.random() < 0.2
        coordinator = self.rng.choice(self.deposed) if is_deposed else self.active
        self.requests[self.request_id] = (producer, request)
        producer.waits_for = self.request_id
        producer.again = request
        effects = coordinator.shard.handle(request, RequestContext(self.request_id, version), self.now)
        self.take(coordinator, effects)

    def step_producer(self, producer: Producer) -> None:
        if producer.waits_for is not None:
            if self.rng.random() < 0.1:
                producer.waits_for = None  # gives up on the answer
            return
        versions = producer.versions
        match producer.again:
            case None:
                pass
            case m.InitProducerIdRequest():
                self.send(producer, producer.again, versions["init"])
                return
            case m.EndTxnRequest():
                self.send(producer, producer.again, versions["end"])
                return
            case m.AddOffsetsToTxnRequest():
                raise AssertionError("not used here")
            case again:
                self.send(producer, again, versions["add"])
                return
        if producer.producer_id < 0:
            self.send(producer, init(producer.transactional_id, timeout_ms=producer.timeout_ms), versions["init"])
        elif producer.transaction is None:
            self._begin(producer)
        elif producer.to_write:
            self._write(producer, producer.to_write.pop())
        else:
            self._go_on(producer)

    def _begin(self, producer: Producer) -> None:
        if self.rng.random() < 0.1:
            # KIP-360: something went wrong, the epoch shall be bumped.
            request = init(
                producer.transactional_id,
                timeout_ms=producer.timeout_ms,
                producer_id=producer.producer_id,
                epoch=producer.epoch,
            )
            self.send(producer, request, producer.versions["init"])
            return
        self.next_transaction += 1
        producer.transaction = self.next_transaction
        self._add(producer)

    def _add(self, producer: Producer) -> None:
        names = self.rng.sample(PARTITIONS, self.rng.randrange(1, 3))
        request = add(producer.producer_id, producer.epoch, *names, transactional_id=producer.transactional_id)
        self.send(producer, request, producer.versions["add"])

    def _write(self, producer: Producer, name: str) -> None:
        assert producer.transaction is not None
        is_written = self.partitions[name].write(producer.producer_id, producer.epoch, producer.transaction)
        if is_written:
            owner = self.owner.get(producer.transactional_id)
            assert owner is producer, f"producer {producer.name} is fenced, and wrote"
            assert producer.transaction not in self.promised, "a record after the end of its transaction"
        else:
            producer.is_dead = True

    def _go_on(self, producer: Producer) -> None:
        if self.rng.random() < 0.3:
            self._add(producer)
            return
        committed = self.rng.random() < 0.7
        request = end(
            producer.producer_id, producer.epoch, committed=committed, transactional_id=producer.transactional_id
        )
        self.send(producer, request, producer.versions["end"])

    def _on_response(self, coordinator: Coordinator, request_id: int, message: Struct) -> None:
        producer, request = self.requests.pop(request_id)
        error = error_of(message)
        self.count(error.name)
        if error is ErrorCode.NONE:
            self._check_owner(coordinator, producer, request, message)
        if producer.waits_for != request_id:
            return  # it does not listen any more, and asks again
        producer.waits_for = None
        if error is ErrorCode.NONE:
            producer.again = None
            self._on_success(producer, request, message)
        elif error not in _RETRY:
            producer.is_dead = True

    def _check_owner(
        self, coordinator: Coordinator, producer: Producer, request: TransactionRequest, message: Struct
    ) -> None:
        transactional_id = producer.transactional_id
        if isinstance(message, m.InitProducerIdResponse):
            assert isinstance(request, m.InitProducerIdRequest)
            is_same = request.producer_id >= 0 and message.producer_id == request.producer_id
            if is_same and coordinator.is_active:
                assert self.owner[transactional_id] is producer, "a fenced producer recovered"
            if coordinator.is_active or self._is_current(transactional_id, message):
                self.owner[transactional_id] = producer
        elif coordinator.is_active:
            # A deposed coordinator may still tell what was committed before.
            assert self.owner[transactional_id] is producer, f"producer {producer.name} is fenced, and got a success"
        if isinstance(request, m.EndTxnRequest) and producer.again is request and producer.transaction is not None:
            promised = self.promised.setdefault(producer.transaction, request.committed)
            assert promised == request.committed

    def _is_current(self, transactional_id: str, message: m.InitProducerIdResponse) -> bool:
        metadata = self.active.shard.metadata(transactional_id)
        return metadata is not None and (metadata.producer_id, metadata.producer_epoch) == (
            message.producer_id,
            message.producer_epoch,
        )

    def _on_success(self, producer: Producer, request: TransactionRequest, message: Struct) -> None:
        if isinstance(message, m.InitProducerIdResponse):
            producer.producer_id, producer.epoch = message.producer_id, message.producer_epoch
            producer.transaction = None
        elif isinstance(message, m.EndTxnResponse):
            producer.transaction = None
            producer.to_write.clear()
            if message.producer_id >= 0:
                producer.producer_id, producer.epoch = message.producer_id, message.producer_epoch
        elif not isinstance(request, m.InitProducerIdRequest | m.EndTxnRequest | m.AddOffsetsToTxnRequest):
            producer.to_write += [f"{t.name}-{p}" for t in request.topics for p in t.partitions]

    # ---- running ----

    def step(self) -> None:
        self.advance(self.rng.choice((1, 1, 1, 2, 5, 20)))
        coordinators = [self.active, *self.deposed]
        coordinator = self.rng.choice(coordinators) if self.rng.random() < 0.2 else self.active
        actions: list[tuple[int, Callable[[], None]]] = [
            (40, self._some_producer),
            (30, lambda: self._some_append(coordinator)),
            (25, lambda: self._some_marker(coordinator)),
            (10, lambda: self.tick(coordinator)),
            (3, self.start_producer),
            (1, self.fail_over),
            (1, self._forget_deposed),
            (1, lambda: self.advance(self.rng.choice((300, 30_000)))),
        ]
        (action,) = self.rng.choices([a for _, a in actions], [weight for weight, _ in actions])
        action()
        if self.rng.random() < 0.05:
            self.check_replay()

    def _some_producer(self) -> None:
        alive = [producer for producer in self.producers[-8:] if not producer.is_dead]
        if alive:
            self.step_producer(self.rng.choice(alive))

    def _some_append(self, coordinator: Coordinator) -> None:
        if coordinator.appends:
            self.settle_append(coordinator, self.rng.choice(list(coordinator.appends)))

    def _some_marker(self, coordinator: Coordinator) -> None:
        if coordinator.markers:
            marker = coordinator.markers.pop(self.rng.randrange(len(coordinator.markers)))
            self.deliver_marker(coordinator, marker)

    def _forget_deposed(self) -> None:
        if not self.deposed:
            return
        old = self.deposed.pop(0)
        if self.rng.random() < 0.5:  # else it crashes: nobody is answered, and whoever waits gives up in the end
            self.take(old, old.shard.resign())

    def check_replay(self) -> None:
        live = self.active.shard
        copy = replayed(self.log)
        busy = {
            loaded.transactional_id
            for append in self.active.appends.values()
            for record in append.records
            if (loaded := txn_records.decode(record.key, record.value)) is not None
        }
        for transactional_id in set(live.transactional_ids) | set(copy.transactional_ids):
            if transactional_id in self.uncertain | busy:
                continue
            metadata = live.metadata(transactional_id)
            if metadata is not None and metadata.producer_epoch < 0:
                continue  # made for a request that failed: not in the log yet
            loaded_metadata = copy.metadata(transactional_id)
            assert metadata is not None
            expected = replace(metadata, last_producer_epoch=-1)
            if self.version == 0:
                expected = replace(expected, previous_producer_id=-1, next_producer_id=-1, client_transaction_version=0)
            assert loaded_metadata == expected
            self.count("replayed")

    def calm(self) -> None:
        """No more faults: everything under way comes to its end."""
        self.deposed.clear()
        self.producers.clear()
        for _ in range(400):
            self.advance(20)
            self.tick(self.active)
            for token in list(self.active.appends):
                self.settle_append(self.active, token, is_calm=True)
            markers, self.active.markers = self.active.markers, []
            for marker in markers:
                self.deliver_marker(self.active, marker, is_calm=True)
        idle = {TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT}
        assert not self.active.shard.ending
        for transactional_id in self.active.shard.transactional_ids:
            metadata = self.active.shard.metadata(transactional_id)
            assert metadata is not None
            assert metadata.state in idle
        for partition in self.partitions.values():
            assert all(entry.open_transaction is None for entry in partition.entries.values())
        for transaction, committed in self.promised.items():
            assert self.ended.get(transaction, committed) == committed
