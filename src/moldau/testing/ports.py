"""Ports for nodes that must know them before they listen, as the voters of a quorum must know each other's."""

import contextlib
import random
import socket
from pathlib import Path

_FIRST = 10_000
_TRIES_MAX = 1_000
_HANDED_OUT = Path("/proc/sys/net/ipv4/ip_local_port_range")
_HANDED_OUT_FROM = 32_768  # where the system does not say


def free_ports(count: int) -> list[int]:
    """Nobody's at this moment, and none that the system hands out to connections: of those one may be taken by the time
    a node listens on it."""
    end = _first_handed_out()
    chance = random.SystemRandom()  # tests run side by side: all begin with the same seed, maybe
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        for _ in range(_TRIES_MAX):
            if len(found) == count:
                return found
            taken = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):  # somebody listens there
                taken.bind(("127.0.0.1", chance.randrange(_FIRST, end) if end > _FIRST else 0))
                found.append(taken.getsockname()[1])
    raise OSError(f"there are no {count} free ports between {_FIRST} and {end}")


def _first_handed_out() -> int:
    try:
        return int(_HANDED_OUT.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _HANDED_OUT_FROM
