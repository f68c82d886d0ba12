"""A consumer in a rack: it asks the leader, is sent to the replica of its rack, and reads there until that fails.

Everything a reader is promised holds there too: what it is given is below the high watermark, and stays.
"""

from __future__ import annotations

import asyncio

from tests.simulation.client import SimClient
from tests.simulation.history import Partition
from tests.simulation.read_order import CommittedReader

_BACK_TO_THE_LEADER = 12  # fetches: as a client's metadata expires


async def read_in_rack(client: SimClient, partition: Partition, rack: str, order: CommittedReader | None) -> int:
    """From the beginning on until told to stop. How many records another than the leader gave."""
    offset = given = 0
    replica: int | None = None
    fetches = 0
    while not client.is_stopping:
        fetches += 1
        if fetches % _BACK_TO_THE_LEADER == 0:
            replica = None
        found = await client.fetch_more(
            partition, offset, committed=order is not None, max_wait_ms=300, node_id=replica, rack=rack
        )
        if found is None or found.is_out_of_range:
            if found is not None and replica is None and await client.earliest(partition) is not None:
                client.history.violated(
                    "a reader's position is in the log", f"{client.name}: {offset} of {partition} is out of range"
                )
            replica = None
            continue
        if found.preferred_replica >= 0:
            replica = found.preferred_replica
            continue
        offset = found.next_offset
        client.history.high_watermark(client.name, partition, offset, found.high_watermark)
        for at, _, value in found.records:
            given += replica is not None
            client.history.read(client.name, partition, at, value)
            if order is not None:
                order.read(at, value)
        await asyncio.sleep(0.5 * client.random.fraction())
    return given
