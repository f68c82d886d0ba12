"""What clients used lately, and for how long those who used too much must be silent.

Nothing is measured for a client without a limit, and nothing at all while nobody has one (`is_active`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from moldau.broker.quotas.limits import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    ClientLimits,
    Limit,
)
from moldau.broker.quotas.rates import Rate, TokenBucket, Windows
from moldau.controller.image import QuotaEntity

_REMEMBERED_MIN = 1_000
_NO_LIMITS = ClientLimits((), "")
M = TypeVar("M", Rate, TokenBucket)


@dataclass(slots=True, frozen=True)
class Client:
    """As quotas know it."""

    user: str
    client_id: str


class _Measured(Generic[M]):
    """One quota: its limits, and a measurement for each entity that has one and used it lately."""

    __slots__ = ("_kind", "_measured", "_prune_at", "_windows", "limits")

    def __init__(self, kind: type[M], windows: Windows) -> None:
        self.limits = _NO_LIMITS
        self._kind: type[M] = kind
        self._windows = windows
        self._measured: dict[Hashable, M] = {}
        self._prune_at = _REMEMBERED_MIN

    def of(self, client: Client, now_ms: float) -> tuple[Limit, M] | None:
        limit = self.limits.find(client.user, client.client_id)
        if limit is None:
            return None
        key = limit.user, limit.client_id
        found = self._measured.get(key)
        if found is None:
            if len(self._measured) >= self._prune_at:
                self._prune(now_ms)
            found = self._measured[key] = self._kind(self._windows)
        return limit, found

    def _prune(self, now_ms: float) -> None:
        """A client id is soon invented: what was not used for long enough is as good as new, and goes."""
        self._measured = {key: each for key, each in self._measured.items() if not each.is_idle(now_ms)}
        self._prune_at = max(_REMEMBERED_MIN, 2 * len(self._measured))


class ClientQuotas:
    """Of one node. `follow` is told of the metadata's quotas; every use says when it is."""

    __slots__ = ("_fetched", "_mutations", "_produced", "_quotas", "_requests", "_windows", "is_active")

    def __init__(self, windows: Windows, mutation_windows: Windows) -> None:
        self._windows = windows
        self._produced = _Measured(Rate, windows)
        self._fetched = _Measured(Rate, windows)
        self._requests = _Measured(Rate, windows)
        self._mutations = _Measured(TokenBucket, mutation_windows)
        self._quotas: Mapping[QuotaEntity, Mapping[str, float]] = {}
        self.is_active = False
        """Whether any client has a limit."""

    def follow(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        if quotas is self._quotas:
            return
        self._quotas = quotas
        items: Iterable[tuple[QuotaEntity, Mapping[str, float]]] = list(quotas.items())
        self._produced.limits = ClientLimits(items, PRODUCER_BYTE_RATE)
        self._fetched.limits = ClientLimits(items, CONSUMER_BYTE_RATE)
        self._requests.limits = ClientLimits(items, REQUEST_PERCENTAGE)
        self._mutations.limits = ClientLimits(items, CONTROLLER_MUTATION_RATE)
        every = (self._produced, self._fetched, self._requests, self._mutations)
        self.is_active = any(each.limits for each in every)

    def produced(self, client: Client, size_bytes: int, now_ms: float) -> float:
        """So much arrived: for how many milliseconds nothing more should."""
        return _record(self._produced, client, size_bytes, now_ms)

    def fetched(self, client: Client, size_bytes: int, now_ms: float) -> float:
        """So much would be sent. If that is too much it is not counted, for it is not sent: silence comes first.

        A batch that is larger than what all windows may have would never be sent that way, as in Apache Kafka. Here it
        is, after enough silence, and counted: the next one waits accordingly."""
        found = self._fetched.of(client, now_ms) if self._fetched.limits else None
        if found is None:
            return 0.0
        limit, rate = found
        had_any = rate.per_second(now_ms) > 0
        rate.record(size_bytes, now_ms)
        waits_ms = rate.wait_ms(limit.per_second, now_ms)
        if waits_ms > 0 and not had_any and size_bytes > self._at_once_max(limit):
            return 0.0
        if waits_ms > 0:
            rate.record(-size_bytes, now_ms)
        return waits_ms

    def _at_once_max(self, limit: Limit) -> float:
        return limit.per_second * (self._windows.number - 1) * self._windows.size_ms / 1_000

    def fetch_bytes_max(self, client: Client, now_ms: float) -> float | None:
        """More than this at once would always be too much; None without a limit."""
        found = self._fetched.of(client, now_ms) if self._fetched.limits else None
        if found is None:
            return None
        return self._at_once_max(found[0])

    def worked(self, client: Client, busy_ms: float, now_ms: float) -> float:
        """A request took so much of the loop's time. Never more than a window of silence for that."""
        waits_ms = _record(self._requests, client, busy_ms / 10, now_ms)  # of a second, in percent
        return min(waits_ms, self._windows.size_ms)

    def mutation_wait_ms(self, client: Client, now_ms: float) -> float:
        """How long until the client may change the cluster again."""
        found = self._mutations.of(client, now_ms) if self._mutations.limits else None
        return 0.0 if found is None else found[1].wait_ms(found[0].per_second, now_ms)

    def mutated(self, client: Client, partitions: int, now_ms: float) -> float:
        """So many partitions are created or deleted: how long until the client may do so again."""
        found = self._mutations.of(client, now_ms) if self._mutations.limits else None
        if found is None:
            return 0.0
        limit, bucket = found
        bucket.take(partitions, limit.per_second, now_ms)
        return bucket.wait_ms(limit.per_second, now_ms)


def _record(measured: _Measured[Rate], client: Client, value: float, now_ms: float) -> float:
    found = measured.of(client, now_ms) if measured.limits else None
    if found is None:
        return 0.0
    limit, rate = found
    rate.record(value, now_ms)
    return rate.wait_ms(limit.per_second, now_ms)
