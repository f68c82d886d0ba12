"""Who is alive, as the active controller knows it from heartbeats.

Soft state, not in the metadata log: a new controller starts with everybody's session fresh. A session belongs to a
broker id and an epoch, so heartbeats of another incarnation do not keep the new one alive, nor the other way round.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from moldau.controller.image import ClusterImage


@dataclass(slots=True, frozen=True)
class BrokerSession:
    """When a broker was last heard from. A value: decisions say what it shall be (`ControllerResult.sessions`)."""

    epoch: int
    # When the broker was last heard of; None until its first heartbeat.
    contact_ms: float | None = None
    # How far the broker has read the metadata log.
    metadata_offset: int = -1
    # The others must have read the log up to here before the broker may finish its shutdown; -1: it is not in one.
    shutdown_offset: int = -1
    # The process it belonged to is certainly gone: the next incarnation need not wait for the session to end.
    is_of_the_past: bool = False


class KnownSessions(Protocol):
    """What a decision may know of the sessions. It changes none: it says what they shall be."""

    def of(self, broker_id: int, epoch: int) -> BrokerSession: ...

    def is_alive(self, broker_id: int, epoch: int, now_ms: float) -> bool: ...

    def lowest_active_offset(self, image: ClusterImage) -> int | None: ...


class BrokerSessions:
    __slots__ = ("_sessions", "session_timeout_ms")

    def __init__(self, session_timeout_ms: float) -> None:
        self.session_timeout_ms = session_timeout_ms
        self._sessions: dict[int, BrokerSession] = {}

    def activate(
        self, image: ClusterImage, now_ms: float, own_broker_id: int | None = None, own_epoch: int = -1
    ) -> None:
        """This node has become the active controller: give every unfenced broker one session's time to call.

        Also the broker of this very process. If that has not registered yet (its epoch is another one), the session is
        that of its last incarnation: it keeps nobody from registering, and when it is over that incarnation is fenced
        like any other, for opening the logs may take long.
        """
        self._sessions = {
            broker.broker_id: BrokerSession(
                broker.epoch,
                None if broker.fenced else now_ms,
                is_of_the_past=broker.broker_id == own_broker_id and broker.epoch != own_epoch,
            )
            for broker in image.brokers.values()
        }

    def get(self, broker_id: int, epoch: int) -> BrokerSession | None:
        session = self._sessions.get(broker_id)
        return session if session is not None and session.epoch == epoch else None

    def of(self, broker_id: int, epoch: int) -> BrokerSession:
        """The session of this incarnation, which may be about to begin."""
        return self.get(broker_id, epoch) or BrokerSession(epoch)

    def update(self, changes: Mapping[int, BrokerSession | None]) -> None:
        """What was decided is appended: sessions begin, go on, or end (None)."""
        for broker_id, session in changes.items():
            if session is None:
                self.close(broker_id)
            else:
                self._sessions[broker_id] = session

    def touch(self, broker_id: int, epoch: int, now_ms: float) -> None:
        """The broker is known to be alive, without having called."""
        session = self.get(broker_id, epoch)
        if session is not None and session.contact_ms is not None:
            self._sessions[broker_id] = replace(session, contact_ms=now_ms)

    def close(self, broker_id: int) -> None:
        self._sessions.pop(broker_id, None)

    def is_alive(self, broker_id: int, epoch: int, now_ms: float) -> bool:
        session = self.get(broker_id, epoch)
        if session is None or session.is_of_the_past or session.contact_ms is None:
            return False
        return not self._has_expired(session, now_ms)

    def expired(self, now_ms: float) -> list[int]:
        """Brokers that have not called for a session's time."""
        return [broker_id for broker_id, session in self._sessions.items() if self._has_expired(session, now_ms)]

    def _has_expired(self, session: BrokerSession, now_ms: float) -> bool:
        return session.contact_ms is not None and session.contact_ms + self.session_timeout_ms < now_ms

    def next_check_ms(self) -> float | None:
        """When the first session may expire, if nobody calls before; None when there is none."""
        contacts = [session.contact_ms for session in self._sessions.values() if session.contact_ms is not None]
        return min(contacts) + self.session_timeout_ms if contacts else None

    def lowest_active_offset(self, image: ClusterImage) -> int | None:
        """How far the slowest active broker has read the metadata log; None when no broker is active."""
        offsets = []
        for broker in image.brokers.values():
            if broker.is_active:
                session = self.get(broker.broker_id, broker.epoch)
                offsets.append(-1 if session is None else session.metadata_offset)
        return min(offsets, default=None)
