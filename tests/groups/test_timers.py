"""Deadlines by key: what comes due, in which order, and that moving one does not pile up rubbish."""

from hypothesis import given
from hypothesis import strategies as st

from moldau.groups.timers import TimerKey, TimerKind, Timers

KEYS = [TimerKey(f"g{number % 2}", TimerKind.CLASSIC_SESSION, f"m{number}") for number in range(4)]


def test_timers_come_due_in_order_of_their_deadlines() -> None:
    timers = Timers()
    timers.schedule(KEYS[0], 30, 1)
    timers.schedule(KEYS[1], 10)
    timers.schedule(KEYS[2], 20)
    assert timers.next_deadline_ms() == 10
    due = [timers.pop_due(30), timers.pop_due(30), timers.pop_due(30)]
    assert [timer and timer.key for timer in due] == [KEYS[1], KEYS[2], KEYS[0]]
    assert due[2] is not None
    assert due[2].detail == (1,)
    assert timers.pop_due(30) is None
    assert timers.next_deadline_ms() is None


def test_a_heartbeat_per_second_for_an_hour_leaves_one_entry() -> None:
    timers = Timers()
    for second in range(3600):
        timers.schedule(KEYS[0], second * 1000 + 10_000)
        assert timers.pop_due(second * 1000) is None
    assert len(timers._heap) <= 2
    assert timers.next_deadline_ms() == 3599 * 1000 + 10_000


def test_a_timer_cancelled_and_set_again_and_again_leaves_a_few_entries() -> None:
    timers = Timers()
    for second in range(3000):
        timers.schedule(KEYS[0], second * 1000 + 10_000)
        timers.cancel(KEYS[0])
        timers.schedule(KEYS[1], 10_000_000 - second)
    assert len(timers) == 1
    assert len(timers._heap) <= 64
    assert timers.next_deadline_ms() == 10_000_000 - 2999


def test_the_timers_of_a_group_can_be_put_back() -> None:
    timers = Timers()
    timers.schedule(KEYS[0], 10, 7)
    timers.schedule(KEYS[1], 15)
    before = timers.of_group("g0")
    timers.schedule(KEYS[0], 90)
    timers.schedule(KEYS[2], 5)
    timers.restore_group("g0", before)
    assert len(timers) == 2
    assert timers.pop_due(20) == (KEYS[0], (7,))
    assert timers.pop_due(20) == (KEYS[1], ())


def test_a_group_takes_its_timers_along() -> None:
    timers = Timers()
    for key in KEYS:
        timers.schedule(key, 5)
    timers.cancel_group("g0")
    assert [key for key in KEYS if key in timers] == [KEYS[1], KEYS[3]]
    assert len(timers) == 2


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20), st.sampled_from(["set", "cancel", "pop"]))))
def test_timers_agree_with_a_plain_table(events: list[tuple[int, int, str]]) -> None:
    timers = Timers()
    table: dict[TimerKey, int] = {}
    for number, when, what in events:
        key = KEYS[number]
        if what == "set":
            timers.schedule(key, when)
            table[key] = when
        elif what == "cancel":
            timers.cancel(key)
            table.pop(key, None)
        else:
            timer = timers.pop_due(when)
            if timer is None:
                assert all(deadline > when for deadline in table.values())
            else:
                deadline = table.pop(timer.key)
                assert deadline <= when
                assert all(deadline <= other for other in table.values())
        assert timers.next_deadline_ms() == min(table.values(), default=None)
