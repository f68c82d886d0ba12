"""Looks into the nodes, now and then and at the end, for what no client could see."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TypeVar

from moldau.broker.quorum.quorum import MetadataQuorum
from moldau.broker.replicas.partition import Partition as Replica
from moldau.controller.image import ClusterImage, PartitionImage
from moldau.log.errors import CorruptRecord
from moldau.log.partition_log import PartitionLog
from moldau.raft import VoterSet
from moldau.records import CorruptBatch, check_crc, iter_batches
from tests.simulation.housekeeping import AGAIN, LOOSE
from tests.simulation.world import SimNode, World
from tests.support.sim_disk import SimDisk

_EVERY_S = 0.15
_METADATA = "/data/__cluster_metadata-0"
K = TypeVar("K")


class Observer:
    def __init__(self, world: World) -> None:
        self._world = world
        self._leaders: dict[tuple[bytes, int, int], int] = {}
        self._controllers: dict[int, int] = {}
        self._metadata: dict[int, int] = {}  # epoch of each committed offset
        self._partitions: dict[tuple[bytes, int], PartitionImage] = {}
        self._looked_at: ClusterImage | None = None  # when leaders were last judged
        self._kept_by_majority = 0
        self._marks: dict[tuple[object, ...], int] = {}
        world.history.on_acked.append(self._acknowledged)

    async def run(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(_EVERY_S)

    def look(self) -> None:
        for each in self._world.nodes.values():
            if each.node is None:
                continue
            broker = each.node.broker
            self._dirs_are_where_they_were(each)
            for partition in broker.replicas:
                if partition.topic == LOOSE:
                    continue
                self._only_forward(each, partition)
                if partition.is_leader:
                    key = (partition.topic_id, partition.index, partition.leader_epoch)
                    self._one("one leader per epoch", self._leaders, key, each.node_id)
                    self._in_sync_have_it(partition, partition.log.high_watermark)
            self._one(
                "committed metadata is the same everywhere", self._metadata, broker.image.offset, broker.image.epoch
            )
        for each, metadata in self._world.quorums():
            if metadata.is_leader:
                self._one("one controller per epoch", self._controllers, metadata.epoch, each.node_id)
                self._majority_has_it(metadata)
                self._leaders_were_in_sync(metadata.committed)

    def _dirs_are_where_they_were(self, node: SimNode) -> None:
        """A dir is given up for missing files only if its disk is: no job goes on in a folder that was renamed."""
        assert node.node is not None
        for log_dir in node.node.broker.logs.dirs.values():
            if isinstance(log_dir.error, FileNotFoundError) and not node.disk.unmounted:
                self._world.history.violated("a dir fails only if its disk does", f"{node.host}: {log_dir.error}")

    def _only_forward(self, node: SimNode, partition: Replica) -> None:
        """The log start never goes back; nor does the last stable offset of one leader."""
        log = partition.log
        if log.is_offline:
            return
        life = (node.node_id, node.starts, node.disks, partition.topic_id, partition.index)
        self._not_back("the log start never goes back", (*life, -1), log.log_start_offset, partition)
        if partition.is_leader:
            key = (*life, partition.leader_epoch)
            self._not_back("the last stable offset never goes back", key, log.last_stable_offset, partition)

    def _not_back(self, rule: str, key: tuple[object, ...], offset: int, partition: Replica) -> None:
        before = self._marks.get(key, 0)
        if offset < before:
            self._world.history.violated(rule, f"{partition!r} on {key[0]}: {before}, then {offset}")
        self._marks[key] = offset

    def _leaders_were_in_sync(self, image: ClusterImage) -> None:
        """Nobody is elected who was not known to have everything."""
        if image is self._looked_at:
            return
        self._looked_at = image
        for topic, index, partition in image.partitions():
            if topic.name == LOOSE:
                continue  # there, anybody may lead
            before = self._partitions.get((topic.topic_id, index))
            self._partitions[topic.topic_id, index] = partition
            if before is None or partition.partition_epoch != before.partition_epoch + 1:
                continue  # nothing new, or more than one change that was not looked at
            eligible = {before.leader, *before.isr, *before.elr, -1}
            if not before.isr and not partition.elr:
                # Nobody else is left (this very change may have taken the last, who lost power, from the ELR), and it
                # says that it may lack something.
                eligible |= set(before.last_known_elr)
            if partition.leader not in eligible and not self._ends_reassignment(
                topic.topic_id, index, before, partition
            ):
                self._world.history.violated(
                    "a new leader was in sync", f"{topic.name}-{index}: {partition.leader} after {before}"
                )

    def _ends_reassignment(self, topic_id: bytes, index: int, before: PartitionImage, after: PartitionImage) -> bool:
        """One record may take the last new replica into the ISR, end the reassignment by that, and elect the new
        replica because the leader that vouched for it is none any more. It has all that was promised, then."""
        was_moving = bool(before.adding_replicas or before.removing_replicas)
        is_moving = bool(after.adding_replicas or after.removing_replicas)
        if not was_moving or is_moving or after.leader not in after.isr or before.leader in after.replicas:
            return False
        former, elected = (self._replica(node_id, topic_id, index) for node_id in (before.leader, after.leader))
        return former is None or elected is None or elected.log.log_end_offset >= former.log.high_watermark

    def _replica(self, node_id: int, topic_id: bytes, index: int) -> Replica | None:
        node = self._world.nodes[node_id].node if node_id in self._world.nodes else None
        return None if node is None else node.broker.replicas.get(topic_id, index)

    def _majority_has_it(self, metadata: MetadataQuorum) -> None:
        """What is committed survives the loss of power of any minority."""
        if self._world.is_dynamic:
            return  # a voter that got an empty disk is missing until it is replaced
        if any(node.disks > 1 for node in self._world.voters):
            return  # one of them was lost, and with it what it had promised
        if metadata.high_watermark <= self._kept_by_majority:
            return  # nothing new is committed
        self._kept_by_majority = metadata.high_watermark
        ends = sorted(durable_end(node.disk) for node in self._world.voters)
        if ends[(len(ends) - 1) // 2] < metadata.high_watermark:
            self._world.history.violated(
                "committed metadata is on the disks of a majority", f"{metadata.high_watermark} is committed, of {ends}"
            )

    def _acknowledged(self, where: tuple[str, int], offset: int) -> None:
        """A writer was told that its record is safe."""
        for each in self._world.nodes.values():
            replica = None if each.node is None else each.node.broker.replicas.get(*where)
            if replica is not None and replica.is_leader:
                self._in_sync_have_it(replica, offset + 1)

    def _in_sync_have_it(self, leader: Replica, end_offset: int) -> None:
        """Every replica that the controllers would make leader has what this one has promised."""
        if not self._somebody_lacks(leader, end_offset):
            return  # nearly always: who may lead need not be asked
        newest = self._world.newest(leader.topic, leader.index)
        if newest is None or newest.leader_epoch != leader.leader_epoch or leader.log.log_end_offset < end_offset:
            return  # it was deposed, and does not know it yet
        for node_id in newest.isr:
            each = self._world.nodes[node_id]
            replica = None if each.node is None else each.node.broker.replicas.get(leader.topic_id, leader.index)
            if replica is None or not self._is_known(node_id) or replica.log.is_offline:
                continue
            if replica.log.log_end_offset < end_offset:
                self._world.history.violated(
                    "whoever may lead has all that was promised",
                    f"{leader!r}: {node_id} of ISR {list(newest.isr)} ends at {replica.log.log_end_offset}, promised "
                    f"up to {end_offset} in epoch {leader.leader_epoch}",
                )

    def _somebody_lacks(self, leader: Replica, end_offset: int) -> bool:
        for each in self._world.nodes.values():
            replica = None if each.node is None else each.node.broker.replicas.get(leader.topic_id, leader.index)
            if replica is not None and replica.log.log_end_offset < end_offset:
                return True
        return False

    def _is_known(self, node_id: int) -> bool:
        """Whether the controllers know this life of the node. After a crash they learn of it when it registers."""
        node = self._world.nodes[node_id].node
        assert node is not None
        for _, metadata in self._world.quorums():
            registered = metadata.committed.brokers.get(node_id)
            if registered is None or registered.epoch != node.broker.broker_epoch:
                return False
        return True

    def watch(self, node_id: int, metadata: MetadataQuorum) -> None:
        """Hear of every epoch this node leads, however short."""

        def changed(leader_id: int | None, epoch: int) -> None:
            if leader_id == node_id:
                self._one("one controller per epoch", self._controllers, epoch, node_id)

        append_voters = metadata.append_voters

        def checked(voters: VoterSet, *, kraft_version: int | None = None) -> asyncio.Future[None]:
            history = metadata.files.history
            if history.latest_offset >= metadata.high_watermark:
                self._world.history.violated(
                    "voters change one at a time", f"{node_id}: the set at {history.latest_offset} is not committed"
                )
            return append_voters(voters, kraft_version=kraft_version)

        setattr(metadata, "append_voters", checked)  # noqa: B010 - mypy would not let a method be assigned
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
        members = self._world.members
        ids = {each.node_id for each in self._world.brokers}
        for each in members:
            if each.node is None:
                return False
            image = each.node.broker.image
            if self._world.is_dynamic and {voter.key.id for voter in each.node.broker.metadata_log.voters} != ids:
                return False
            offsets.add(image.offset)
            if any(registration.fenced for registration in image.brokers.values()):
                return False
            if set(image.brokers) != ids:
                return False
            for topic in image.topics.values():
                for partition in topic.partitions.values():
                    if partition.leader < 0 or len(partition.isr) < len(partition.replicas):
                        return False
        # What was once committed is still there.
        return len(offsets) == 1 and min(offsets) >= max(self._metadata, default=0)

    def compare_images(self, kept_topics: list[str]) -> None:
        """All nodes have made the same of the metadata log, and it has what the controller said it has."""
        images = [(each.node_id, each.node.broker.image) for each in self._world.members if each.node is not None]
        for node_id, image in images:
            lost = [name for name in kept_topics if name not in image.topics]
            if lost:
                self._world.history.violated("committed metadata is never lost", f"{lost} are gone from {node_id}")
            if image != images[0][1]:
                self._world.history.violated("all nodes have one image", f"{node_id} and {images[0][0]} differ")

    def compare_replicas(self) -> None:
        """Below the high watermark, replicas hold the same bytes."""
        contents: dict[tuple[str, int], list[tuple[int, int, bytes]]] = {}
        for each in self._world.nodes.values():
            if each.node is None:
                continue
            for partition in each.node.broker.replicas:
                log = partition.log
                if log.config.compact or partition.topic == AGAIN:
                    continue  # each replica is cleaned at its own time; they are compared by reading them
                data = _content_of(log)
                if data is None:
                    if not each.disk.is_rotten:
                        self._world.history.violated("what was written is read", f"{partition!r} on {each.host}")
                    continue  # by bit rot that nobody has read yet: its checksum tells
                key = (partition.topic, partition.index)
                contents.setdefault(key, []).append((each.node_id, log.high_watermark, data))
        for key, replicas in contents.items():
            shortest = min(len(data) for _, _, data in replicas)
            if len({data[:shortest] for _, _, data in replicas}) > 1:
                who = [(node_id, high_watermark, len(data)) for node_id, high_watermark, data in replicas]
                self._world.history.violated("replicas are equal below the high watermark", f"{key}: {who}")


def durable_end(disk: SimDisk) -> int:
    """Where the metadata log would end after a loss of power."""
    segments = [name for name in disk.list_dir(_METADATA) if name.endswith(".log")] if disk.exists(_METADATA) else []
    if not segments:
        return 0
    newest = max(segments)
    end = int(newest.removesuffix(".log"))
    with contextlib.suppress(CorruptBatch):  # zeros, or half a batch
        for _, header in iter_batches(disk.durable_file(f"{_METADATA}/{newest}") or b""):
            end = header.next_offset
    return end


def _content_of(log: PartitionLog) -> bytes | None:
    """Up to the high watermark; None if something of it is damaged."""
    data = bytearray()
    offset = log.log_start_offset
    try:
        while offset < log.high_watermark:
            region = log.read(offset, 1 << 20).region
            if region is None:
                break
            piece = region.read()
            data += piece
            offset = _end_of(piece)
        return None if _is_damaged(data) else bytes(data)
    except (CorruptBatch, CorruptRecord):  # the log itself says so, or the batches in it cannot be told apart
        return None


def _is_damaged(data: bytearray) -> bool:
    end = 0
    for position, header in iter_batches(data):
        check_crc(data, position, header)
        end = position + header.size_bytes
    return end < len(data)  # its length says more than there is


def _end_of(data: bytes) -> int:
    """Or, of what is damaged at once, beyond everything."""
    return max((header.next_offset for _, header in iter_batches(data)), default=1 << 62)
