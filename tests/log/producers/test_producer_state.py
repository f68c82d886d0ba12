"""Idempotence, fencing and transactions (B5, B6), rule by rule as Kafka 4 has them; snapshots byte for byte."""

import struct

import pytest
from crc32c import crc32c

from moldau.log import AppendOrigin
from moldau.log.errors import (
    CorruptSnapshot,
    InvalidProducerEpoch,
    InvalidTxnState,
    OutOfOrderSequence,
    TransactionCoordinatorFenced,
)
from moldau.log.producers.producer_state import ProducerState
from moldau.log.producers.snapshots import Snapshots, decode, encode
from moldau.records import EndTransactionMarker, read_header
from tests.log.helpers import START_MS, batch
from tests.support.sim_disk import SimDisk

MAX_SEQUENCE = 2**31 - 1


class Producer:
    """Drives a state the way the log does: check, then update."""

    def __init__(self) -> None:
        self.state = ProducerState()
        self.offset = 0

    def send(
        self,
        sequence: int,
        count: int = 1,
        epoch: int = 0,
        *,
        pid: int = 7,
        transactional: bool = False,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> int:
        """The base offset the batch got, now or the first time."""
        data = batch([b"x"] * count, producer=(pid, epoch, sequence), transactional=transactional)
        header = read_header(data)
        duplicate = self.state.check_data(header, origin)
        if duplicate is not None:
            return duplicate.first_offset
        base = self.offset
        self.state.update_data(header, base, START_MS)
        self.offset += count
        return base

    def end(self, *, commit: bool, epoch: int = 0, pid: int = 7, coordinator: int = 0, version: int = 0) -> None:
        header = read_header(batch([b"m"], producer=(pid, epoch, -1), transactional=True))
        marker = EndTransactionMarker(commit, coordinator)
        self.state.check_marker(header, marker, version)
        completed = self.state.update_marker(header, self.offset, marker)
        if completed is not None:
            self.state.complete(completed)
        self.offset += 1


@pytest.fixture
def producer() -> Producer:
    return Producer()


def test_sequences_must_follow_each_other(producer: Producer) -> None:
    assert producer.send(0, 3) == 0
    assert producer.send(3, 2) == 3
    with pytest.raises(OutOfOrderSequence):
        producer.send(6)
    with pytest.raises(OutOfOrderSequence):
        producer.send(4)  # overlaps, but is no repetition
    assert producer.send(5) == 5


def test_a_new_producer_may_begin_anywhere(producer: Producer) -> None:
    """Its earlier records may have been deleted by retention."""
    assert producer.send(500) == 0
    assert producer.send(501) == 1


def test_the_last_five_batches_are_recognised(producer: Producer) -> None:
    first = [producer.send(sequence) for sequence in range(6)]
    assert [producer.send(sequence) for sequence in range(1, 6)] == first[1:]
    assert producer.offset == 6
    with pytest.raises(OutOfOrderSequence):
        producer.send(0)  # too old to tell


def test_sequences_wrap(producer: Producer) -> None:
    producer.send(MAX_SEQUENCE - 1, 2)
    assert producer.send(0) == 2
    assert producer.send(0) == 2
    producer.send(1)
    wrapping = Producer()
    wrapping.send(MAX_SEQUENCE, 3)  # the batch itself wraps: MAX, 0, 1
    assert wrapping.send(2) == 3
    assert wrapping.send(MAX_SEQUENCE, 3) == 0


def test_a_new_epoch_begins_at_zero_and_fences_the_old(producer: Producer) -> None:
    producer.send(0)
    with pytest.raises(OutOfOrderSequence):
        producer.send(1, epoch=1)
    producer.send(0, epoch=1)
    with pytest.raises(InvalidProducerEpoch):
        producer.send(1, epoch=0)


def test_origins_are_checked_differently(producer: Producer) -> None:
    producer.send(0, epoch=2)
    producer.send(9, epoch=2, origin=AppendOrigin.COORDINATOR)
    with pytest.raises(InvalidProducerEpoch):
        producer.send(9, epoch=1, origin=AppendOrigin.COORDINATOR)


def test_checking_leaves_no_trace(producer: Producer) -> None:
    header = read_header(batch([b"x"], producer=(1, 0, 0), transactional=True))
    producer.state.check_data(header, AppendOrigin.CLIENT)
    assert producer.state.producers == {}
    assert producer.state.first_unstable_offset is None


def test_the_first_open_transaction_holds_the_stable_offset(producer: Producer) -> None:
    producer.send(0, pid=1, transactional=True)
    producer.send(0, pid=2, transactional=True)
    assert producer.state.first_unstable_offset == 0
    producer.end(commit=True, pid=1)  # at offset 2
    assert producer.state.first_undecided_offset == 1
    assert producer.state.first_unstable_offset == 0  # decided, but its marker is not replicated
    producer.state.on_high_watermark(2)
    assert producer.state.first_unstable_offset == 0
    producer.state.on_high_watermark(3)
    assert producer.state.first_unstable_offset == 1
    producer.end(commit=False, pid=2)
    producer.state.on_high_watermark(4)
    assert producer.state.first_unstable_offset is None


def test_writing_outside_an_open_transaction(producer: Producer) -> None:
    producer.send(0, transactional=True)
    with pytest.raises(InvalidTxnState):
        producer.send(1, transactional=False)


def test_markers_are_fenced(producer: Producer) -> None:
    producer.send(0, epoch=5, transactional=True)
    with pytest.raises(InvalidProducerEpoch):
        producer.end(commit=True, epoch=4)
    producer.end(commit=True, epoch=5, coordinator=3)
    producer.send(1 - 1, epoch=6, transactional=True)
    with pytest.raises(TransactionCoordinatorFenced):
        producer.end(commit=True, epoch=6, coordinator=2)


def test_markers_of_transaction_version_2_bump_the_epoch(producer: Producer) -> None:
    producer.send(0, epoch=5, transactional=True)
    with pytest.raises(InvalidProducerEpoch):
        producer.end(commit=True, epoch=5, version=2)
    producer.end(commit=True, epoch=6, version=2)
    producer.end(commit=True, epoch=6, version=2)  # the coordinator's retry: the transaction is over
    with pytest.raises(InvalidProducerEpoch):
        producer.end(commit=True, epoch=5, version=2)
    assert producer.send(0, epoch=6, transactional=True) == producer.offset - 1


def test_after_a_marker_sequences_go_on_in_the_same_epoch(producer: Producer) -> None:
    producer.send(0, 2, transactional=True)
    producer.end(commit=True)
    assert producer.send(2, transactional=True) == 3


def test_verification(producer: Producer) -> None:
    """KIP-890: no transactional append unless the coordinator was asked about this very transaction."""
    header = read_header(batch([b"x"], producer=(7, 0, 0), transactional=True))
    state = producer.state
    with pytest.raises(InvalidTxnState):
        state.check_verified(header.producer_id, 0, None)
    guard = state.start_verification(7, 0, 0, START_MS, supports_epoch_bump=True)
    assert guard is not None
    assert state.start_verification(7, 0, 0, START_MS, supports_epoch_bump=True) is guard
    with pytest.raises(InvalidTxnState):
        state.check_verified(header.producer_id, 0, object())
    state.check_verified(header.producer_id, 0, guard)
    with pytest.raises(OutOfOrderSequence):
        producer.send(1, transactional=True)  # a transaction of version 2 begins with sequence 0
    producer.send(0, transactional=True)
    assert state.start_verification(7, 1, 0, START_MS, supports_epoch_bump=True) is None  # open here
    state.check_verified(header.producer_id, 0, None)
    producer.end(commit=False)
    with pytest.raises(InvalidTxnState):
        state.check_verified(header.producer_id, 0, guard)  # a late answer about the former transaction


def test_a_marker_leaves_the_question_about_the_next_transaction_alone(producer: Producer) -> None:
    """From transaction version 2 on the marker has the epoch the producer goes on with (KIP-890)."""
    state = producer.state
    producer.send(0, epoch=0, transactional=True)
    late = state.start_verification(7, 0, 1, START_MS, supports_epoch_bump=True)
    producer.end(commit=True, epoch=1, version=2)
    assert state.start_verification(7, 0, 1, START_MS, supports_epoch_bump=True) is late
    state.check_verified(7, 1, late)
    producer.end(commit=False, epoch=2, version=2)
    with pytest.raises(InvalidTxnState):
        state.check_verified(7, 2, late)


def test_a_marker_of_an_old_client_ends_every_question(producer: Producer) -> None:
    guard = producer.state.start_verification(7, 0, 0, START_MS, supports_epoch_bump=False)
    producer.end(commit=False, epoch=0)
    with pytest.raises(InvalidTxnState):
        producer.state.check_verified(7, 0, guard)


def test_a_transaction_of_another_epoch_is_another_transaction(producer: Producer) -> None:
    state = producer.state
    producer.send(0, epoch=3, transactional=True)
    with pytest.raises(InvalidTxnState):
        state.check_verified(7, 4, None)
    with pytest.raises(InvalidProducerEpoch):
        state.start_verification(7, 0, 2, START_MS, supports_epoch_bump=True)


def test_verification_remembers_the_lowest_sequence(producer: Producer) -> None:
    producer.state.start_verification(7, 5, 0, START_MS, supports_epoch_bump=False)
    producer.state.start_verification(7, 3, 0, START_MS, supports_epoch_bump=False)
    with pytest.raises(OutOfOrderSequence):
        producer.send(4, transactional=True)
    producer.send(3, transactional=True)


def test_silent_producers_expire_but_not_with_a_transaction_open(producer: Producer) -> None:
    producer.send(0, pid=1)
    producer.send(0, pid=2, transactional=True)
    producer.state.start_verification(3, 0, 0, START_MS, supports_epoch_bump=True)
    producer.state.remove_expired(START_MS + 99, 100)
    assert set(producer.state.producers) == {1, 2}
    producer.state.remove_expired(START_MS + 100, 100)
    assert set(producer.state.producers) == {2}


def test_snapshot_bytes() -> None:
    producer = Producer()
    producer.send(10, 3, epoch=2, pid=99, transactional=True)
    body = struct.pack(">iqhiqiqiq", 1, 99, 2, 12, 2, 2, START_MS, -1, 0)
    assert encode(producer.state.producers) == struct.pack(">hI", 1, crc32c(body)) + body
    assert encode({}) == struct.pack(">hIi", 1, crc32c(b"\0\0\0\0"), 0)


def test_snapshot_round_trip() -> None:
    producer = Producer()
    for pid in range(20):
        for sequence in range(pid % 4 + 1):
            producer.send(sequence, pid=pid, transactional=pid % 3 == 0)
        if pid % 2:
            producer.end(commit=True, pid=pid, coordinator=4)
    loaded = ProducerState()
    loaded.load(decode(encode(producer.state.producers)), START_MS, 1000)
    assert encode(loaded.producers) == encode(producer.state.producers)
    assert loaded.first_unstable_offset == producer.state.first_undecided_offset


@pytest.mark.parametrize(
    "damage", [b"", b"\0\1", b"\0\2" + bytes(8), b"\0\1" + bytes(8), b"\0\1" + bytes(4) + b"\0\0\0\1"]
)
def test_damaged_snapshots(damage: bytes) -> None:
    with pytest.raises(CorruptSnapshot):
        decode(damage)


def test_a_damaged_snapshot_gives_way_to_an_older_one() -> None:
    disk = SimDisk()
    disk.make_dirs("/d")
    snapshots = Snapshots(disk, "/d", [])
    producer = Producer()
    producer.send(0)
    for offset in (10, 20):
        snapshots.take(producer.state, offset)
    disk.write_file_atomically("/d/00000000000000000020.snapshot", b"damaged")
    state = ProducerState()
    assert snapshots.load_latest(state, 0, START_MS, 1000) == 10
    assert snapshots.offsets == [10]
    assert not disk.exists("/d/00000000000000000020.snapshot")
