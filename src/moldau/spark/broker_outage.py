"""Brokers that go away for a while, as they do when a cluster is restarted or moved, are waited for.

Those that have answered before are given `outage`; at the very first question, when the address may be wrong, the
client's own patience has to do. While it waits it says so, and for what: at once, and then every half a minute.
"""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from moldau.client.connection import BrokerError, ClientError, Disconnected
from moldau.wire import ErrorCode

T = TypeVar("T")
_PAUSE_SECONDS = 1.0
_WORD_SECONDS = 30.0
_log = logging.getLogger(__name__)


def is_outage(error: ClientError) -> bool:
    """Whether time may cure it. A topic that is not there is not cured by waiting for brokers."""
    if isinstance(error, BrokerError):
        return bool(error.code.retriable) and error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return isinstance(error, Disconnected)


class Waiting:
    """One outage: of whom, since when, and what was said about it."""

    def __init__(
        self, limit_s: float, clock: Callable[[], float] = time.monotonic, *, whom: str = "the brokers"
    ) -> None:
        self._whom = whom
        self._clock = clock
        self._since = clock()
        self._limit_s = limit_s
        self._said_at: float | None = None

    def is_over(self) -> bool:
        return self._clock() - self._since >= self._limit_s

    def say(self, error: Exception) -> None:
        now = self._clock()
        if self._said_at is None or now - self._said_at >= _WORD_SECONDS:
            self._said_at = now
            left_s = max(self._limit_s - (now - self._since), 0)
            _log.warning("waiting for %s, %.0f s more (option outage): %s", self._whom, left_s, error)


class BrokerPatience:
    """Repeats work until brokers answer, or the time is over: then the last error is raised."""

    def __init__(
        self,
        outage_s: float,
        *,
        first_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._outage_s = outage_s
        self._first_s = first_s
        self._clock = clock
        self._pause = pause
        self.has_answered = False

    def outlast(self, work: Callable[[], T]) -> T:
        waiting: Waiting | None = None
        while True:
            try:
                done = work()
            except ClientError as error:
                if not is_outage(error):
                    raise
                if waiting is None:
                    waiting = Waiting(self._outage_s if self.has_answered else self._first_s, self._clock)
                if waiting.is_over():
                    raise
                waiting.say(error)
                self._pause(_PAUSE_SECONDS)  # nobody calls when a broker is back: it must be asked
            else:
                self.has_answered = True
                return done
