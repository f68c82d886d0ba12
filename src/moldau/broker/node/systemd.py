"""Telling systemd how it goes (`Type=notify`): that a start goes on, that it is over, and that the loop still turns.

The protocol is a datagram to the socket that `NOTIFY_SOCKET` names. Without one, nothing is told to nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Mapping

_START_EVERY_SECONDS = 5.0
_START_EXTENDED_US = 60_000_000


class Notifier:
    def __init__(self, environment: Mapping[str, str] = os.environ, process_id: int | None = None) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        if self._address.startswith("@"):  # Linux: a name that is in no folder
            self._address = "\0" + self._address[1:]
        own = str(os.getpid() if process_id is None else process_id)
        microseconds = environment.get("WATCHDOG_USEC", "")
        is_ours = environment.get("WATCHDOG_PID", own) == own
        self.watchdog_seconds = int(microseconds) / 1e6 if microseconds.isdecimal() and is_ours else 0.0
        """How long systemd waits for a sign of life; 0: it does not."""

    @property
    def is_wanted(self) -> bool:
        return bool(self._address)

    def tell(self, *lines: str) -> None:
        """`READY=1`, `STATUS=…`. Nobody there is no reason to fail."""
        if self._address:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.setblocking(False)
                sock.sendto("\n".join(lines).encode(), self._address)

    async def while_starting(self, phase: Callable[[], str]) -> None:
        """A recovery takes as long as it takes: ask for more time, again and again, until cancelled."""
        while True:
            self.tell(f"STATUS={phase()}", f"EXTEND_TIMEOUT_USEC={_START_EXTENDED_US}")
            await asyncio.sleep(_START_EVERY_SECONDS)

    async def while_serving(self) -> None:
        """A sign of life from the loop itself, twice as often as needed: one that hangs is restarted."""
        while self.watchdog_seconds:
            self.tell("WATCHDOG=1")
            await asyncio.sleep(self.watchdog_seconds / 2)
