"""A limit of time for work that only a signal can end: Python's engine of regular expressions, which looks for signals.

Workers of Spark call us on their main thread, the only one that may set signals; on another one there is no limit.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator


class TooLong(Exception):
    """The alarm rang."""


@contextlib.contextmanager
def alarm() -> Iterator[None]:
    """Takes the signal for us; within, `limited` may be used any number of times."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: object) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, ring)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def limited(limit_s: float) -> Iterator[None]:
    """What is within ends with TooLong after this time."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
