"""What happens to the files of a machine while nobody looks: log dirs whose file system is not mounted, bits that turn
in any file, disks of fixed voters that are replaced by empty ones.

What a node has to make of each is Kafka's, or stricter. A dir that is away is missed, not made anew. A damaged file is
repaired from what the log says, or refused in words, and then people do what the words say: they take the replica away
while others have it, or let the voter begin anew while the others are well.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable

from moldau.broker.config import load_broker_config
from moldau.broker.node.identity import format_voter
from moldau.broker.quorum.recovery_point import read_recovery_point
from moldau.records import CorruptBatch, iter_batches
from moldau.seams.randomness import SeededRandom
from tests.simulation.world import SimNode, World
from tests.support.sim_disk import SimDisk

_METADATA = "/data/__cluster_metadata-0/"
_CHECKPOINTS = (
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "log-start-offset-checkpoint",
    "cleaner-offset-checkpoint",
    "leader-epoch-checkpoint",
)
_LENGTH_AT, _MAGIC_AT, _CRC_AT = 8, 16, 17
_HEADER_BYTES = 61
_TXN_ENTRY_BYTES = 34
_TXN_NUMBERS_AT = (0, 2, 10, 18, 26)
_PAUSE_S = 0.1


def _is_promised(disk: SimDisk, path: str, position: int) -> bool:
    """Whether the place is in a batch that was flushed as far as the voter knows."""
    if not path.endswith(".log"):
        return False  # an older snapshot may have been superseded, a vote be of an epoch that is over
    recovery_point = read_recovery_point(disk, _METADATA.rstrip("/"))
    offset = int(path.rpartition("/")[2].removesuffix(".log"))
    with contextlib.suppress(CorruptBatch):
        for at, header in iter_batches(disk.read_file(path)):
            if at + header.size_bytes > position:
                break
            offset = header.next_offset  # where a batch begins that can no longer be read
    return offset < recovery_point


class DiskTrouble:
    def __init__(self, world: World, counts: Counter[str], pace: float = 1.0) -> None:
        self._world = world
        self._pace = pace
        self._random = world.random
        self._counts = counts

    def kinds(self) -> dict[str, Callable[[SimNode], Awaitable[None]]]:
        """What can happen in this world."""
        found: dict[str, Callable[[SimNode], Awaitable[None]]] = {}
        if len(self._world.nodes) > 1:
            found |= {"header rot": self._header_rot, "file rot": self._file_rot}
            if not self._world.is_dynamic:
                found |= {"voter's new disk": self._voters_new_disk, "metadata rot": self._metadata_rot}
        if len(self._world.dirs) > 1:
            found |= {"dir unmounted": self._dir_unmounted, "dir vanishes": self._dir_vanishes}
        return found

    def heal(self) -> None:
        """Every file system is there again; of a node that runs without one, after its next restart."""
        for node in self._world.members:
            if node.disk.unmounted:
                is_well = self._world.everybody_is_well()
                node.crash(power_lost=False)
                node.mend_disk(keeps_shadows=not is_well)

    def _data_dir(self) -> str:
        return self._world.dirs[1 + self._random.below(len(self._world.dirs) - 1)]

    async def _for_a_while(self, most_s: float = 5.0) -> None:
        await asyncio.sleep(0.05 + self._random.fraction() * most_s * self._pace)

    async def _end(self, node: SimNode) -> None:
        if self._random.below(2):
            await node.stop()
        node.crash(power_lost=False)

    def _start(self, node: SimNode) -> None:
        if not node.is_up:
            node.start()

    # -- file systems

    async def _dir_unmounted(self, node: SimNode) -> None:
        """The node starts while one of its file systems is not mounted: there is no folder, or an empty one, which is
        taken for a new disk. After another restart everything is back, older than it should be."""
        was_well = self._world.everybody_is_well()
        await self._end(node)
        path = self._data_dir()
        if node.disk.unmounted or not node.disk.exists(path):
            self._start(node)
            return
        # An empty folder is a disk that lost everything: not while it is the last that counts.
        node.disk.unmount(path, leaves_folder=was_well and bool(self._random.below(2)))
        self._world.note_loss(node)
        self._start(node)
        await self._for_a_while(8.0)
        is_well = self._world.everybody_is_well()
        await self._end(node)
        node.mend_disk(keeps_shadows=not is_well)
        await self._for_a_while(2.0)
        self._start(node)

    async def _dir_vanishes(self, node: SimNode) -> None:
        """While the node runs, and writes into files that nobody can find any more."""
        path = self._data_dir()
        if node.disk.unmounted or not node.is_up or not node.disk.exists(path):
            return
        node.disk.unmount(path, leaves_folder=False)
        self._world.note_loss(node)
        await self._for_a_while()
        await self._end(node)
        node.mend_disk()
        await self._for_a_while(2.0)
        self._start(node)

    # -- bits

    def _may_rot(self, node: SimNode, kind: str) -> bool:
        """One replica of three may rot. When it is the last that counts, nobody can help."""
        return self._counts[kind] <= 1 and node.is_up and self._world.everybody_is_well()

    async def _header_rot(self, node: SimNode) -> None:
        """A bit turns in the header of a batch of a cold segment, where readers can tell: length, magic, CRC and all it
        covers. (Nobody can tell it from an offset or an epoch, which precede the CRC.)"""
        if not self._may_rot(node, "header rot"):
            return
        node.crash(power_lost=False)
        self._world.note_loss(node)
        where = node.disk.rot(
            self._random, lambda path: "/events-" in path and path.endswith(".log"), self._in_a_header
        )
        self._world.log(f"header rot in {where} of {node.host}")
        await self._for_a_while(2.0)
        self._start(node)

    def _in_a_header(self, segment: bytes) -> int | None:
        try:
            positions = [position for position, _ in iter_batches(segment)]
        except CorruptBatch:
            return None
        if not positions:
            return None
        places = [*range(_LENGTH_AT, _LENGTH_AT + 4), *range(_MAGIC_AT, _HEADER_BYTES)]
        position: int = positions[self._random.below(len(positions))]
        place: int = places[self._random.below(len(places))]
        return position + place

    async def _file_rot(self, node: SimNode) -> None:
        """Bits turn in the small files around the records: indexes, producer snapshots, checkpoints of all kinds. What
        they say is in the log too, or is asked of it: nobody notices."""
        if not self._may_rot(node, "file rot"):
            return
        if self._random.below(2):
            await node.stop()
        node.crash(power_lost=False)
        self._world.note_loss(node)
        files = [path for path in node.disk.files() if self._is_small_file(path) and node.disk.file_size(path)]
        for _ in range(min(3, len(files))):
            path = files[self._random.below(len(files))]
            self._rot(node, path)
        await self._for_a_while(2.0)
        self._start(node)

    def _is_small_file(self, path: str) -> bool:
        if path.startswith(_METADATA):
            return False
        return path.endswith((".index", ".timeindex", ".txnindex", ".snapshot", *_CHECKPOINTS))

    def _rot(self, node: SimNode, path: str) -> None:
        """A text file becomes unreadable, and a number in the index of aborted transactions negative: these have no
        checksum, and what says another number that may be is none that anybody could tell from a true one."""
        size = node.disk.file_size(path)
        position = self._random.below(size)
        mask = 0x80 if path.endswith("checkpoint") else 1 << self._random.below(8)
        if path.endswith(".txnindex"):
            position -= position % _TXN_ENTRY_BYTES
            position += _TXN_NUMBERS_AT[self._random.below(len(_TXN_NUMBERS_AT))]
            mask = 0x80
        node.disk.damage(path, position, mask)
        self._world.log(f"rot in {path}@{position} of {node.host}")

    async def _metadata_rot(self, node: SimNode) -> None:
        """A bit turns in what a fixed voter has promised: its log, its snapshots, its vote. It must not start with
        that, unless nothing was promised (a torn end); it begins anew, while the others are well."""
        if not self._may_rot(node, "metadata rot") or not node.is_voter or not self._others_are_well(node):
            return
        if self._random.below(2):  # then it knows to the end how much it has promised
            await node.stop()
        node.crash(power_lost=False)
        names = (".log", ".checkpoint", "quorum-state")
        files = [path for path in node.disk.files() if path.startswith(_METADATA) and path.endswith(names)]
        files = [path for path in files if node.disk.file_size(path)]
        path = files[self._random.below(len(files))]
        position = self._random.below(node.disk.file_size(path))
        node.disk.damage(path, position, 0x80 if path.endswith("quorum-state") else 1 << self._random.below(8))
        self._world.log(f"rot in {path}@{position} of {node.host}")
        was_promised = _is_promised(node.disk, path, position)
        self._start(node)
        await self._until_settled(node)
        if node.node is not None:
            if was_promised:
                self._world.history.violated(
                    "damaged metadata is refused", f"{node.host} is up with {path}, turned at {position}"
                )
            return
        node.crash(power_lost=False)
        node.disk.remove_tree(_METADATA.rstrip("/"))
        node.disks += 1  # it remembers nothing of what it promised
        await self._begin_anew(node)

    # -- voters without memory

    async def _voters_new_disk(self, node: SimNode) -> None:
        """A fixed voter gets an empty disk. It must not take part until people say that it may."""
        if not node.is_voter or not self._world.everybody_is_well() or not self._others_are_well(node):
            return
        node.crash(power_lost=False)
        self._world.log(f"{node.host} gets an empty disk")
        self._world.note_loss(node)
        node.replace_disk()
        self._start(node)
        await self._until_settled(node)
        if node.node is not None:
            self._world.history.violated("a voter without memory takes no part", f"{node.host} is up")
            return
        await self._begin_anew(node)

    async def _until_settled(self, node: SimNode) -> None:
        """It is up, or has given up."""
        for _ in range(600):
            if node.node is not None or not node.is_up:
                return
            await asyncio.sleep(_PAUSE_S)

    def _others_are_well(self, node: SimNode) -> bool:
        """All other voters follow one leader, in one epoch, and have everything it has committed."""
        others = [each for each in self._world.voters if each is not node]
        quorums = [each.node.broker.metadata_log for each in others if each.node is not None]
        if len(quorums) < len(others) or len({quorum.epoch for quorum in quorums}) > 1:
            return False
        leaders = [quorum for quorum in quorums if quorum.is_leader]
        ends = [quorum.files.flushed_offset for quorum in quorums]
        return len(leaders) == 1 and min(ends) >= leaders[0].high_watermark

    async def _begin_anew(self, node: SimNode) -> None:
        """As `moldau format` does, when those who know say that the others are well."""
        node.in_repair += 1
        node.crash(power_lost=False)  # somebody may have tried to start it
        while not self._others_are_well(node):
            await asyncio.sleep(_PAUSE_S)
        other = next(each.node for each in self._world.voters if each.node is not None)
        assert other is not None
        config = load_broker_config(self._world.settings(node))
        format_voter(config, other.broker.cluster_id, node.disk, SeededRandom(self._random.below(1 << 60)))
        self._world.log(f"{node.host} begins anew")
        node.in_repair -= 1
        self._start(node)
