"""What of the metadata log must be there: everything below its recovery point, which a small file beside it remembers.

A crash may tear what was not flushed, and that is truncated. What was flushed was promised: a voter that starts with
less than it promised takes part in losing what a majority had, and a broker that acts upon less takes its replicas for
strays. So damage below the recovery point stops the start, before anything is truncated, renamed or removed.

No checksum covers a batch's leader epoch, and one bit of it makes an old log look newer than all others: its voter
would be elected, and have the others remove what they committed. So it is compared with what else says it: the batches
before it, `leader-epoch-checkpoint`, and `quorum-state`, which knows the newest.

Invariant: the recovery point on disk never lies beyond what was flushed, and is lowered before the log is truncated
below it. Apache Kafka does not know the file, and leaves it alone.
"""

from __future__ import annotations

import logging
import zlib
from bisect import bisect_right
from operator import itemgetter
from typing import NamedTuple

from moldau.log.checkpoints import LEADER_EPOCH, read_epochs
from moldau.log.errors import CorruptCheckpoint, StorageError
from moldau.log.segment import LOG_SUFFIX
from moldau.records import BatchHeader, CorruptBatch, RecordsError, check_crc, iter_batches
from moldau.seams import Disk

RECOVERY_POINT = "recovery-point"
_log = logging.getLogger(__name__)
_NAME_DIGITS = 20


class CorruptMetadata(Exception):
    """Something that was on disk for good is not there any more. The message says where, and what to do."""


def read_recovery_point(disk: Disk, folder: str) -> int:
    """0 if nothing is known: the folder is new, or was last used by another release."""
    path = f"{folder}/{RECOVERY_POINT}"
    if not disk.exists(path):
        return 0
    text, _, checksum = disk.read_file(path).strip().partition(b" ")
    if not text.isdigit() or checksum != _checksum(text):
        _log.warning("%s cannot be read: how much of the metadata log was flushed is not known", path)
        return 0
    return int(text)


def write_recovery_point(disk: Disk, folder: str, offset: int) -> None:
    text = str(offset).encode()
    disk.write_file_atomically(f"{folder}/{RECOVERY_POINT}", text + b" " + _checksum(text) + b"\n")


def _checksum(text: bytes) -> bytes:
    return b"%08x" % zlib.crc32(text)


class _Epochs(NamedTuple):
    """What is known of leader epochs beside the batches."""

    starts: list[tuple[int, int]]  # (offset, epoch), from the checkpoint; none if it cannot be read
    newest: int | None  # from quorum-state; None if there is none

    def check(self, header: BatchHeader, before: int) -> None:
        """CorruptBatch if it cannot have been written in the epoch it says, after one of `before`."""
        epoch, index = header.leader_epoch, bisect_right(self.starts, header.base_offset, key=itemgetter(0))
        noted = self.starts[index - 1][1] if index else epoch
        if epoch != noted:
            raise CorruptBatch(f"it has leader epoch {epoch}, and {LEADER_EPOCH} says {noted}")
        if epoch < before:
            raise CorruptBatch(f"it has leader epoch {epoch}, and the one before it {before}")
        if self.newest is not None and epoch > self.newest:
            raise CorruptBatch(f"it has leader epoch {epoch}, and quorum-state knows none after {self.newest}")


def _known_epochs(disk: Disk, folder: str, newest: int | None) -> _Epochs:
    path = f"{folder}/{LEADER_EPOCH}"
    try:
        starts = read_epochs(disk, path) if disk.exists(path) else []
    except CorruptCheckpoint as error:
        _log.warning("%s; it is made anew from the log", error)
        starts = []
    return _Epochs([(offset, epoch) for epoch, offset in starts], newest)


def check_flushed(disk: Disk, folder: str, recovery_point: int, newest_epoch: int | None) -> None:
    """Read everything below the recovery point; CorruptMetadata unless all of it is there and as it was written.

    `newest_epoch` is that of `quorum-state`, if there is one."""
    bases = sorted(
        int(name.removesuffix(LOG_SUFFIX))
        for name in disk.list_dir(folder)
        if name.endswith(LOG_SUFFIX) and len(name) == _NAME_DIGITS + len(LOG_SUFFIX) and name[:_NAME_DIGITS].isdigit()
    )
    if not bases and recovery_point > 0:
        raise CorruptMetadata(f"{folder} has no log any more, which reached offset {recovery_point}")
    expected = bases[0] if bases else 0
    epochs, epoch = _known_epochs(disk, folder, newest_epoch), 0
    for base in bases:
        if expected >= recovery_point:
            return
        path = f"{folder}/{base:0{_NAME_DIGITS}d}{LOG_SUFFIX}"
        if base != expected:
            raise CorruptMetadata(f"{path} follows on offset {expected}: what was between is missing")
        expected, epoch = _check_segment(disk, path, base, recovery_point, epochs, epoch)
    if expected < recovery_point:
        raise CorruptMetadata(f"{folder} ends at offset {expected}, and was flushed up to {recovery_point}")


def _check_segment(
    disk: Disk, path: str, base: int, recovery_point: int, epochs: _Epochs, epoch: int
) -> tuple[int, int]:
    """The offset after it, or at least the recovery point, and the epoch of the last batch that was looked at."""
    try:
        data = disk.read_file(path)
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error}") from error
    expected, end = base, 0
    try:
        for position, header in iter_batches(data):
            check_crc(data, position, header)
            if header.base_offset != expected:
                raise CorruptBatch(f"it has offset {header.base_offset}")
            epochs.check(header, epoch)
            expected, end, epoch = header.next_offset, position + header.size_bytes, header.leader_epoch
            if expected >= recovery_point:
                return expected, epoch
    except (RecordsError, ValueError) as error:
        raise CorruptMetadata(
            f"{path} is damaged at byte {end}: the batch at offset {expected} is not what was written ({error})"
        ) from error
    if end < len(data):
        raise CorruptMetadata(f"{path} is damaged at byte {end}: the batch at offset {expected} is cut short")
    return expected, epoch
