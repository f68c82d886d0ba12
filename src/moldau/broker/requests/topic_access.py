"""Which topics a client may read and write, for those who ask with every request: Produce and Fetch.

A session keeps the answers as long as they hold, by name or id as requests give them: looking one up costs no more than
looking into a dict.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from moldau.controller.acls import AclResource, Operation
from moldau.security.authorizer.authorizer import Known

if TYPE_CHECKING:
    from moldau.broker.calls import Session
    from moldau.broker.parts import HasAuthorizer, HasImage
    from moldau.security.authorizer import Authorizer
    from moldau.security.principal import Principal

    class Needs(HasAuthorizer, HasImage, Protocol):
        """What this file may touch."""


_REMEMBERED_MAX = 10_000


class Allowed(dict["str | bytes", bool]):
    """By topic name or id."""

    __slots__ = ("_broker", "_known")

    def __init__(self, broker: Needs, known: Known) -> None:
        super().__init__()
        self._broker = broker
        self._known = known

    def __missing__(self, topic: str | bytes) -> bool:
        name = self.name_of(topic)
        if name is None:
            return True  # nothing is there to be forbidden, and that is what the client is told
        if len(self) >= _REMEMBERED_MAX:
            self.clear()
        answer = self[topic] = self._known[name]
        return answer

    def name_of(self, topic: str | bytes) -> str | None:
        return self._broker.image.topic_names.get(topic) if isinstance(topic, bytes) else topic


def nothing(broker: Needs) -> Allowed:
    """For who may not read any topic."""
    return Allowed(broker, Known(lambda _: False))


class TopicAccess:
    """Of one session, for as long as its principal and the rules stay."""

    __slots__ = ("epoch", "principal", "readable", "writable")

    def __init__(self, broker: Needs, authorizer: Authorizer, session: Session) -> None:
        self.epoch = authorizer.epoch
        self.principal: Principal = session.principal
        who = session.principal, session.client_address
        self.readable = Allowed(broker, authorizer.known(*who, Operation.READ, AclResource.TOPIC))
        self.writable = Allowed(broker, authorizer.known(*who, Operation.WRITE, AclResource.TOPIC))


def topic_access(broker: Needs, authorizer: Authorizer, session: Session) -> TopicAccess:
    access = session.topic_access
    if (
        not isinstance(access, TopicAccess)
        or access.epoch is not authorizer.epoch
        or access.principal is not session.principal
    ):
        access = session.topic_access = TopicAccess(broker, authorizer, session)
    return access
