"""Who may connect: connections counted per address and in all, and how fast new ones may come. No sockets here."""

from moldau.net.settings import UNLIMITED, ConnectionLimits

_RATE_MIN = 1e-6  # a rate of 0 is one connection in eleven days


class Gate:
    __slots__ = ("_next_creation_ms", "_per_address", "held", "limits", "lingering", "open_connections")

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.open_connections = 0
        self.lingering = 0  # closed, and still holding a descriptor
        self.held = 0  # of those, the ones that were turned away because their address comes too fast
        self._per_address: dict[str, int] = {}
        self._next_creation_ms: dict[str, float] = {}

    @property
    def is_full(self) -> bool:
        return self.open_connections >= self.limits.max_connections or self.is_out_of_sockets

    @property
    def is_out_of_sockets(self) -> bool:
        return self.open_connections + self.lingering >= self.limits.max_sockets

    def admit(self, address: str) -> bool:
        """Count a connection in, or refuse it because its address has too many."""
        count = self._per_address.get(address, 0)
        limits = self.limits
        if count >= limits.per_address_overrides.get(address, limits.max_per_address):
            return False
        self._per_address[address] = count + 1
        self.open_connections += 1
        return True

    def left(self, address: str) -> None:
        self.open_connections -= 1
        count = self._per_address[address] - 1
        if count:
            self._per_address[address] = count
        else:
            del self._per_address[address]

    @property
    def address_count(self) -> int:
        return len(self._per_address)

    def count_of(self, address: str) -> int:
        return self._per_address.get(address, 0)

    def next_creation_ms(self, listener: str, now_ms: float) -> float:
        """When the next connection of a listener may be accepted under the creation rates: now or later.

        Up to one second's worth may come at once; after that they are spaced evenly.
        """
        later = (next_ms - 1000 + 1000 / rate for _, next_ms, rate in self._creation_rates(listener))
        return max(now_ms, max(later, default=now_ms))

    def created(self, listener: str, now_ms: float) -> None:
        for name, next_ms, rate in self._creation_rates(listener):
            self._next_creation_ms[name] = max(now_ms, next_ms) + 1000 / rate

    def _creation_rates(self, listener: str) -> list[tuple[str, float, float]]:
        """Those that count for the listener: whose (the node's has no name), when it would be used up, and the rate."""
        limits = self.limits
        rates = [] if listener == limits.protected_listener else [("", limits.max_creation_rate)]
        own = limits.per_listener.get(listener)
        if own is not None:
            rates.append((listener, own.max_creation_rate))
        return [
            (name, self._next_creation_ms.get(name, 0.0), max(rate, _RATE_MIN))
            for name, rate in rates
            if rate < UNLIMITED
        ]

    def max_connections_of(self, listener: str) -> int:
        own = self.limits.per_listener.get(listener)
        return UNLIMITED if own is None else own.max_connections
