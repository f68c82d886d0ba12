"""ListPartitionReassignments (key 46), version 0. Partitions whose replicas are moving: all, or those asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.controller.reassignment import list_partition_reassignments
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.parts import HasImage


def handle(
    broker: HasImage, _call: Call, request: m.ListPartitionReassignmentsRequest
) -> m.ListPartitionReassignmentsResponse:
    return list_partition_reassignments(broker.image, request)
