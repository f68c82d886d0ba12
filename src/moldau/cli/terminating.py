"""SIGTERM ends a command as Ctrl-C does: what was read is sent, what was shown is committed, and it is said how far it
came. Commands that serve (`serve`, `cluster`, `console`…) have handlers of their own.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def terminable() -> Iterator[list[int]]:
    """Turns SIGTERM into KeyboardInterrupt in here; the list has a number in it once one came."""
    came: list[int] = []

    def end(number: int, _: object) -> None:
        came.append(number)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield came
    finally:
        signal.signal(signal.SIGTERM, before)
