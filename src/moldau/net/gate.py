"""Who may connect: connections counted per address and in all, and how fast new ones may come. No sockets here."""

from moldau.net.settings import UNLIMITED, ConnectionLimits


class Gate:
    __slots__ = ("_next_creation_ms", "_per_address", "limits", "lingering", "open_connections")

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.open_connections = 0
        self.lingering = 0  # closed, and still holding a descriptor
        self._per_address: dict[str, int] = {}
        self._next_creation_ms = 0.0

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

    def next_creation_ms(self, now_ms: float) -> float:
        """When the next connection may be accepted under the creation rate: now or later.

        Up to one second's worth may come at once; after that they are spaced evenly.
        """
        if self.limits.max_creation_rate >= UNLIMITED:
            return now_ms
        return max(now_ms, self._next_creation_ms - 1000 + 1000 / self.limits.max_creation_rate)

    def created(self, now_ms: float) -> None:
        rate = self.limits.max_creation_rate
        if rate < UNLIMITED:
            self._next_creation_ms = max(now_ms, self._next_creation_ms) + 1000 / rate
