"""Transactional ids nobody uses any more: found in sweeps that go a step at a time, and removed by tombstones.

Invariant: an id with a transition under way is left alone, and so is one that is not idle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from moldau.transactions import metadata as md
from moldau.transactions import records
from moldau.transactions.effects import Now
from moldau.transactions.metadata import IDLE
from moldau.transactions.pending import Transaction

_STEP = 5_000
_TOMBSTONE_BATCH_BYTES = 500_000  # of keys


class ExpirySweep:
    """Every `interval_ms` over all ids there were when it began; an hour's worth of idle ids may be many, so that one
    call looks at a few thousand."""

    __slots__ = ("_expiration_ms", "_interval_ms", "_left", "due_ms")

    def __init__(self, expiration_ms: int, interval_ms: int) -> None:
        self._expiration_ms = expiration_ms
        self._interval_ms = interval_ms
        self._left: Iterator[str] | None = None
        # When to begin; in the past while one is under way.
        self.due_ms = 0.0

    @property
    def is_under_way(self) -> bool:
        return self._left is not None

    def wait(self, now: Now) -> None:
        self.due_ms = now.monotonic_ms + self._interval_ms

    def step(self, transactions: Mapping[str, Transaction], now: Now) -> list[Transaction]:
        """Those of the next few thousand that nobody used for too long."""
        if self._left is None:
            self._left = iter(list(transactions))
        horizon_ms = now.wall_ms - self._expiration_ms
        expired: list[Transaction] = []
        for _ in range(_STEP):
            transactional_id = next(self._left, None)
            if transactional_id is None:
                self._left = None
                self.wait(now)
                break
            transaction = transactions.get(transactional_id)
            if transaction is None or transaction.pending is not None:
                continue
            if transaction.metadata.state in IDLE and transaction.metadata.last_update_ms <= horizon_ms:
                expired.append(transaction)
        return expired


def tombstones(expired: Sequence[Transaction]) -> Iterator[dict[str, records.Record]]:
    """Records that remove these ids, in batches; the transitions are under way from now on."""
    batch: dict[str, records.Record] = {}
    size_bytes = 0
    for transaction in expired:
        transaction.pending = md.dead(transaction.metadata)
        transactional_id = transaction.metadata.transactional_id
        record = records.tombstone(transactional_id)
        if batch and size_bytes + len(record.key) > _TOMBSTONE_BATCH_BYTES:
            yield batch
            batch, size_bytes = {}, 0
        batch[transactional_id] = record
        size_bytes += len(record.key)
    if batch:
        yield batch
