"""CreatePartitions (key 37), versions 0-3. Raises the partition count of topics, each on its own; never lowers it.

`validate_only` changes nothing. Replicas of the new partitions may be given, or are placed by the controller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.controller.topics import create_partitions
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.controller.parts import HasController


async def handle(broker: HasController, _call: Call, request: m.CreatePartitionsRequest) -> m.CreatePartitionsResponse:
    return await broker.controller.submit(create_partitions, request)
