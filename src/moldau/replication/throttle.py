"""Bandwidth of replication (KIP-73): replicas named in a topic's settings share what the broker allows per second.

Only replicas that are not in sync are held back, so a throttle slows down moves and never shrinks an ISR.
"""

from collections import deque
from collections.abc import Sequence

_WINDOW_MS = 1_000.0
ALL_REPLICAS = "*"
UNLIMITED = 2**63 - 1


def is_throttled(setting: Sequence[str], partition: int, broker_id: int) -> bool:
    """Whether `leader.` or `follower.replication.throttled.replicas` names it (`partition:broker`; `*` is all)."""
    return bool(setting) and (ALL_REPLICAS in setting or f"{partition}:{broker_id}" in setting)


class ReplicationQuota:
    """Bytes per second, measured over a few windows, the current one included."""

    __slots__ = ("_samples", "_window_ms", "_windows", "bytes_per_second")

    def __init__(self, windows: int = 11, bytes_per_second: int = UNLIMITED, *, window_ms: float = _WINDOW_MS) -> None:
        self.bytes_per_second = bytes_per_second
        self._window_ms = window_ms
        self._windows = windows
        self._samples: deque[tuple[float, int]] = deque()  # (begin of the window, bytes)

    def record(self, size_bytes: int, now_ms: float) -> None:
        self._drop_old(now_ms)
        samples = self._samples
        if samples and now_ms - samples[-1][0] < self._window_ms:
            samples[-1] = (samples[-1][0], samples[-1][1] + size_bytes)
        else:
            samples.append((now_ms, size_bytes))

    def is_exceeded(self, now_ms: float) -> bool:
        if self.bytes_per_second >= UNLIMITED:
            return False
        self._drop_old(now_ms)
        total = sum(size for _, size in self._samples)
        # As if all windows but the current one had passed: a burst after silence is not punished for the silence.
        elapsed_ms = max((self._windows - 1) * self._window_ms, now_ms - self._samples[0][0]) if self._samples else 1.0
        return total * 1_000 > self.bytes_per_second * elapsed_ms

    def _drop_old(self, now_ms: float) -> None:
        oldest_ms = now_ms - self._windows * self._window_ms
        while self._samples and self._samples[0][0] <= oldest_ms:
            self._samples.popleft()
