"""The timing wheel against the simplest model there is: a list of deadlines, sorted."""

import gc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.timers import TimerHandle, TimingWheel


class Log:
    """Collects what fired, by name."""

    def __init__(self) -> None:
        self.fired: list[object] = []

    def note(self, name: object) -> None:
        self.fired.append(name)


def add(wheel: TimingWheel, log: Log, deadline_ms: float, name: object | None = None) -> TimerHandle:
    return wheel.add(deadline_ms, lambda: log.note(deadline_ms if name is None else name))


# Deadlines near together, at the edges of the levels (20, 400, 8000, 160000 ms), and far away.
_DELAYS = st.one_of(
    st.integers(-5, 50),
    st.sampled_from([19, 20, 21, 399, 400, 401, 7999, 8000, 8001, 159_999, 160_000, 160_001]),
    st.integers(0, 10_000_000),
)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), _DELAYS),
        st.tuples(st.just("cancel"), st.integers(0, 1000)),
        st.tuples(st.just("advance"), st.one_of(st.integers(0, 60), st.integers(0, 400_000))),
        st.tuples(st.just("advance to next"), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=400)
@given(start_ms=st.integers(0, 10**12), size=st.integers(2, 25), steps=_STEPS)
def test_fires_exactly_what_a_sorted_list_would(start_ms: int, size: int, steps: list[tuple[str, int]]) -> None:
    wheel = TimingWheel(start_ms, size=size)
    log = Log()
    now_ms = start_ms
    handles: list[TimerHandle] = []
    pending: dict[int, int] = {}  # the model: index of the handle -> deadline
    for kind, number in steps:
        if kind == "add":
            index = len(handles)
            handles.append(add(wheel, log, now_ms + number, name=index))
            pending[index] = now_ms + number
        elif kind == "cancel" and handles:
            index = number % len(handles)
            assert handles[index].cancel() == (index in pending)
            pending.pop(index, None)
        elif kind.startswith("advance"):
            next_ms = wheel.next_deadline_ms()
            now_ms = max(now_ms, next_ms or 0) if kind == "advance to next" else now_ms + number
            log.fired.clear()
            ran = wheel.advance(now_ms)
            due = {index: deadline for index, deadline in pending.items() if deadline <= now_ms}
            assert ran == len(log.fired) == len(due)
            assert set(log.fired) == set(due)
            # In the order of time, as far as timers were still in the future when they were added.
            deadlines = [due[index] for index in log.fired if isinstance(index, int)]
            late = [d for d in deadlines if d <= now_ms - number]
            assert [d for d in deadlines if d not in late] == sorted(d for d in deadlines if d not in late)
            for index in due:
                del pending[index]
        assert len(wheel) == len(pending)
        next_ms = wheel.next_deadline_ms()
        if pending:
            assert next_ms is not None
            assert next_ms <= max(min(pending.values()), now_ms)  # never sleeps past a deadline
        else:
            assert next_ms is None


@given(st.lists(st.integers(1, 10_000_000), min_size=1, max_size=50))
def test_walking_from_deadline_to_deadline_fires_each_at_its_millisecond(delays: list[int]) -> None:
    wheel = TimingWheel(1_000)
    log = Log()
    for delay in delays:
        add(wheel, log, 1_000 + delay)
    fired: list[tuple[int, object]] = []
    wakeups = 0
    while (next_ms := wheel.next_deadline_ms()) is not None:
        wakeups += 1
        log.fired.clear()
        wheel.advance(next_ms)
        fired += [(next_ms, name) for name in log.fired]
    assert fired == [(deadline, deadline) for deadline in sorted(1_000 + delay for delay in delays)]
    assert wakeups <= 6 * len(delays)  # at most once per level and timer: no empty ticking


def test_a_fraction_of_a_millisecond_is_never_early() -> None:
    wheel = TimingWheel(0.9)
    log = Log()
    add(wheel, log, 5.2)
    wheel.advance(5.9)
    assert log.fired == []
    wheel.advance(6.0)
    assert log.fired == [5.2]


def test_time_never_goes_back() -> None:
    wheel = TimingWheel(100)
    log = Log()
    wheel.advance(200)
    wheel.advance(150)
    assert wheel.now_ms == 200
    add(wheel, log, 180)
    assert wheel.next_deadline_ms() == 200
    wheel.advance(150)
    assert log.fired == [180]


def test_cancelled_timers_are_forgotten_at_once_and_do_not_wake() -> None:
    wheel = TimingWheel(0)
    handles = [wheel.add(30_000, lambda: None) for _ in range(1000)]
    gc.collect()
    assert all(handle.cancel() for handle in handles)
    assert not any(handle.cancel() for handle in handles)
    assert len(wheel) == 0
    assert wheel.next_deadline_ms() is None
    # Nothing but our own list refers to them any more.
    assert [len(gc.get_referrers(handles[index])) for index in range(3)] == [1, 1, 1]


def test_a_callback_may_cancel_another_that_is_due_in_the_same_advance() -> None:
    wheel = TimingWheel(0)
    log = Log()
    victims: list[TimerHandle] = []

    def kill() -> None:
        log.note("killer")
        assert victims[0].cancel()

    wheel.add(10, kill)
    victims.append(add(wheel, log, 11, name="victim"))
    assert wheel.advance(50) == 1
    assert log.fired == ["killer"]
    assert len(wheel) == 0


def test_a_due_timer_that_is_cancelled_neither_wakes_nor_hides_the_next() -> None:
    wheel = TimingWheel(0)
    log = Log()
    calls: list[int | None] = []
    wheel.on_earlier_deadline = lambda: calls.append(wheel.next_deadline_ms())
    assert add(wheel, log, 0, name="cancelled").cancel()
    assert wheel.next_deadline_ms() is None
    add(wheel, log, 0, name="kept")
    assert calls == [0, 0]
    assert wheel.advance(0) == 1
    assert log.fired == ["kept"]


def test_a_callback_that_adds_a_due_timer_does_not_trap_the_loop() -> None:
    wheel = TimingWheel(0)
    count = 0

    def again() -> None:
        nonlocal count
        count += 1
        wheel.add(0, again)

    wheel.add(1, again)
    for expected in (1, 2, 3):
        wheel.advance(10)
        assert count == expected
        assert wheel.next_deadline_ms() == 10


def test_a_callback_that_raises_does_not_take_others_with_it() -> None:
    wheel = TimingWheel(0)
    log = Log()

    def fail() -> None:
        raise ValueError("broken")

    add(wheel, log, 1, name="before")
    wheel.add(2, fail)
    add(wheel, log, 3, name="after")
    with pytest.raises(ValueError, match="broken"):
        wheel.advance(10)
    assert log.fired == ["before"]
    assert wheel.next_deadline_ms() == 10
    wheel.advance(10)
    assert log.fired == ["before", "after"]
    assert len(wheel) == 0


def test_tells_its_owner_only_when_the_next_deadline_became_earlier() -> None:
    wheel = TimingWheel(0)
    calls: list[int | None] = []
    wheel.on_earlier_deadline = lambda: calls.append(wheel.next_deadline_ms())
    wheel.add(15, lambda: None)
    wheel.add(17, lambda: None)
    wheel.add(15, lambda: None)
    wheel.add(5, lambda: None)
    wheel.add(0, lambda: None)
    assert calls == [15, 5, 0]


def test_levels_are_created_on_demand() -> None:
    wheel = TimingWheel(0)
    assert len(wheel._levels) == 1
    wheel.add(19, lambda: None)
    assert len(wheel._levels) == 1
    wheel.add(20, lambda: None)
    assert len(wheel._levels) == 2
    wheel.add(7 * 24 * 3600 * 1000, lambda: None)
    assert len(wheel._levels) == 7


def test_a_wheel_needs_two_buckets() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        TimingWheel(0, size=1)


def test_two_hundred_thousand_pending_timers_are_all_fired_once() -> None:
    wheel = TimingWheel(0)
    fired = bytearray(200_000)

    def fire(index: int) -> None:
        fired[index] += 1

    handles = [wheel.add((index * 7919) % 600_000 + 1, lambda index=index: fire(index)) for index in range(200_000)]  # type: ignore[misc]  # a default binds the loop variable
    for handle in handles[::2]:
        handle.cancel()
    wheel.advance(600_000)
    assert len(wheel) == 0
    assert fired[::2] == bytes(100_000)
    assert fired[1::2] == b"\x01" * 100_000
