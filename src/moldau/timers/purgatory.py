"""Where requests wait for a condition: an acks=all Produce for the high watermark, a Fetch for `fetch.min.bytes`.

An operation is watched under keys (a partition, a group). Whoever changes something about a key calls
`check_and_complete(key)`; a timeout on the wheel completes what never became ready.

Invariants
- `on_complete` of an operation is called exactly once, unless it is cancelled: then never.
- A completed or cancelled operation is removed from all its keys and from the wheel at once, so the lists hold
  waiting operations only and no purge job is needed. (Kafka purges in batches, since its lists are shared by threads.)
- Operations may watch, check and complete others from within `is_ready` and `on_complete`.
- An operation that raises is logged, and harms neither the others on the key nor the caller that changed something.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable
from typing import Protocol

from moldau.timers.wheel import TimerHandle, TimingWheel

_log = logging.getLogger(__name__)


class DelayedOperation(Protocol):
    def is_ready(self) -> bool:
        """Whether the condition holds now. Called often: cheap, and without effect."""

    def on_complete(self, expired: bool) -> None:
        """Answer. `expired` tells a timeout from a condition that came true."""


class Watched:
    """One operation in the purgatory, held by whoever may need to end it early (its connection closed)."""

    __slots__ = ("_is_done", "_keys", "_operation", "_purgatory", "_timer")

    def __init__(self, purgatory: Purgatory, operation: DelayedOperation, keys: tuple[Hashable, ...]) -> None:
        self._purgatory = purgatory
        self._operation = operation
        self._keys = keys
        self._timer: TimerHandle | None = None
        self._is_done = False

    @property
    def is_done(self) -> bool:
        return self._is_done

    def check(self) -> bool:
        """Complete it if it is ready. True if this call completed it."""
        if self._is_done:
            return False
        try:
            if not self._operation.is_ready():
                return False
        except Exception:  # still watched: it is answered at its timeout at the latest
            _log.exception("a delayed operation failed its check: %r", self._operation)
            return False
        return self._complete(expired=False)

    def force_complete(self) -> bool:
        """Complete it now, ready or not. True if this call completed it."""
        return self._complete(expired=False)

    def cancel(self) -> bool:
        """Drop it without completing. True if it was still waiting."""
        if self._is_done:
            return False
        self._is_done = True
        self._purgatory._forget(self)
        return True

    def _expire(self) -> None:
        self._timer = None
        if self._complete(expired=True):
            self._purgatory.expired_count += 1

    def _complete(self, expired: bool) -> bool:
        # Removed before it runs: what `on_complete` changes may lead back to this operation.
        if not self.cancel():
            return False
        try:
            self._operation.on_complete(expired)
        except Exception:
            _log.exception("a delayed operation failed to complete: %r", self._operation)
        return True


class Purgatory:
    __slots__ = ("_size", "_watchers", "_wheel", "expired_count", "name")

    def __init__(self, name: str, wheel: TimingWheel) -> None:
        self.name = name
        self.expired_count = 0
        self._wheel = wheel
        self._watchers: dict[Hashable, dict[Watched, None]] = {}
        self._size = 0

    def __len__(self) -> int:
        """Operations waiting (each counted once, however many keys it has)."""
        return self._size

    @property
    def watched_keys(self) -> int:
        return len(self._watchers)

    def watch(self, operation: DelayedOperation, keys: Iterable[Hashable], deadline_ms: float) -> Watched:
        """Complete `operation` if it is ready, else when a check of one of `keys` finds it so, or at `deadline_ms`."""
        watched = Watched(self, operation, tuple(dict.fromkeys(keys)))
        self._size += 1
        for key in watched._keys:
            watchers = self._watchers.get(key)
            if watchers is None:
                watchers = self._watchers[key] = {}
            watchers[watched] = None
        if not watched.check() and not watched.is_done:  # `is_ready` may itself have led to its end
            watched._timer = self._wheel.add(deadline_ms, watched._expire)
        return watched

    def check_and_complete(self, key: Hashable) -> int:
        """Something about `key` changed: complete what is ready. Returns how many operations completed."""
        watchers = self._watchers.get(key)
        if watchers is None:
            return 0
        return sum(watched.check() for watched in tuple(watchers))

    def force_complete_all(self, key: Hashable) -> int:
        """Complete everything watched under `key`, ready or not: the partition moved away, the broker stops."""
        watchers = self._watchers.get(key)
        if watchers is None:
            return 0
        return sum(watched.force_complete() for watched in tuple(watchers))

    def force_complete_everything(self) -> int:
        return sum(self.force_complete_all(key) for key in tuple(self._watchers))

    def _forget(self, watched: Watched) -> None:
        self._size -= 1
        for key in watched._keys:
            watchers = self._watchers[key]
            del watchers[watched]
            if not watchers:
                del self._watchers[key]
        if watched._timer is not None:
            watched._timer.cancel()
            watched._timer = None
