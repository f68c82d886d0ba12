"""Numbers over time, in rings of one length: an hour of them in so many bytes, however long the console runs."""

from __future__ import annotations

import math
from array import array
from collections.abc import Hashable, Iterator, Mapping

TICKS = 720
SERIES_MAX = 40_000


class History:
    """Series share one time axis. A series nobody wrote to for a whole ring is dropped."""

    def __init__(self, ticks: int = TICKS, series_max: int = SERIES_MAX) -> None:
        self._ticks = ticks
        self._series_max = series_max
        self._times = array("d", [0.0]) * ticks
        self._count = 0
        self._series: dict[Hashable, array[float]] = {}
        self._written: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self._series)

    def note(self, at_ms: float, values: Mapping[Hashable, float]) -> None:
        place = self._count % self._ticks
        self._times[place] = at_ms
        self._count += 1
        for key, numbers in list(self._series.items()):
            if self._count - self._written[key] > self._ticks:
                del self._series[key], self._written[key]
            elif key not in values:
                numbers[place] = math.nan
        for key, value in values.items():
            found = self._series.get(key)
            if found is None:
                if len(self._series) >= self._series_max:
                    continue
                found = self._series[key] = array("f", [math.nan]) * self._ticks
            found[place] = value
            self._written[key] = self._count

    def times_ms(self) -> list[float]:
        return [self._times[place] for place in self._places()]

    def values(self, key: Hashable, last: int | None = None) -> list[float | None]:
        """Oldest first; None where nothing was noted."""
        numbers = self._series.get(key)
        places = list(self._places())
        if last is not None:
            places = places[-last:]
        if numbers is None:
            return [None] * len(places)
        return [None if math.isnan(numbers[place]) else numbers[place] for place in places]

    def names(self) -> list[Hashable]:
        return list(self._series)

    def _places(self) -> Iterator[int]:
        first = max(0, self._count - self._ticks)
        return (number % self._ticks for number in range(first, self._count))
