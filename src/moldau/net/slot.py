"""The place of an answer among those of its connection: completed once, whenever, and sent in its turn."""

from __future__ import annotations

from typing import Final, Protocol

from moldau.seams.network import Payload

# Its states.
WAITING: Final = 0
ANSWERED: Final = 1
NO_ANSWER: Final = 2
CLOSE: Final = 3


class Connection(Protocol):
    """Who is told of a slot that is done."""

    def slot_done(self, slot: Slot) -> None: ...


class Slot:
    """See `moldau.seams.network.ResponseSlot`."""

    __slots__ = ("_connection", "payload", "reason", "state")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.state = WAITING
        self.payload: Payload = ()
        self.reason = ""

    def complete(self, payload: Payload) -> None:
        if self.state != WAITING:
            raise RuntimeError("a response slot was completed twice")
        self.state = ANSWERED
        self.payload = payload
        self._connection.slot_done(self)

    def complete_nothing(self) -> None:
        if self.state != WAITING:
            raise RuntimeError("a response slot was completed twice")
        self.state = NO_ANSWER
        self._connection.slot_done(self)

    def close(self, reason: str) -> None:
        if self.state != WAITING:
            raise RuntimeError("a response slot was completed twice")
        self.state = CLOSE
        self.reason = reason
        self._connection.slot_done(self)
