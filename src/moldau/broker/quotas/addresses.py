"""How fast single addresses may connect: quotas of the metadata, measured here and obeyed by `moldau.net`."""

from __future__ import annotations

from collections.abc import Mapping

from moldau.broker.quotas.limits import AddressLimits
from moldau.broker.quotas.rates import Rate, Windows
from moldau.controller.image import QuotaEntity

_REMEMBERED_MIN = 1_000


class AddressQuotas:
    """Connections per second of each address that has a limit, or the default."""

    __slots__ = ("_limits", "_prune_at", "_quotas", "_rates", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._limits = AddressLimits(())
        self._quotas: Mapping[QuotaEntity, Mapping[str, float]] = {}
        self._rates: dict[str, Rate] = {}
        self._prune_at = _REMEMBERED_MIN

    def follow(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        if quotas is not self._quotas:
            self._quotas = quotas
            self._limits = AddressLimits(quotas.items())

    def connected(self, address: str, now_ms: float) -> float:
        """A connection came: 0 if it may stay, else how long its address must wait. Then it does not count."""
        limit = self._limits.find(address) if self._limits else None
        if limit is None:
            return 0.0
        rate = self._rates.get(address)
        if rate is None:
            if len(self._rates) >= self._prune_at:
                self._rates = {each: known for each, known in self._rates.items() if not known.is_idle(now_ms)}
                self._prune_at = max(_REMEMBERED_MIN, 2 * len(self._rates))
            rate = self._rates[address] = Rate(self._windows)
        rate.record(1, now_ms)
        waits_ms = rate.wait_ms(limit, now_ms)
        if waits_ms > 0:
            rate.record(-1, now_ms)
        return waits_ms
