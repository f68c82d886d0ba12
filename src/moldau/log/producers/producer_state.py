"""What a partition knows about its producers: sequence numbers, epochs and open transactions.

It answers three questions: is this batch the next one of its producer, a repetition of one of the last five, or
neither (idempotence)? Is this producer still the newest with its id (fencing)? And where does the oldest undecided
transaction begin (the last stable offset)? The state is a function of the log; snapshots, taken when a segment is
rolled and at shutdown, only save reading the whole log again. Checking never changes anything: a refused batch leaves
no trace.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from moldau.log.errors import InvalidProducerEpoch, InvalidTxnState, OutOfOrderSequence, TransactionCoordinatorFenced
from moldau.log.index.txn_index import AbortedTxn
from moldau.log.origin import AppendOrigin
from moldau.log.results import ActiveProducer
from moldau.records import BatchHeader, EndTransactionMarker
from moldau.records.batch import CONTROL_FLAG, TRANSACTIONAL_FLAG, HeaderFields, as_header

BATCHES_KEPT = 5
NO_EPOCH = -1
NO_SEQUENCE = -1
NO_OFFSET = -1
_MAX_SEQUENCE = 2**31 - 1
_EPOCH_MAX = 2**15 - 1
_new_tuple = tuple.__new__  # a NamedTuple without its constructor, for the hot path: half the time


class BatchMetadata(NamedTuple):
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        return (self.last_sequence - self.offset_delta) & _MAX_SEQUENCE

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


@dataclass(slots=True)
class ProducerEntry:
    """What is remembered of one producer."""

    producer_id: int
    epoch: int = NO_EPOCH
    coordinator_epoch: int = -1
    last_timestamp: int = -1
    txn_first_offset: int = NO_OFFSET
    last_sequence: int = NO_SEQUENCE
    batches: deque[BatchMetadata] = field(default_factory=lambda: deque(maxlen=BATCHES_KEPT))
    is_from_snapshot: bool = False  # then there may have been batches before those (`recalled_batches`)

    @property
    def last_data_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else NO_OFFSET

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches.clear()
            self.last_sequence = NO_SEQUENCE
            self.is_from_snapshot = False

    def add(self, sequence: int, last_offset: int, offset_delta: int, timestamp: int) -> None:
        """Note the batch that begins with `sequence`, or NO_SEQUENCE."""
        last_sequence = NO_SEQUENCE if sequence == NO_SEQUENCE else (sequence + offset_delta) & _MAX_SEQUENCE
        self.batches.append(_new_tuple(BatchMetadata, (last_sequence, last_offset, offset_delta, timestamp)))
        self.last_sequence = last_sequence
        self.last_timestamp = timestamp

    def duplicate_of(self, header: BatchHeader) -> BatchMetadata | None:
        if header.producer_epoch != self.epoch:
            return None
        last = header.last_sequence
        for batch in self.batches:
            if batch.last_sequence == last and batch.first_sequence == header.base_sequence:
                return batch
        return None


class CompletedTxn(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool


@dataclass(slots=True)
class Verification:
    """A transaction that the coordinator is being asked about (KIP-890); `guard` identifies this very question."""

    guard: object
    started_ms: int
    lowest_sequence: int
    epoch: int
    supports_epoch_bump: bool


class ProducerState:
    __slots__ = ("_ongoing", "_unreplicated", "_verifications", "producers")

    def __init__(self) -> None:
        self.producers: dict[int, ProducerEntry] = {}
        self._ongoing: dict[int, int] = {}  # first offset -> producer id; appends keep it in offset order
        self._unreplicated: dict[int, int] = {}  # first offset -> marker's offset, while that is above the watermark
        self._verifications: dict[int, Verification] = {}

    def load(self, entries: list[ProducerEntry], now_ms: int, expiration_ms: int) -> None:
        """Start from a snapshot instead of from nothing."""
        self.clear()
        for entry in entries:
            if entry.txn_first_offset >= 0 or now_ms - entry.last_timestamp < expiration_ms:
                self.producers[entry.producer_id] = entry
        for entry in sorted(self.producers.values(), key=lambda entry: entry.txn_first_offset):
            if entry.txn_first_offset >= 0:
                self._ongoing[entry.txn_first_offset] = entry.producer_id

    def clear(self) -> None:
        self.producers.clear()
        self._ongoing.clear()
        self._unreplicated.clear()

    # -- checks: no side effects

    def in_sequence(self, producer_id: int, epoch: int, sequence: int) -> ProducerEntry | None:
        """The producer, if nothing but its next batch outside of transactions is this one."""
        entry = self.producers.get(producer_id)
        if (
            entry is not None
            and sequence == entry.last_sequence + 1
            and epoch == entry.epoch
            and entry.batches
            and entry.txn_first_offset < 0
            and not self._verifications
        ):
            return entry
        return None

    def check_data(self, fields: HeaderFields, origin: AppendOrigin) -> BatchMetadata | None:
        """Raise unless the batch may be appended. A repetition is not an error: what was appended then comes back."""
        entry = self.producers.get(fields[9])
        if (
            entry is not None
            and entry.batches
            and fields[10] == entry.epoch
            and fields[11] == entry.last_sequence + 1
            and (entry.txn_first_offset < 0 or fields[5] & TRANSACTIONAL_FLAG)
        ):
            return None  # as usual: the next batch of a known producer
        return self._check_unusual_data(as_header(fields), entry, origin)

    def _check_unusual_data(
        self, header: BatchHeader, entry: ProducerEntry | None, origin: AppendOrigin
    ) -> BatchMetadata | None:
        client = origin is AppendOrigin.CLIENT
        if entry is None:
            if client:
                self._check_first_sequence(header)
            return None
        if client and header.base_sequence != entry.last_sequence + 1 and (batch := entry.duplicate_of(header)):
            return batch
        if header.producer_epoch < entry.epoch:
            raise InvalidProducerEpoch(
                f"producer {header.producer_id} has epoch {header.producer_epoch}, but epoch {entry.epoch} was seen: "
                "a newer instance took over, or the coordinator fenced this one"
            )
        if client:
            self._check_sequence(header, entry)
        if entry.txn_first_offset >= 0 and not header.is_transactional:
            raise InvalidTxnState(f"producer {header.producer_id} wrote outside the transaction it has open")
        return None

    def _check_first_sequence(self, header: BatchHeader) -> None:
        verification = self._verifications.get(header.producer_id)
        if verification is None:
            return
        if (verification.supports_epoch_bump and header.base_sequence != 0) or (
            header.base_sequence > verification.lowest_sequence
        ):
            raise OutOfOrderSequence(
                f"producer {header.producer_id} begins its transaction with sequence {header.base_sequence}"
            )

    def _check_sequence(self, header: BatchHeader, entry: ProducerEntry) -> None:
        if not entry.batches:
            self._check_first_sequence(header)
        if header.producer_epoch != entry.epoch:
            if header.base_sequence != 0 and entry.epoch != NO_EPOCH:
                raise OutOfOrderSequence(
                    f"producer {header.producer_id} begins epoch {header.producer_epoch} with sequence "
                    f"{header.base_sequence} instead of 0"
                )
        elif entry.epoch != NO_EPOCH:
            expected = 0 if entry.last_sequence == _MAX_SEQUENCE else entry.last_sequence + 1
            if header.base_sequence != expected:
                raise OutOfOrderSequence(
                    f"producer {header.producer_id} sent sequence {header.base_sequence}, expected was {expected}"
                )

    def check_marker(self, header: BatchHeader, marker: EndTransactionMarker, transaction_version: int) -> None:
        """Raise unless a coordinator may end the producer's transaction with this marker.

        From transaction version 2 on every transaction has its own epoch, so a marker needs a newer one; the same
        epoch again is a retry of the coordinator and harmless if the transaction is over.
        """
        entry = self.producers.get(header.producer_id)
        if entry is None:
            return
        epoch = header.producer_epoch
        if transaction_version >= 2:
            retried = epoch == entry.epoch and (entry.txn_first_offset < 0 or epoch == _EPOCH_MAX)
            stale = epoch <= entry.epoch and not retried
        else:
            stale = epoch < entry.epoch
        if stale:
            raise InvalidProducerEpoch(
                f"marker for producer {header.producer_id} has epoch {epoch}, but epoch {entry.epoch} was seen"
            )
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise TransactionCoordinatorFenced(
                f"marker of coordinator epoch {marker.coordinator_epoch}, but {entry.coordinator_epoch} was seen"
            )

    # -- updates: after the append

    def update(
        self, fields: HeaderFields, base_offset: int, max_timestamp: int, marker: EndTransactionMarker | None
    ) -> AbortedTxn | None:
        """Note an appended batch. If its marker aborts a transaction, what the index of these must know."""
        if not fields[5] & CONTROL_FLAG:
            self.update_data(fields, base_offset, max_timestamp)
            return None
        completed = None if marker is None else self.update_marker(as_header(fields), base_offset, marker)
        if completed is None:
            return None
        last_stable = self.last_stable_offset_after(completed)
        self.complete(completed)
        if not completed.aborted:
            return None
        return AbortedTxn(completed.producer_id, completed.first_offset, completed.last_offset, last_stable)

    def update_data(self, fields: HeaderFields, base_offset: int, max_timestamp: int) -> None:
        """Note an appended batch; offset and timestamp are passed on their own, as the header is the producer's."""
        _, _, _, _, _, attributes, delta, _, _, producer_id, epoch, sequence, _ = fields
        entry = self.producers.get(producer_id)
        if entry is None:
            entry = self.producers[producer_id] = ProducerEntry(producer_id)
        if epoch != entry.epoch:
            entry.set_epoch(epoch)
        entry.add(sequence, base_offset + delta, delta, max_timestamp)
        if attributes & TRANSACTIONAL_FLAG and entry.txn_first_offset < 0:
            entry.txn_first_offset = base_offset
            self._ongoing[base_offset] = producer_id
        if self._verifications:
            self._verifications.pop(producer_id, None)

    def update_marker(self, header: BatchHeader, base_offset: int, marker: EndTransactionMarker) -> CompletedTxn | None:
        """The transaction the marker ended, if it had written anything here. Call `complete` once it is indexed."""
        producer_id = header.producer_id
        entry = self.producers.get(producer_id)
        if entry is None:
            entry = self.producers[producer_id] = ProducerEntry(producer_id)
        completed = None
        if entry.txn_first_offset >= 0:
            completed = CompletedTxn(producer_id, entry.txn_first_offset, base_offset, not marker.committed)
        entry.set_epoch(header.producer_epoch)
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.last_timestamp = header.max_timestamp
        entry.txn_first_offset = NO_OFFSET
        verification = self._verifications.get(producer_id)
        # From transaction version 2 on the marker has the epoch of the producer's next transaction. Whoever asks about
        # that one already, asks about nothing this marker ends.
        asks_about_next = (
            verification is not None
            and verification.supports_epoch_bump
            and verification.epoch == header.producer_epoch
        )
        if not asks_about_next:
            self._verifications.pop(producer_id, None)
        return completed

    def last_stable_offset_after(self, completed: CompletedTxn) -> int:
        """Where the last stable offset will be once `completed` is: the next open transaction, or past its marker."""
        for first_offset, producer_id in self._ongoing.items():
            if producer_id != completed.producer_id:
                return first_offset
        return completed.last_offset + 1

    def complete(self, completed: CompletedTxn) -> None:
        self._ongoing.pop(completed.first_offset, None)
        self._unreplicated[completed.first_offset] = completed.last_offset

    # -- the last stable offset

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset that is undecided, or decided by a marker that is not replicated yet."""
        first = next(iter(self._ongoing), None)
        if self._unreplicated:
            unreplicated = min(self._unreplicated)
            return unreplicated if first is None else min(first, unreplicated)
        return first

    @property
    def first_undecided_offset(self) -> int | None:
        return next(iter(self._ongoing), None)

    def on_high_watermark(self, high_watermark: int) -> None:
        """Markers below the high watermark are replicated: their transactions are stable."""
        if self._unreplicated:
            for first, last in list(self._unreplicated.items()):
                if last < high_watermark:
                    del self._unreplicated[first]

    # -- verification (KIP-890)

    def start_verification(
        self, producer_id: int, sequence: int, epoch: int, now_ms: int, *, supports_epoch_bump: bool
    ) -> object | None:
        """A guard to hand to the append once the coordinator confirmed the transaction; None if one is open here.
        InvalidProducerEpoch if a later epoch was seen: there is nothing to ask then."""
        entry = self.producers.get(producer_id)
        if entry is not None and entry.epoch > epoch:
            raise InvalidProducerEpoch(
                f"producer {producer_id} has epoch {epoch}, but epoch {entry.epoch} was seen: a newer instance took "
                "over, or the coordinator fenced this one"
            )
        if entry is not None and entry.txn_first_offset >= 0 and entry.epoch == epoch:
            return None
        found = self._verifications.get(producer_id)
        if found is None:
            found = Verification(object(), now_ms, sequence, epoch, supports_epoch_bump)
            self._verifications[producer_id] = found
        elif epoch > found.epoch:
            found.epoch, found.lowest_sequence = epoch, sequence
        elif epoch == found.epoch:
            found.lowest_sequence = min(found.lowest_sequence, sequence)
        return found.guard

    def check_verified(self, producer_id: int, epoch: int, guard: object | None) -> None:
        """Raise unless the batch continues a transaction open here, or comes with the guard of a confirmed one. A
        transaction of an earlier epoch is another one."""
        entry = self.producers.get(producer_id)
        if entry is not None and entry.txn_first_offset >= 0 and entry.epoch == epoch:
            return
        found = self._verifications.get(producer_id)
        if guard is None or found is None or found.guard is not guard:
            raise InvalidTxnState(f"producer {producer_id} wrote to a transaction the coordinator did not open")

    # -- what others may know

    def active(self) -> list[ActiveProducer]:
        """For DescribeProducers."""
        return [
            ActiveProducer(
                entry.producer_id,
                entry.epoch,
                entry.last_sequence,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.txn_first_offset,
            )
            for entry in self.producers.values()
        ]

    # -- expiry

    def remove_expired(self, now_ms: int, expiration_ms: int) -> None:
        """Forget producers that were silent too long and have no transaction open."""
        for producer_id, entry in list(self.producers.items()):
            if entry.txn_first_offset < 0 and now_ms - entry.last_timestamp >= expiration_ms:
                del self.producers[producer_id]
        for producer_id, verification in list(self._verifications.items()):
            if now_ms - verification.started_ms >= expiration_ms:
                del self._verifications[producer_id]
