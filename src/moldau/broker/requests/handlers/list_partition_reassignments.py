"""ListPartitionReassignments (key 46), version 0. Partitions whose replicas are moving: all, or those asked for."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from moldau.broker.requests.pieces import is_long
from moldau.broker.requests.threads import in_thread
from moldau.controller.reassignment import list_partition_reassignments
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.parts import HasImage, HasLoop

    class Needs(HasImage, HasLoop, Protocol):
        """What this file may touch."""


def handle(
    broker: Needs, _call: Call, request: m.ListPartitionReassignmentsRequest
) -> m.ListPartitionReassignmentsResponse | Awaitable[m.ListPartitionReassignmentsResponse]:
    if request.topics and is_long(request.topics, lambda topic: topic.partition_indexes):
        return in_thread(broker, partial(list_partition_reassignments, broker.image, request))
    return list_partition_reassignments(broker.image, request)
