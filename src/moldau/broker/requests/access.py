"""How handlers ask whether a client may do what it asks for. Without an authorizer everything is allowed, for nothing.

`answer` goes before every handler: what a request needs as a whole. `may` is for handlers whose requests name many
things, each to be looked at. Which permissions an API may ask about stands in `permissions.py`, and only there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Protocol

from moldau.broker.requests.changes import is_change, noted, noted_in_slices, noted_later
from moldau.broker.requests.permissions import ERRORS, Permission, Whole, permissions
from moldau.broker.requests.refusals import refusal_of
from moldau.controller.acls import CLUSTER_NAME, AclResource
from moldau.security.authorizer import ALL_OPERATIONS, operation_bits
from moldau.wire import Message

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.parts import HasAuthorizer, HasTurns
    from moldau.security.authorizer import Authorizer

    class NeedsTurns(HasAuthorizer, HasTurns, Protocol):
        """What asking about many names needs."""


TOPIC, GROUP, CLUSTER = AclResource.TOPIC, AclResource.GROUP, AclResource.CLUSTER
TRANSACTIONAL_ID = AclResource.TRANSACTIONAL_ID
NAMES_PER_TURN = 500


def missing_permission(broker: HasAuthorizer, authorizer: Authorizer, call: Call, request: Message) -> Whole | None:
    """What this client lacks for the request as a whole; None if the handler may have it."""
    session = call.session
    for needed in permissions()[call.api.name].whole:
        name = needed.name_in(request)
        for operation in needed.operations:
            if authorizer.allows(session.principal, session.client_address, operation, needed.kind, name):
                break
        else:
            broker.denied(call, needed.operations[-1], needed.kind, name)
            return needed
    return None


def answer(broker: Any, call: Call, handle: Callable[[Any, Call, Any], Any], request: Message) -> Any:
    """The handler's answer, or the refusal of the whole request. What is changed is noted."""
    authorizer = broker.authorizer
    if authorizer is not None and (missing := missing_permission(broker, authorizer, call, request)) is not None:
        message = f"{call.api.name} is not authorized." if missing.kind == CLUSTER else None
        return refusal_of(request, call, ERRORS[missing.kind], message)
    answered = handle(broker, call, request)
    if answered is None or not is_change(call.api.name):
        return answered
    if isinstance(answered, Message):
        return noted(broker, call, request, answered)
    if isinstance(answered, GeneratorType):
        return noted_in_slices(broker, call, request, answered)
    return noted_later(broker, call, request, answered)


def _everything(_name: str) -> bool:
    return True


def may(
    broker: HasAuthorizer, call: Call, operation: int, kind: int, *, is_filter: bool = False
) -> Callable[[str], bool]:
    """Says of a name whether this client may do that to the resource. `is_filter`: the client did not ask for each of
    the names, so that nobody need hear of a refusal."""
    authorizer = broker.authorizer
    if authorizer is None:
        return _everything
    if Permission(operation, kind) not in permissions()[call.api.name].each:
        raise LookupError(f"{call.api.name} has no such permission in permissions.py: {operation} {kind}")
    session = call.session
    allows = partial(authorizer.allows, session.principal, session.client_address, operation, kind)
    return allows if is_filter else partial(_allows_or_tells, broker, call, operation, kind, allows)


def _allows_or_tells(
    broker: HasAuthorizer, call: Call, operation: int, kind: int, allows: Callable[[str], bool], name: str
) -> bool:
    if allows(name):
        return True
    broker.denied(call, operation, kind, name)
    return False


async def allowed_of(broker: NeedsTurns, may_do: Callable[[str], bool], names: Collection[str]) -> set[str]:
    """Of the names, those that `may_do` (see `may`) allows. Of many, others have their turn between some and some."""
    if broker.authorizer is None:
        return set(names)
    allowed: set[str] = set()
    for number, name in enumerate(names, 1):
        if may_do(name):
            allowed.add(name)
        if number % NAMES_PER_TURN == 0:
            await broker.turns.next_turn()
    return allowed


def may_on_cluster(broker: HasAuthorizer, call: Call, operation: int, *, is_filter: bool = False) -> bool:
    return may(broker, call, operation, CLUSTER, is_filter=is_filter)(CLUSTER_NAME)


def may_somewhere(broker: HasAuthorizer, call: Call, operation: int, kind: int) -> bool:
    """Whether there is some resource of the kind this client may do that to."""
    authorizer = broker.authorizer
    if authorizer is None:
        return True
    return authorizer.allows_somewhere(call.session.principal, call.session.client_address, operation, kind)


def authorized_operations(broker: HasAuthorizer, call: Call, kind: int, name: str = CLUSTER_NAME) -> int:
    """The operations this client may do, as bits."""
    authorizer = broker.authorizer
    if authorizer is None:
        return ALL_OPERATIONS[kind]
    session = call.session
    return operation_bits(authorizer.allowed_operations(session.principal, session.client_address, kind, name))
