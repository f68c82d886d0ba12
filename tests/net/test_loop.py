"""The loop and its timers."""

from __future__ import annotations

import asyncio
import builtins
import sys
from typing import Any

import pytest

from moldau.net import LoopTimers, new_event_loop
from moldau.seams.clock import SystemClock
from tests.net.conftest import Run
from tests.net.support import until


def test_uvloop_is_preferred_and_asyncio_can_be_forced() -> None:
    for kind, module in (("auto", "uvloop"), ("uvloop", "uvloop"), ("asyncio", "asyncio")):
        loop = new_event_loop(kind)  # type: ignore[arg-type]  # the loop over literals widens them
        assert type(loop).__module__.split(".")[0] == module
        loop.close()


def test_without_uvloop_asyncio_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def without_uvloop(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "uvloop":
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "uvloop", raising=False)
    monkeypatch.setattr(builtins, "__import__", without_uvloop)
    loop = new_event_loop()
    assert type(loop).__module__.startswith("asyncio")
    loop.close()
    with pytest.raises(ImportError):
        new_event_loop("uvloop")


def test_timers_fire_in_order_and_never_early(run: Run) -> None:
    clock = SystemClock()

    async def main() -> None:
        timers = LoopTimers(asyncio.get_running_loop(), clock)
        start_ms = clock.monotonic_ms()
        fired: list[tuple[int, float]] = []
        for delay in (40, 5, 20, 0, 21):  # also: an earlier one re-arms the sleeping loop
            timers.wheel.add(start_ms + delay, lambda delay=delay: fired.append((delay, clock.monotonic_ms())))  # type: ignore[misc]  # a bound default
            await asyncio.sleep(0)
        cancelled = timers.wheel.add(start_ms + 10, lambda: fired.append((10, 0)))
        cancelled.cancel()
        await until(lambda: len(fired) == 5)
        assert [delay for delay, _ in fired if delay] == [5, 20, 21, 40]
        assert all(at >= start_ms + delay for delay, at in fired)
        timers.close()

    run(main())


def test_a_failing_callback_is_reported_and_the_next_ones_run() -> None:
    clock = SystemClock()
    loop = new_event_loop("asyncio")
    reports: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: reports.append(context))

    def fail() -> None:
        raise ValueError("broken")

    async def main() -> None:
        timers = LoopTimers(loop, clock)
        fired: list[int] = []
        timers.wheel.add(clock.monotonic_ms() + 2, fail)
        timers.wheel.add(clock.monotonic_ms() + 2, lambda: fired.append(1))
        timers.wheel.add(clock.monotonic_ms() + 6, lambda: fired.append(2))
        await until(lambda: fired == [1, 2])
        timers.close()

    loop.run_until_complete(asyncio.wait_for(main(), 30))
    loop.close()
    assert [str(report["exception"]) for report in reports] == ["broken"]


def test_an_idle_wheel_does_not_wake_the_loop(run: Run) -> None:
    async def main() -> None:
        timers = LoopTimers(asyncio.get_running_loop(), SystemClock())
        handle = timers.wheel.add(SystemClock().monotonic_ms() + 5, lambda: None)
        handle.cancel()
        await until(lambda: timers._wakeup is None)  # it woke once for the cancelled timer, and armed nothing
        timers.close()
        assert timers.wheel.next_deadline_ms() is None

    run(main())
