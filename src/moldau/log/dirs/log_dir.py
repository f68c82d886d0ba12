"""One of the node's `log.dirs`: its identity, its lock, its checkpoints and the logs in it.

A dir fails as a whole: after the first disk error all its logs are offline, and the others do not notice.

Checkpoints are Kafka's files, which name a partition and say nothing of its topic's id. So an entry counts for the
folder of that name in this dir, and this is kept true: before a folder gets a name here (a new log, or one that moves
in), no checkpoint file of this dir holds, durably, what a former owner of the name left (`forget`). A folder of Apache
Kafka is believed in the same way: its entries are those of the folders found beside them, the others are remnants.

Compaction leaves gaps between offsets, and a power loss takes the unflushed end of a segment and leaves the next one.
Ours never leaves a gap between segments (see `cleaner`); Apache Kafka's does, above the recovery point too. So the
recovery points that we write come with a promise, an entry `WITHOUT_GAPS`: above its recovery point no log of this dir
has a gap between segments, and recovery takes one for the loss that it is. Whoever else writes the file leaves the
entry out. Without it, and where the file is damaged or missing, a gap is no loss, as for Kafka; what was opened so is
flushed before we promise anything (`opening`).
"""

import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from moldau.log.checkpoints import (
    CLEANER_OFFSET,
    HIGH_WATERMARK,
    LOCK,
    LOG_START_OFFSET,
    META_PROPERTIES,
    RECOVERY_POINT,
    MetaProperties,
    TopicPartition,
    read_clean_shutdown,
    read_meta_properties,
    read_offsets,
    remove_clean_shutdown,
    uuid_bytes,
    write_clean_shutdown,
)
from moldau.log.errors import CorruptCheckpoint, DirLocked
from moldau.log.jobs import CheckpointFile, CheckpointJob
from moldau.log.partition_log import PartitionLog
from moldau.seams import Disk
from moldau.seams.disk import DiskLock

# An entry of ours in the file of recovery points, under a name that no topic can have; see above.
WITHOUT_GAPS: TopicPartition = ("moldau:without-gaps", 0)
CHECKPOINTS = (RECOVERY_POINT, HIGH_WATERMARK, LOG_START_OFFSET, CLEANER_OFFSET)


@dataclass(slots=True)
class LogDir:
    """One of `log.dirs`."""

    path: str
    disk: Disk
    on_failure: Callable[[str, OSError], None]
    logs: dict[TopicPartition, PartitionLog] = field(default_factory=dict)
    cleaned_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    error: OSError | None = None
    was_clean: bool = False
    broker_epoch: int | None = None  # of the last clean shutdown
    properties: MetaProperties | None = None
    promises_no_gaps: bool = False  # what the recovery points said
    _lock: DiskLock | None = None
    _checkpoints: dict[str, CheckpointFile] = field(default_factory=dict)

    @property
    def is_online(self) -> bool:
        return self.error is None

    @property
    def directory_id(self) -> bytes | None:
        """The id by which the cluster knows this dir; None if it has none yet, or could not be read at start."""
        properties = self.properties
        return None if properties is None or properties.directory_id is None else uuid_bytes(properties.directory_id)

    @property
    def is_formatted(self) -> bool:
        return self.disk.exists(f"{self.path}/{META_PROPERTIES}")

    def open(self, *, may_be_made: bool = True) -> None:
        """Lock the dir and learn how it was left. Only a node that is new makes its dirs: where there was one, an empty
        folder in the place of a disk that is not mounted would be taken for a disk that lost everything."""
        if may_be_made:
            self.disk.make_dirs(self.path)
        elif not self.disk.exists(self.path):
            raise FileNotFoundError(errno.ENOENT, "the folder is gone", self.path)
        try:
            self._lock = self.disk.lock(f"{self.path}/{LOCK}")
        except BlockingIOError as error:
            raise DirLocked(f"{self.path} is used by another process: stop it, or use another log.dirs") from error
        self.properties = read_meta_properties(self.disk, self.path)
        self.broker_epoch = read_clean_shutdown(self.disk, self.path)
        self.was_clean = self.broker_epoch is not None
        self.cleaned_offsets = self.read_checkpoint(CLEANER_OFFSET)

    def check_presence(self) -> None:
        """What is open can be written to when its folder is long gone: somebody must look."""
        known = (META_PROPERTIES, LOCK) if self.properties is not None else ("",)
        if not any(self.disk.exists(f"{self.path}/{name}".rstrip("/")) for name in known):
            self.fail(FileNotFoundError(errno.ENOENT, "the folder is gone", self.path))

    def take_over(self) -> None:
        """The dir is ours, and its logs are opened: from now on the clean-shutdown marker would be a lie."""
        remove_clean_shutdown(self.disk, self.path)

    def read_checkpoint(self, name: str) -> dict[TopicPartition, int]:
        """An unreadable checkpoint counts as empty, and the shutdown as unclean: the logs themselves must tell."""
        try:
            offsets = read_offsets(self.disk, f"{self.path}/{name}")
        except CorruptCheckpoint:
            self.was_clean = False
            return {}
        if name == RECOVERY_POINT:
            self.promises_no_gaps = offsets.pop(WITHOUT_GAPS, None) is not None
        self._checkpoint(name).found(offsets)
        return offsets

    def checkpoint_values(self, name: str) -> dict[TopicPartition, int]:
        return _values(name, self.logs, self.cleaned_offsets)

    def _checkpoint(self, name: str) -> CheckpointFile:
        return self._checkpoints.setdefault(name, CheckpointFile(self.disk, f"{self.path}/{name}"))

    def checkpoint_job(self, name: str) -> CheckpointJob:
        return CheckpointJob(self._checkpoint(name), self.checkpoint_values(name), self.fail)

    def write_checkpoint(self, name: str) -> None:
        """Now, on this thread, which is the loop's."""
        self._write(name, self.checkpoint_values(name))

    def announce(self, log: PartitionLog, cleaned_offset: int | None) -> None:
        """Write all checkpoints as they will be when `log` is here: its folder is about to get its name."""
        logs = {**self.logs, log.topic_partition: log}
        cleaned = dict(self.cleaned_offsets)
        cleaned.pop(log.topic_partition, None)
        if cleaned_offset is not None:
            cleaned[log.topic_partition] = cleaned_offset
        for name in CHECKPOINTS:
            self._write(name, _values(name, logs, cleaned))

    def _write(self, name: str, offsets: dict[TopicPartition, int]) -> None:
        file = self._checkpoint(name)
        turn = file.next_turn(offsets)
        try:
            file.write(turn, offsets)
        except OSError as error:
            self.fail(error)
            raise
        file.finished(turn, offsets)

    def forget(self, key: TopicPartition) -> None:
        """Make sure that no checkpoint speaks of a partition that is not here, not even after a crash.

        Quick but for names that are used again within a minute of their deletion: the rest is forgotten in passing."""
        self.cleaned_offsets.pop(key, None)
        for name in CHECKPOINTS:
            if self._checkpoint(name).may_hold(key):
                self.write_checkpoint(name)

    def fail(self, error: OSError) -> None:
        self.on_failure(self.path, error)

    def close(self, broker_epoch: int) -> None:
        """After all logs are closed: leave the dir so that the next start needs no recovery."""
        for name in CHECKPOINTS:
            self.write_checkpoint(name)
        write_clean_shutdown(self.disk, self.path, broker_epoch)

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def _values(
    name: str, logs: Mapping[TopicPartition, PartitionLog], cleaned_offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """What a checkpoint says of these logs."""
    if name == RECOVERY_POINT:
        return {WITHOUT_GAPS: 0, **{key: log.recovery_point for key, log in logs.items()}}
    if name == HIGH_WATERMARK:
        return {key: log.high_watermark for key, log in logs.items()}
    if name == LOG_START_OFFSET:  # only where it is not simply the first segment's, as in Kafka
        return {
            key: log.log_start_offset for key, log in logs.items() if log.log_start_offset > log.segments[0].base_offset
        }
    return {key: offset for key, offset in cleaned_offsets.items() if key in logs}
