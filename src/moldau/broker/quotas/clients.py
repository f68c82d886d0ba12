"""What clients used lately, and for how long those who used too much must be silent.

Each limit is a bucket that holds as much as Kafka's windows let through after silence (`quota.window.num` less one of
them; of mutations all), so that a burst is answered as by Kafka. After that Kafka's windows forget the burst all at
once and let the next one through, every eleven seconds; here the limit is what there is.

Nothing is measured for a client without a limit, and nothing at all while nobody has one (`is_active`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from moldau.broker.quotas.limits import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    ClientLimits,
)
from moldau.broker.quotas.rates import TokenBucket, Windows
from moldau.controller.image import QuotaEntity

_REMEMBERED_MIN = 1_000
_NO_LIMITS = ClientLimits((), "")


@dataclass(slots=True, frozen=True)
class Client:
    """As quotas know it."""

    user: str
    client_id: str


class _Measured:
    """One quota: its limits, and a bucket for each entity that has one and used it lately."""

    __slots__ = ("_buckets", "_burst_ms", "_prune_at", "limits", "name", "silenced", "silenced_ms")

    def __init__(self, name: str, burst_ms: float) -> None:
        self.name = name
        self.limits = _NO_LIMITS
        self.silenced = 0
        """How often somebody was told to be silent, and for how long altogether."""
        self.silenced_ms = 0.0
        self._burst_ms = burst_ms
        self._buckets: dict[tuple[str | None, str | None], tuple[TokenBucket, float]] = {}
        self._prune_at = _REMEMBERED_MIN

    def of(self, client: Client, now_ms: float) -> tuple[float, TokenBucket] | None:
        """The limit per second, and the bucket; None without a limit."""
        if not self.limits:
            return None
        limit = self.limits.find(client.user, client.client_id)
        if limit is None:
            return None
        key = limit.user, limit.client_id
        found = self._buckets.get(key)
        if found is None or found[1] != limit.per_second:
            if len(self._buckets) >= self._prune_at:
                self._prune(now_ms)
            bucket = TokenBucket(self._burst_ms) if found is None else found[0]
            found = self._buckets[key] = (bucket, limit.per_second)
        return limit.per_second, found[0]

    @property
    def entities(self) -> int:
        """Those that have a limit and used some of it lately."""
        return len(self._buckets)

    def told(self, waits_ms: float) -> float:
        if waits_ms >= 1:
            self.silenced += 1
            self.silenced_ms += waits_ms
        return waits_ms

    def _prune(self, now_ms: float) -> None:
        """A client id is soon invented: what was not used for long enough is as good as new, and goes."""
        self._buckets = {
            key: (bucket, limit) for key, (bucket, limit) in self._buckets.items() if not bucket.is_full(limit, now_ms)
        }
        self._prune_at = max(_REMEMBERED_MIN, 2 * len(self._buckets))


class ClientQuotas:
    """Of one node. `follow` is told of the metadata's quotas; every use says when it is."""

    __slots__ = (
        "_burst_ms",
        "_fetched",
        "_mutations",
        "_produced",
        "_quotas",
        "_requests",
        "_windows",
        "epoch",
        "every",
        "is_active",
    )

    def __init__(self, windows: Windows, mutation_windows: Windows) -> None:
        self._windows = windows
        burst_ms = (windows.number - 1) * windows.size_ms or windows.size_ms
        self._burst_ms = burst_ms
        self._produced = _Measured("Produce", burst_ms)
        self._fetched = _Measured("Fetch", burst_ms)
        self._requests = _Measured("Request", burst_ms)
        self._mutations = _Measured("ControllerMutation", mutation_windows.total_ms)
        self.every = (self._produced, self._fetched, self._requests, self._mutations)
        self._quotas: Mapping[QuotaEntity, Mapping[str, float]] = {}
        self.is_active = False
        """Whether any client has a limit."""
        self.epoch = object()
        """Another one when limits may be others."""

    def follow(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        if quotas is self._quotas:
            return
        self._quotas = quotas
        items: Iterable[tuple[QuotaEntity, Mapping[str, float]]] = list(quotas.items())
        self._produced.limits = ClientLimits(items, PRODUCER_BYTE_RATE)
        self._fetched.limits = ClientLimits(items, CONSUMER_BYTE_RATE)
        self._requests.limits = ClientLimits(items, REQUEST_PERCENTAGE)
        self._mutations.limits = ClientLimits(items, CONTROLLER_MUTATION_RATE)
        self.is_active = any(each.limits for each in self.every)
        self.epoch = object()

    def concern(self, client: Client) -> bool:
        """Whether the client has a limit of any kind."""
        return any(each.limits.find(client.user, client.client_id) for each in self.every)

    def produced(self, client: Client, size_bytes: int, now_ms: float) -> float:
        """So much arrived: for how many milliseconds nothing more should."""
        return self._produced.told(_record(self._produced, client, size_bytes, now_ms))

    def fetched(self, client: Client, size_bytes: int, now_ms: float) -> float:
        """So much would be sent. If that is too much it is not counted, for it is not sent: silence comes first.

        A batch that is larger than what all windows may have would never be sent that way, as in Apache Kafka. Here it
        is, after enough silence, and counted: the next one waits accordingly."""
        found = self._fetched.of(client, now_ms)
        if found is None:
            return 0.0
        limit, bucket = found
        at_once_max = limit * self._burst_ms / 1_000
        if size_bytes > at_once_max and bucket.is_full(limit, now_ms):
            bucket.take(size_bytes, limit, now_ms)
            return 0.0
        bucket.take(size_bytes, limit, now_ms)
        waits_ms = bucket.wait_ms(limit, now_ms)
        if waits_ms > 0:
            bucket.take(-size_bytes, limit, now_ms)
        return self._fetched.told(waits_ms)

    def fetch_bytes_max(self, client: Client, now_ms: float) -> float | None:
        """More than this at once would always be too much; None without a limit."""
        found = self._fetched.of(client, now_ms)
        return None if found is None else found[0] * self._burst_ms / 1_000

    def worked(self, client: Client, busy_ms: float, now_ms: float) -> float:
        """A request took so much of the loop's time. Never more than a window of silence for that."""
        waits_ms = _record(self._requests, client, busy_ms / 10, now_ms)  # of a second, in percent
        return self._requests.told(min(waits_ms, self._windows.size_ms))

    def mutation_wait_ms(self, client: Client, now_ms: float) -> float:
        """How long until the client may change the cluster again."""
        found = self._mutations.of(client, now_ms)
        return 0.0 if found is None else self._mutations.told(found[1].wait_ms(found[0], now_ms))

    def mutations_left(self, client: Client, now_ms: float) -> float:
        """How many partitions the client may create or delete before it has to wait; below zero it has to already."""
        found = self._mutations.of(client, now_ms)
        return math.inf if found is None else found[1].left(found[0], now_ms)

    def mutated(self, client: Client, partitions: int, now_ms: float) -> float:
        """So many partitions are created or deleted: how long until the client may do so again. It is not told yet."""
        return _record(self._mutations, client, partitions, now_ms)


def _record(measured: _Measured, client: Client, value: float, now_ms: float) -> float:
    found = measured.of(client, now_ms)
    if found is None:
        return 0.0
    limit, bucket = found
    bucket.take(value, limit, now_ms)
    return bucket.wait_ms(limit, now_ms)
