"""Telling the controller in which log dir each replica lies (AssignReplicasToDirs, KIP-858).

With several dirs the broker chooses one for a new replica; the image must say which, so that a failed dir is known by
what it held. Only what the image has wrong is told, many replicas in one request, until the controller has it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from moldau.broker.supervision import begin
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.controller.parts import HasControllerChannel
    from moldau.broker.parts import HasIdentity, HasLogs, HasLoop
    from moldau.broker.replicas.partition import Partition

    class Needs(HasControllerChannel, HasIdentity, HasLogs, HasLoop, Protocol):
        """What this file may touch."""


_log = logging.getLogger(__name__)
_PER_REQUEST_MAX = 2_250
_RETRY_SECONDS = 0.1

Key = tuple[bytes, int]
Request = m.AssignReplicasToDirsRequest


def directory_of(broker: Needs, partition: Partition) -> bytes | None:
    """The id of the dir this replica lies in; None if that has none, or is offline."""
    log_dir = broker.logs.dirs[partition.log.log_dir]
    return log_dir.directory_id if log_dir.is_online else None


class DirAssignments:
    """Belongs to the event loop."""

    def __init__(self, broker: Needs) -> None:
        self._broker = broker
        self._wanted: dict[Key, Partition] = {}
        self._sending: asyncio.Task[None] | None = None

    def check(self, partition: Partition) -> None:
        """Tell the controller, if the image has another dir for this replica than it is in."""
        if self._is_wrong(partition):
            self._wanted[partition.key] = partition
            if self._sending is None:
                self._sending = begin(self._broker.loop, "telling of log dirs", self._send())

    def _is_wrong(self, partition: Partition) -> bool:
        directory = directory_of(self._broker, partition)
        image = partition.image
        node_id = self._broker.node_id
        return directory is not None and node_id in image.replicas and image.directory_of(node_id) != directory

    async def _send(self) -> None:
        try:
            # What the same image placed goes together.
            await asyncio.sleep(0)
            while self._wanted:
                batch = list(self._wanted.values())[:_PER_REQUEST_MAX]
                told = await self._tell([partition for partition in batch if self._is_wrong(partition)])
                for partition in batch:
                    if partition.key in told or not self._is_wrong(partition):
                        self._wanted.pop(partition.key, None)
                if any(partition.key in self._wanted for partition in batch):
                    await asyncio.sleep(_RETRY_SECONDS)
        finally:
            self._sending = None

    async def _tell(self, partitions: list[Partition]) -> set[Key]:
        """Those the controller has taken, or does not want to hear of."""
        if not partitions:
            return set()
        broker = self._broker
        dirs: dict[bytes, dict[bytes, Request.TopicData]] = {}
        for partition in partitions:
            directory = directory_of(broker, partition)
            if directory is not None:
                topics = dirs.setdefault(directory, {})
                topic = topics.setdefault(partition.topic_id, Request.TopicData(partition.topic_id, []))
                topic.partitions.append(Request.PartitionData(partition.index))
        request = Request(
            broker.node_id,
            broker.broker_epoch,
            [Request.DirectoryData(directory, list(topics.values())) for directory, topics in dirs.items()],
        )
        try:
            response = await broker.controller_channel.call(request)
        except Exception as error:  # whatever it was, it is asked again
            _log.warning("the controller does not know yet where %d replicas lie: %s", len(partitions), error)
            return set()
        if response.error_code != ErrorCode.NONE:
            _log.warning("the controller refused to hear of log dirs: %s", ErrorCode(response.error_code).name)
            # An older metadata.version knows no dirs; anything else is worth another try.
            refused_for_good = response.error_code == ErrorCode.UNSUPPORTED_VERSION
            return {partition.key for partition in partitions} if refused_for_good else set()
        return {
            (topic.topic_id, answer.partition_index)
            for directory in response.directories
            for topic in directory.topics
            for answer in topic.partitions
        }

    async def stop(self) -> None:
        self._wanted.clear()
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
