"""How often a long request mentions the same thing, counted without a stop.

A dict of a million keys moves all of them whenever it grows, 60 ms at one go. Many small ones grow one at a time. Which
of them has a key depends on the process' hash of text, so nobody outside can choose keys that meet in one.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from moldau.timers.turns import Slices

_FEW = 10_000
_PER_SLICE = 5_000
_PARTS = 256  # a power of two


class Mentions:
    def __init__(self, expected: int) -> None:
        self._parts: list[dict[Hashable, int]] = [{} for _ in range(1 if expected <= _FEW else _PARTS)]
        self._mask = len(self._parts) - 1

    def add(self, key: Hashable) -> int:
        """How often it was mentioned, this time included."""
        part = self._parts[hash(key) & self._mask]
        times = part[key] = part.get(key, 0) + 1
        return times

    def count(self, key: Hashable) -> int:
        """How often it was mentioned so far."""
        return self._parts[hash(key) & self._mask].get(key, 0)

    def take(self, key: Hashable) -> int:
        """How often it was mentioned; 0 from the second time on."""
        return self._parts[hash(key) & self._mask].pop(key, 0)

    def let_go(self) -> Slices[None]:
        """Of what was not taken, part by part: all at the end would be freed at one go."""
        for part in self._parts:
            part.clear()
            yield


def mentions_of(keys: Sequence[Hashable]) -> Slices[Mentions]:
    """All of them counted, some and some."""
    mentions = Mentions(len(keys))
    for number, key in enumerate(keys, 1):
        mentions.add(key)
        if number % _PER_SLICE == 0:
            yield
    return mentions
