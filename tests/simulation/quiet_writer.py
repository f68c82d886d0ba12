"""A producer with `acks=0`: it sends and never hears of it. What it wrote may be there or not, but once at most, as it
was written, and for good once a reader has seen it. It writes to the same partitions as those who are promised more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

from moldau.records import BatchOptions, build_batch
from moldau.seams.network import ClientConnection, Disconnected, RequestTimedOut
from moldau.wire import apis, encode
from moldau.wire import messages as m
from moldau.wire.headers import encode_request_header
from tests.simulation.client import SimClient
from tests.simulation.history import Partition, Write
from tests.simulation.network import SimNetwork

_PRODUCE = 0
_CONNECT_MS = 1_000


class QuietWriter:
    def __init__(self, client: SimClient, network: SimNetwork, partitions: list[Partition]) -> None:
        self.client = client
        self._network = network
        self._partitions = partitions
        self._connections: dict[tuple[str, int], ClientConnection] = {}
        self._sent: list[Write] = []

    async def run(self, now_ms: Callable[[], int]) -> None:
        """Until the client is told to stop."""
        client = self.client
        for number in count():
            if client.is_stopping:
                return
            partition = self._partitions[client.random.below(len(self._partitions))]
            await client.refresh([partition[0]])  # nothing else would tell that the leader moved
            address = client.leader_address(partition)
            # A producer of its own each time: nothing is promised of their order.
            write = Write(partition, b"%s-%d" % (client.name.encode(), number), f"{client.name}#{number}", 0)
            if address is not None and await self._send(address, client.history.written(write), now_ms()):
                self._sent.append(write)
                client.progress += 1
            await asyncio.sleep(client.random.fraction())

    async def _send(self, address: tuple[str, int], write: Write, now_ms: int) -> bool:
        batch = bytes(build_batch([(0, now_ms, None, write.value, ())], BatchOptions()))
        topic, index = write.partition
        data = m.ProduceRequest.PartitionProduceData(index, batch)
        named = m.ProduceRequest.TopicProduceData(topic, self.client.topic_ids[topic], [data])
        api = apis()[_PRODUCE]
        version = api.versions.last
        request = m.ProduceRequest(None, 0, 1_500, [named])
        header = encode_request_header(api, version, write.sequence, self.client.name)
        try:
            connection = self._connections.get(address)
            if connection is None or connection.is_closed:
                connection = await self._network.connect(*address, timeout_ms=_CONNECT_MS)
                self._connections[address] = connection
            connection.send([header, encode(request, version)])
        except (Disconnected, RequestTimedOut):
            return False
        return True

    def judge(self, final: dict[Partition, list[tuple[int, bytes]]]) -> None:
        """After the trouble was over, something must have arrived."""
        there = {value for records in final.values() for _, value in records}
        if self._sent and not any(write.value in there for write in self._sent[-3:]):
            self.client.history.violated(
                "who does not ask for an answer is heard",
                f"none of {[each.value for each in self._sent[-3:]]} is there",
            )
