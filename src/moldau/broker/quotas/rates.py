"""How much there was per second: measured in windows, as Kafka does, or with a bucket of tokens.

Both say for how long whoever had too much must wait until it is within its limit again: for a burst after silence, both
say the same. No clock here.
"""

from __future__ import annotations

from typing import NamedTuple


class Windows(NamedTuple):
    """`quota.window.num` windows of `quota.window.size.seconds`: what is measured over."""

    number: int = 11
    size_ms: float = 1_000.0

    @property
    def total_ms(self) -> float:
        return self.number * self.size_ms


class _Sample:
    __slots__ = ("last_ms", "start_ms", "value")

    def __init__(self, now_ms: float) -> None:
        self.start_ms = self.last_ms = now_ms
        self.value = 0.0


class Rate:
    """A sum over the last windows, the current one included, divided by the time they span.

    A window begins when something is counted after the one before was full, so silence makes none. All but one of the
    windows are taken to have passed: a burst after silence is measured as if the silence belonged to it.
    """

    __slots__ = ("_samples", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._samples: list[_Sample] = []  # oldest first, at most one more than there are windows

    def record(self, value: float, now_ms: float) -> None:
        samples = self._samples
        if not samples or now_ms - samples[-1].start_ms >= self._windows.size_ms:
            samples.append(_Sample(now_ms))
            if len(samples) > self._windows.number + 1:
                del samples[0]
        samples[-1].value += value
        samples[-1].last_ms = now_ms

    def _forget_old(self, now_ms: float) -> None:
        """A sample is kept while any of it lies within the windows."""
        oldest_ms = now_ms - self._windows.total_ms
        samples = self._samples
        while samples and samples[0].last_ms <= oldest_ms:
            del samples[0]

    def span_ms(self, now_ms: float) -> float:
        self._forget_old(now_ms)
        elapsed_ms = now_ms - self._samples[0].start_ms if self._samples else 0.0
        missing = self._windows.number - 1 - int(elapsed_ms / self._windows.size_ms)
        if missing > 0:
            elapsed_ms += missing * self._windows.size_ms
        return max(elapsed_ms, 1.0)

    def per_second(self, now_ms: float) -> float:
        span_ms = self.span_ms(now_ms)
        return sum(each.value for each in self._samples) * 1_000 / span_ms

    def wait_ms(self, limit_per_second: float, now_ms: float) -> float:
        """How long nothing more may come until the rate is the limit; 0 if it is not above."""
        rate = self.per_second(now_ms)
        if rate <= limit_per_second:
            return 0.0
        return (rate - limit_per_second) / limit_per_second * self.span_ms(now_ms)

    def is_idle(self, now_ms: float) -> bool:
        """Whether forgetting it changes nothing."""
        self._forget_old(now_ms)
        return not self._samples


class TokenBucket:
    """Filled at the limit's rate up to what may come at once; what is taken may leave it in debt."""

    __slots__ = ("_burst_ms", "_tokens", "_updated_ms")

    def __init__(self, burst_ms: float) -> None:
        """So much time's worth may come at once."""
        self._burst_ms = burst_ms
        self._tokens: float | None = None  # full
        self._updated_ms = 0.0

    def left(self, limit_per_second: float, now_ms: float) -> float:
        """Below zero it is a debt."""
        burst = self._burst_ms / 1_000 * limit_per_second
        tokens = burst if self._tokens is None else self._tokens
        tokens = min(burst, tokens + limit_per_second * (now_ms - self._updated_ms) / 1_000)
        self._tokens, self._updated_ms = tokens, now_ms
        return tokens

    def wait_ms(self, limit_per_second: float, now_ms: float) -> float:
        """Until there is no debt."""
        return max(0.0, -self.left(limit_per_second, now_ms) / limit_per_second * 1_000)

    def take(self, tokens: float, limit_per_second: float, now_ms: float) -> None:
        """Less than none gives back."""
        self._tokens = self.left(limit_per_second, now_ms) - tokens

    def is_full(self, limit_per_second: float, now_ms: float) -> bool:
        """Whether forgetting it changes nothing."""
        return self.left(limit_per_second, now_ms) >= self._burst_ms / 1_000 * limit_per_second
