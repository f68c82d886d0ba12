"""Maps that never change, and cost little to change.

An image of ten thousand topics gains one more: nobody should copy ten thousand entries for that. A `PersistentMap` is
a large dict that is never touched again, plus a small dict of what happened since. An update copies the small one;
when it outgrows the square root of the whole, both are merged. So an update costs O(√n) amortised, a lookup two dict
lookups, and the order of iteration depends on the history alone, never on hash seeds: simulations replay exactly.
"""

from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from math import isqrt
from typing import Final, Generic, TypeVar, cast, overload

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


class _Missing:
    __slots__ = ()


_MISSING: Final = _Missing()
_NOTHING: Final[dict[object, object]] = {}
_RECENT_MIN = 16


def _apply(target: dict[K, V], changes: Mapping[K, V | _Missing]) -> None:
    for key, value in changes.items():
        if isinstance(value, _Missing):
            target.pop(key, None)
        else:
            target[key] = value


class PersistentMap(Mapping[K, V]):
    """An immutable mapping. `builder()` collects changes; its `publish()` makes the next map."""

    # After a merge, `_merged_from` is the large dict before it and `_merged_keys` what the merge brought in, so that
    # `changed_keys` still need not look at everything. The reference is a token: the old dict itself may go.
    __slots__ = ("_base", "_merged_from", "_merged_keys", "_recent", "_size", "_token")

    def __init__(self, entries: Mapping[K, V] | None = None) -> None:
        self._token = object()
        self._merged_from: object = None
        self._merged_keys: tuple[K, ...] = ()
        self._base: dict[K, V] = dict(entries) if entries else cast("dict[K, V]", _NOTHING)
        self._recent: dict[K, V | _Missing] = cast("dict[K, V | _Missing]", _NOTHING)
        self._size = len(self._base)

    def __getitem__(self, key: K) -> V:
        found = self._recent.get(key, self)
        if found is self:
            return self._base[key]
        if isinstance(found, _Missing):
            raise KeyError(key)
        return cast("V", found)

    @overload
    def get(self, key: K, /) -> V | None: ...
    @overload
    def get(self, key: K, /, default: V | D) -> V | D: ...
    def get(self, key: K, /, default: V | D | None = None) -> V | D | None:
        # Mapping's own would raise and catch a KeyError.
        if key in self._recent:
            found = self._recent[key]
            return default if isinstance(found, _Missing) else found
        return self._base.get(key, default)

    def __contains__(self, key: object) -> bool:
        if key in self._recent:
            return self._recent[key] is not _MISSING
        return key in self._base

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[K]:
        return iter(self._merged())

    def items(self) -> ItemsView[K, V]:
        return self._merged().items()

    def values(self) -> ValuesView[V]:
        return self._merged().values()

    def _merged(self) -> dict[K, V]:
        """Everything in one dict, not to be written to: a copy in C is cheaper than iterating over two in Python."""
        if not self._recent:
            return self._base
        merged = self._base.copy()
        _apply(merged, self._recent)
        return merged

    def __repr__(self) -> str:
        return f"PersistentMap({dict(self)!r})"

    def builder(self) -> "MapBuilder[K, V]":
        return MapBuilder(self)

    def with_entry(self, key: K, value: V) -> "PersistentMap[K, V]":
        builder = self.builder()
        builder.put(key, value)
        return builder.publish()

    def changed(self, changes: Mapping[K, V | _Missing], size: int) -> "PersistentMap[K, V]":
        """For `MapBuilder`: this map with `changes` on top."""
        made: PersistentMap[K, V] = PersistentMap.__new__(PersistentMap)
        made._size = size
        if len(self._recent) + len(changes) <= max(_RECENT_MIN, isqrt(len(self._base))):
            made._base = self._base
            made._token, made._merged_from, made._merged_keys = self._token, self._merged_from, self._merged_keys
            made._recent = {**self._recent, **changes}
            return made
        merged = self._base.copy()
        _apply(merged, self._recent)
        _apply(merged, changes)
        made._base = merged
        made._token, made._merged_from = object(), self._token
        made._merged_keys = tuple({**self._recent, **changes})
        made._recent = cast("dict[K, V | _Missing]", _NOTHING)
        return made


def changed_keys(before: PersistentMap[K, V], after: PersistentMap[K, V]) -> Iterator[K]:
    """The keys whose values differ. Maps that share their large part are compared in the time of the small one."""
    if before is after:
        return
    if before._base is after._base:
        older, newer = before._recent, after._recent
        candidates: Iterator[K] = (key for key in {**older, **newer} if older.get(key) is not newer.get(key))
    elif before._token is after._merged_from:
        candidates = iter({**before._recent, **dict.fromkeys(after._merged_keys), **after._recent})
    else:
        candidates = iter({**dict.fromkeys(before), **dict.fromkeys(after)})
    for key in candidates:
        old, new = before.get(key), after.get(key)
        if old is not new and old != new:
            yield key


class MapBuilder(Generic[K, V]):
    """Changes on the way to the next map. None is not a value: it stands for "not there"."""

    __slots__ = ("_before", "_changes", "_size")

    def __init__(self, before: PersistentMap[K, V]) -> None:
        self._before = before
        self._changes: dict[K, V | _Missing] = {}
        self._size = len(before)

    def get(self, key: K) -> V | None:
        found = self._changes.get(key, self)
        if found is self:
            return self._before.get(key)
        return None if isinstance(found, _Missing) else cast("V", found)

    def put(self, key: K, value: V) -> None:
        if self.get(key) is None:
            self._size += 1
        self._changes[key] = value

    def remove(self, key: K) -> V | None:
        """The value that was there, or None."""
        value = self.get(key)
        if value is not None:
            self._size -= 1
            self._changes[key] = _MISSING
        return value

    def publish(self) -> PersistentMap[K, V]:
        return self._before.changed(self._changes, self._size) if self._changes else self._before
