"""Looks into the nodes, now and then and at the end, for what no client could see."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from moldau.broker.quorum import MetadataQuorum
from tests.simulation.world import World

_EVERY_S = 0.1
K = TypeVar("K")


class Observer:
    def __init__(self, world: World) -> None:
        self._world = world
        self._leaders: dict[tuple[bytes, int, int], int] = {}
        self._controllers: dict[int, int] = {}
        self._metadata: dict[int, int] = {}  # epoch of each committed offset

    async def run(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(_EVERY_S)

    def look(self) -> None:
        for each in self._world.nodes.values():
            if each.node is None:
                continue
            broker = each.node.broker
            for partition in broker.replicas:
                if partition.is_leader:
                    key = (partition.topic_id, partition.index, partition.leader_epoch)
                    self._one("one leader per epoch", self._leaders, key, each.node_id)
            metadata = broker.metadata_log
            if metadata.is_leader:
                self._one("one controller per epoch", self._controllers, metadata.epoch, each.node_id)
            self._one(
                "committed metadata is the same everywhere", self._metadata, broker.image.offset, broker.image.epoch
            )

    def watch(self, node_id: int, metadata: MetadataQuorum) -> None:
        """Hear of every epoch this node leads, however short."""

        def changed(leader_id: int | None, epoch: int) -> None:
            if leader_id == node_id:
                self._one("one controller per epoch", self._controllers, epoch, node_id)

        metadata.on_leader_change.append(changed)
        if metadata.is_leader:
            changed(node_id, metadata.epoch)

    def _one(self, rule: str, known: dict[K, int], key: K, value: int) -> None:
        other = known.setdefault(key, value)
        if other != value:
            self._world.history.violated(rule, f"{key}: {other} and {value}")

    def everybody_in_sync(self) -> bool:
        """All nodes know the same cluster, in which every replica is in sync."""
        offsets = set()
        for each in self._world.nodes.values():
            if each.node is None:
                return False
            image = each.node.broker.image
            offsets.add(image.offset)
            if any(registration.fenced for registration in image.brokers.values()):
                return False
            if len(image.brokers) < len(self._world.nodes):
                return False
            for topic in image.topics.values():
                for partition in topic.partitions.values():
                    if partition.leader < 0 or len(partition.isr) < len(partition.replicas):
                        return False
        # What was once committed is still there.
        return len(offsets) == 1 and min(offsets) >= max(self._metadata, default=0)

    def compare_replicas(self) -> None:
        """Below the high watermark, replicas hold the same bytes."""
        contents: dict[tuple[str, int], list[tuple[int, int, bytes]]] = {}
        for each in self._world.nodes.values():
            if each.node is None:
                continue
            for partition in each.node.broker.replicas:
                log = partition.log
                data = bytearray()
                offset = log.log_start_offset
                while offset < log.high_watermark:
                    region = log.read(offset, 1 << 20).region
                    if region is None:
                        break
                    piece = region.read()
                    data += piece
                    offset = _end_of(piece)
                if _is_damaged(data):
                    continue  # by bit rot that nobody has read yet: its checksum tells
                key = (partition.topic, partition.index)
                contents.setdefault(key, []).append((each.node_id, log.high_watermark, bytes(data)))
        for key, replicas in contents.items():
            shortest = min(len(data) for _, _, data in replicas)
            if len({data[:shortest] for _, _, data in replicas}) > 1:
                who = [(node_id, high_watermark, len(data)) for node_id, high_watermark, data in replicas]
                self._world.history.violated("replicas are equal below the high watermark", f"{key}: {who}")


def _is_damaged(data: bytearray) -> bool:
    from moldau.records import CorruptBatch, check_crc, iter_batches

    try:
        for position, header in iter_batches(data):
            check_crc(data, position, header)
    except CorruptBatch:
        return True
    return False


def _end_of(data: bytes) -> int:
    from moldau.records import iter_batches

    return max(header.next_offset for _, header in iter_batches(data))
