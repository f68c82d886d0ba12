"""What is done from time to time does not stop for good after one mistake."""

from __future__ import annotations

from moldau.broker.wake_up import RETRY_MS, WakeUp
from moldau.timers.wheel import TimingWheel


def test_an_action_that_fails_comes_again() -> None:
    wheel = TimingWheel(0)
    runs: list[int] = []

    def act() -> None:
        runs.append(wheel.now_ms)
        if len(runs) == 1:
            raise RuntimeError("a mistake")

    wake_up = WakeUp(wheel, act)
    wake_up.at(10)
    wheel.advance(10)
    assert (runs, wake_up.is_set) == ([10], True)
    wheel.advance(10 + RETRY_MS)
    assert (runs, wake_up.is_set) == ([10, 10 + RETRY_MS], False)


def test_an_action_that_fails_after_it_said_when_to_come_keeps_to_that() -> None:
    wheel = TimingWheel(0)
    runs: list[int] = []

    def act() -> None:
        runs.append(wheel.now_ms)
        wake_up.at(wheel.now_ms + 20)
        raise RuntimeError("a mistake")

    wake_up = WakeUp(wheel, act)
    wake_up.at(10)
    wheel.advance(10)
    wheel.advance(30)
    assert runs == [10, 30]
