"""Delayed operations: completed exactly once, whatever comes first, and nothing left behind."""

import logging
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.timers import Purgatory, TimingWheel, Watched


class Operation:
    def __init__(self, is_ready: bool = False, then: Callable[[], None] | None = None) -> None:
        self.ready = is_ready
        self.then = then
        self.checks = 0
        self.completions: list[bool] = []

    def is_ready(self) -> bool:
        self.checks += 1
        return self.ready

    def on_complete(self, expired: bool) -> None:
        self.completions.append(expired)
        if self.then is not None:
            self.then()


def make() -> tuple[TimingWheel, Purgatory]:
    wheel = TimingWheel(0)
    return wheel, Purgatory("test", wheel)


def assert_nothing_is_left(wheel: TimingWheel, purgatory: Purgatory) -> None:
    assert len(purgatory) == 0
    assert purgatory.watched_keys == 0
    assert len(wheel) == 0


def test_what_is_ready_completes_at_once() -> None:
    wheel, purgatory = make()
    operation = Operation(is_ready=True)
    watched = purgatory.watch(operation, ["a", "b"], 100)
    assert watched.is_done
    assert operation.completions == [False]
    assert_nothing_is_left(wheel, purgatory)


def test_a_check_of_any_key_completes_it_and_removes_it_from_all() -> None:
    wheel, purgatory = make()
    operation = Operation()
    purgatory.watch(operation, ["a", "b", "a"], 100)
    assert purgatory.check_and_complete("b") == 0
    assert len(purgatory) == 1
    operation.ready = True
    assert purgatory.check_and_complete("unrelated") == 0
    assert purgatory.check_and_complete("b") == 1
    assert purgatory.check_and_complete("a") == 0
    wheel.advance(1000)
    assert operation.completions == [False]
    assert_nothing_is_left(wheel, purgatory)


def test_it_expires_through_the_wheel() -> None:
    wheel, purgatory = make()
    operation = Operation()
    watched = purgatory.watch(operation, ["a"], 100)
    wheel.advance(99)
    assert not watched.is_done
    wheel.advance(100)
    assert operation.completions == [True]
    assert purgatory.expired_count == 1
    assert_nothing_is_left(wheel, purgatory)


def test_cancel_drops_it_without_completing() -> None:
    wheel, purgatory = make()
    operation = Operation()
    watched = purgatory.watch(operation, ["a"], 100)
    assert watched.cancel()
    assert not watched.cancel()
    assert not watched.force_complete()
    operation.ready = True
    purgatory.check_and_complete("a")
    wheel.advance(1000)
    assert operation.completions == []
    assert_nothing_is_left(wheel, purgatory)


def test_force_complete_by_key_and_in_all() -> None:
    wheel, purgatory = make()
    operations = [Operation() for _ in range(4)]
    for operation, keys in zip(operations, (["a"], ["a", "b"], ["b"], ["c"]), strict=True):
        purgatory.watch(operation, keys, 100)
    assert purgatory.force_complete_all("a") == 2
    assert purgatory.force_complete_all("nobody") == 0
    assert purgatory.force_complete_everything() == 2
    assert [operation.completions for operation in operations] == [[False]] * 4
    assert_nothing_is_left(wheel, purgatory)


def test_completing_one_may_lead_back_to_itself_and_to_others() -> None:
    wheel, purgatory = make()
    second = Operation()

    def then() -> None:
        second.ready = True
        purgatory.check_and_complete("a")  # itself is on this key, and `second`

    first = Operation(then=then)
    purgatory.watch(first, ["a"], 100)
    purgatory.watch(second, ["a"], 100)
    first.ready = True
    purgatory.check_and_complete("a")
    assert first.completions == second.completions == [False]
    assert_nothing_is_left(wheel, purgatory)


def test_a_check_may_lead_to_the_end_of_the_operation_it_checks() -> None:
    wheel, purgatory = make()

    class Fatal(Operation):
        def is_ready(self) -> bool:
            purgatory.force_complete_all("a")
            return False

    operation = Fatal()
    assert purgatory.watch(operation, ["a"], 100).is_done
    assert operation.completions == [False]
    assert_nothing_is_left(wheel, purgatory)


def test_an_operation_that_raises_harms_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    wheel, purgatory = make()

    def fail() -> None:
        raise ValueError("broken")

    class Uncheckable(Operation):
        def is_ready(self) -> bool:
            raise ValueError("cannot tell")

    uncheckable, broken, fine = Uncheckable(), Operation(then=fail), Operation()
    with caplog.at_level(logging.ERROR):
        for operation in (uncheckable, broken, fine):
            purgatory.watch(operation, ["a"], 100)
        broken.ready = fine.ready = True
        assert purgatory.check_and_complete("a") == 2
        assert fine.completions == [False]
        wheel.advance(100)
    assert uncheckable.completions == [True]  # answered at its timeout
    assert "cannot tell" in caplog.text
    assert "broken" in caplog.text
    assert_nothing_is_left(wheel, purgatory)


def test_lists_hold_only_what_waits() -> None:
    """A partition that is fetched from for ever, with long timeouts, must not gather finished operations."""
    wheel, purgatory = make()
    for _ in range(5000):
        operation = Operation()
        purgatory.watch(operation, ["hot", "cold"], 30_000)
        operation.ready = True
        purgatory.check_and_complete("hot")
    assert_nothing_is_left(wheel, purgatory)


_EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["watch", "ready", "check", "advance", "cancel", "force"]),
        st.integers(0, 7),
        st.integers(0, 40),
    ),
    max_size=80,
)


@settings(max_examples=300)
@given(_EVENTS)
def test_exactly_once_in_any_order_of_events(events: list[tuple[str, int, int]]) -> None:
    wheel, purgatory = make()
    operations: list[tuple[Operation, Watched]] = []
    cancelled: set[int] = set()
    now_ms = 0
    for kind, choice, number in events:
        if kind == "watch":
            operation = Operation(is_ready=number == 0)
            keys = [key for key in range(3) if choice & (1 << key)]
            operations.append((operation, purgatory.watch(operation, keys, now_ms + number)))
        elif kind == "check":
            purgatory.check_and_complete(choice % 3)
        elif kind == "advance":
            now_ms += number
            wheel.advance(now_ms)
        elif operations:
            index = choice % len(operations)
            operation, watched = operations[index]
            if kind == "ready":
                operation.ready = True
            elif kind == "force":
                watched.force_complete()
            elif watched.cancel():
                cancelled.add(index)
        waiting = [watched for _, watched in operations if not watched.is_done]
        assert len(purgatory) == len(wheel) == len(waiting)
    wheel.advance(now_ms + 1000)
    for index, (operation, watched) in enumerate(operations):
        assert watched.is_done
        assert len(operation.completions) == (0 if index in cancelled else 1)
    assert_nothing_is_left(wheel, purgatory)
