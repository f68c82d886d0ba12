"""AlterPartitionReassignments (key 45), versions 0-1. Gives partitions other replicas, or (null) takes that back.

Each partition succeeds or fails on its own. The move itself takes its time; ListPartitionReassignments shows it.
Version 1 can insist on the replication factor staying the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.controller.reassignment import alter_partition_reassignments
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.controller.parts import HasController


async def handle(
    broker: HasController, _call: Call, request: m.AlterPartitionReassignmentsRequest
) -> m.AlterPartitionReassignmentsResponse:
    return await broker.controller.submit(alter_partition_reassignments, request)
