"""A consumer in a rack: it asks the leader, is sent to the replica of its rack, and reads there until that fails.

Everything a reader is promised holds there too: what it is given is below the high watermark, and stays.
"""

from __future__ import annotations

import asyncio

from moldau.wire import ErrorCode
from tests.simulation.client import SimClient
from tests.simulation.history import Partition
from tests.simulation.read_order import CommittedReader

_BACKOFF_S = 0.1
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
            if found is not None:  # a leader that was cut off and does not know it yet: ask who leads
                client.lost_leader(partition, ErrorCode.OFFSET_OUT_OF_RANGE)
                await asyncio.sleep(_BACKOFF_S)
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
