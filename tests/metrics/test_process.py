"""How late the event loop is, and how idle."""

import asyncio
import time

from moldau.metrics.process import LoopDelay


def test_a_loop_that_works_is_less_idle_than_one_that_waits() -> None:
    async def ratio(works: bool) -> float:
        delay = LoopDelay(asyncio.get_running_loop())
        delay.start()
        until = time.thread_time() + 0.3
        while delay.times.count < 2 or (works and time.thread_time() < until):
            await asyncio.sleep(0 if works else 0.01)
        delay.stop()
        return delay.idle_ratio

    working, waiting = asyncio.run(ratio(True)), asyncio.run(ratio(False))
    assert 0 < working < waiting <= 1
