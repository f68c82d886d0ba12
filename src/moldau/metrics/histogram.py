"""A histogram with fixed buckets: one search in a short tuple per observation, and no memory beyond its buckets."""

from bisect import bisect_left
from collections.abc import Iterator

SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Histogram:
    """Belongs to one thread. `bounds` ascend; what is beyond the last of them falls into a bucket without bound."""

    __slots__ = ("_counts", "bounds", "count", "sum")

    def __init__(self, bounds: tuple[float, ...] = SECONDS) -> None:
        self.bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.count = 0
        self.sum = 0.0

    def observe(self, value: float, weight: int = 1) -> None:
        """`weight`: how many this one stands for, where only some of them are measured."""
        self._counts[bisect_left(self.bounds, value)] += weight
        self.count += weight
        self.sum += value * weight

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Each bound with how many were not beyond it; the last bound is infinity."""
        total = 0
        for bound, count in zip((*self.bounds, float("inf")), self._counts, strict=True):
            total += count
            yield bound, total
