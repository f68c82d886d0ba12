"""What is due later than the timing wheel looks ahead: on disk, in order of time.

The outermost level of the wheel, so to speak: a SQLite file with no name, which the system deletes with the process.
It is a sorted copy of what the topics say, and worth nothing to anybody else.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Protocol

Place = tuple[int, bytes]
"""Due time and id: the order in which messages are looked at."""

Row = tuple[bytes, int, bytes]
"""Id, due time, and the delayed message's bytes."""

_CACHE_KIB = 8_192


class Far(Protocol):
    """What a shard needs of it; at most one row per id."""

    def __len__(self) -> int: ...

    def has(self, id_: bytes) -> bool: ...

    def put(self, rows: Sequence[Row]) -> None:
        """Add or replace."""

    def remove(self, ids: Sequence[bytes]) -> None:
        """Whatever of them there is."""

    def take(self, before: Place, count: int) -> list[Row]:
        """Remove and return the first ones before that place, in order."""

    def first(self) -> Place | None: ...

    def close(self) -> None: ...


class FarOnDisk:
    """For the thread that made it."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)  # a temporary file
        self._do(f"PRAGMA cache_size = -{_CACHE_KIB}")
        self._do("PRAGMA journal_mode = OFF")
        self._do("PRAGMA synchronous = OFF")
        self._do("PRAGMA temp_store = FILE")
        self._do("CREATE TABLE far (id BLOB PRIMARY KEY, due INTEGER NOT NULL, data BLOB NOT NULL) WITHOUT ROWID")
        self._do("CREATE INDEX by_due ON far (due, id)")
        self._count = 0

    def _do(self, statement: str, *values: object) -> sqlite3.Cursor:
        return self._database.execute(statement, values)

    def _many(self, statement: str, rows: Sequence[Sequence[object]]) -> int:
        """How many rows it changed."""
        self._do("BEGIN")
        changed = self._database.executemany(statement, rows).rowcount
        self._do("COMMIT")
        return changed

    @property
    def temp_store(self) -> int:
        """1: files."""
        found: int = self._do("PRAGMA temp_store").fetchone()[0]
        return found

    def __len__(self) -> int:
        return self._count

    def has(self, id_: bytes) -> bool:
        return self._count > 0 and self._do("SELECT 1 FROM far WHERE id = ?", id_).fetchone() is not None

    def put(self, rows: Sequence[Row]) -> None:
        self.remove([row[0] for row in rows])
        self._count += self._many("INSERT INTO far VALUES (?, ?, ?)", rows)

    def remove(self, ids: Sequence[bytes]) -> None:
        if self._count and ids:
            self._count -= self._many("DELETE FROM far WHERE id = ?", [(each,) for each in ids])

    def take(self, before: Place, count: int) -> list[Row]:
        if not self._count or count <= 0:
            return []
        found: list[Row] = self._do(
            "SELECT id, due, data FROM far WHERE (due, id) < (?, ?) ORDER BY due, id LIMIT ?", *before, count
        ).fetchall()
        self.remove([row[0] for row in found])
        return found

    def first(self) -> Place | None:
        if not self._count:
            return None
        found: Place = self._do("SELECT due, id FROM far ORDER BY due, id LIMIT 1").fetchone()
        return found

    def close(self) -> None:
        self._database.close()
