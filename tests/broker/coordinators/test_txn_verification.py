"""Asking about a transaction before writing to it (KIP-890): all partitions together, with fresh guards each time."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from moldau.broker.coordinators.txn_verification import Verified, Writer, verify
from moldau.log.errors import InvalidProducerEpoch
from moldau.timers.wheel import TimingWheel
from moldau.transactions import TopicPartition
from moldau.transactions.replies import partitions_of, verified_partitions
from moldau.transactions.verification import Operation
from moldau.wire import ErrorCode

NODE = 1
PLACES = {TopicPartition("t", index): 0 for index in range(3)}
BUSY = ErrorCode.CONCURRENT_TRANSACTIONS


class FakeLog:
    """Gives another guard each time it is asked, as a log does after a marker."""

    def __init__(self) -> None:
        self.guards: list[object] = []
        self.is_open = False
        self.is_fenced = False

    def start_verification(self, producer_id: int, sequence: int, epoch: int, *, supports_epoch_bump: bool) -> Any:
        assert (producer_id, sequence, epoch, supports_epoch_bump) == (7, 0, 2, True)
        if self.is_fenced:
            raise InvalidProducerEpoch("a newer instance took over")
        if self.is_open:
            return None
        self.guards.append(object())
        return self.guards[-1]


class World:
    """A broker that coordinates the transaction itself."""

    def __init__(self) -> None:
        self.logs = {place: FakeLog() for place in PLACES}
        self.now_ms = 1_000.0
        self.wheel = TimingWheel(self.now_ms)
        self.asked: list[tuple[Any, Callable[[Any], None]]] = []
        self.found: list[Any] = []
        settings = {
            "add.partitions.to.txn.retry.backoff.ms": 20,
            "add.partitions.to.txn.retry.backoff.max.ms": 100,
            "request.timeout.ms": 30_000,
        }
        self.broker: Any = SimpleNamespace(
            node_id=NODE,
            wheel=self.wheel,
            clock=SimpleNamespace(monotonic_ms=lambda: self.now_ms),
            config=SimpleNamespace(get_int=settings.__getitem__, get_bool=lambda _: False),
            replicas=SimpleNamespace(get=self._partition),
            transactions=SimpleNamespace(leader_for=lambda _: NODE, handle=self._handle),
        )

    def _partition(self, topic: str, index: int) -> Any:
        return SimpleNamespace(is_leader=True, log=self.logs[TopicPartition(topic, index)])

    def _handle(self, transactional_id: str, request: Any, version: int, answer: Callable[[Any], None]) -> ErrorCode:
        assert (transactional_id, request.producer_id, request.producer_epoch) == ("id", 7, 2)
        self.asked.append((request, answer))
        return ErrorCode.NONE

    def verify(self, operation: Operation = Operation.ADD_PARTITION) -> None:
        verify(self.broker, Writer("id", 7, 2, operation), PLACES, self.found.append)

    def answer(self, error: ErrorCode) -> None:
        request, answer = self.asked[-1]
        answer(verified_partitions(request, dict.fromkeys(partitions_of(request), error)))

    def wait(self, ms: float) -> None:
        self.now_ms += ms
        self.wheel.advance(self.now_ms)


def test_all_partitions_are_asked_about_together() -> None:
    world = World()
    world.verify()
    ((request, _),) = world.asked
    assert partitions_of(request) == frozenset(PLACES)
    world.answer(ErrorCode.NONE)
    assert world.found == [
        {place: Verified(log.guards[0], ErrorCode.NONE) for place, log in world.logs.items()},
    ]


def test_each_try_takes_a_fresh_guard() -> None:
    """A marker of the last transaction may have made the first one worthless while the coordinator was busy."""
    world = World()
    world.verify()
    for number in (1, 2, 3):
        assert len(world.asked) == number
        world.answer(BUSY)
        world.wait(19)
        assert len(world.asked) == number
        world.wait(1)
    world.answer(ErrorCode.NONE)
    assert world.found == [{place: Verified(log.guards[3], ErrorCode.NONE) for place, log in world.logs.items()}]


def test_a_busy_transaction_is_waited_for_a_bounded_time() -> None:
    world = World()
    world.verify()
    while not world.found and len(world.asked) < 100:
        world.answer(BUSY)
        world.wait(20)
    assert {each.error for each in world.found[0].values()} == {BUSY}
    assert len(world.asked) == 6


def test_what_needs_no_question_is_not_asked_about() -> None:
    world = World()
    first, second, third = PLACES
    world.logs[first].is_open = True
    world.logs[second].is_fenced = True
    world.verify()
    assert partitions_of(world.asked[0][0]) == {third}
    world.answer(ErrorCode.NONE)
    assert world.found == [
        {
            second: Verified(None, ErrorCode.INVALID_PRODUCER_EPOCH),
            third: Verified(world.logs[third].guards[0], ErrorCode.NONE),
        }
    ]
    world.logs[third].is_open = True
    world.verify()
    assert len(world.asked) == 1
    assert world.found[1] == {second: Verified(None, ErrorCode.INVALID_PRODUCER_EPOCH)}


def test_an_operator_can_switch_the_verification_of_old_clients_off() -> None:
    world = World()
    world.verify(Operation.GENERIC_ERROR_SUPPORTED)
    assert (world.found, world.asked) == ([{}], [])
