"""Waiting for conditions. How long is a matter of patience, not of what is tested: a busy machine only takes longer."""

import asyncio
import time
from collections.abc import Callable

PATIENCE_S = 50.0  # less than a test may take, so that the failure tells where it waited


async def until(condition: Callable[[], object], seconds: float = PATIENCE_S) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


def wait_for(condition: Callable[[], object], seconds: float = PATIENCE_S) -> None:
    """The same without a loop."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
