"""What of the metadata log must be there: everything below its recovery point, which a small file beside it remembers.

A crash may tear what was not flushed, and that is truncated. What was flushed was promised: a voter that starts with
less than it promised takes part in losing what a majority had, and a broker that acts upon less takes its replicas for
strays. So damage below the recovery point stops the start, before anything is truncated, renamed or removed.

Invariant: the recovery point on disk never lies beyond what was flushed, and is lowered before the log is truncated
below it. Apache Kafka does not know the file, and leaves it alone.
"""

from __future__ import annotations

import logging
import zlib

from moldau.log.errors import StorageError
from moldau.log.segment import LOG_SUFFIX
from moldau.records import CorruptBatch, RecordsError, check_crc, iter_batches
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


def check_flushed(disk: Disk, folder: str, recovery_point: int) -> None:
    """Read everything below the recovery point; CorruptMetadata unless all of it is there and as it was written."""
    bases = sorted(
        int(name.removesuffix(LOG_SUFFIX))
        for name in disk.list_dir(folder)
        if name.endswith(LOG_SUFFIX) and len(name) == _NAME_DIGITS + len(LOG_SUFFIX) and name[:_NAME_DIGITS].isdigit()
    )
    if not bases and recovery_point > 0:
        raise CorruptMetadata(f"{folder} has no log any more, which reached offset {recovery_point}")
    expected = bases[0] if bases else 0
    for base in bases:
        if expected >= recovery_point:
            return
        path = f"{folder}/{base:0{_NAME_DIGITS}d}{LOG_SUFFIX}"
        if base != expected:
            raise CorruptMetadata(f"{path} follows on offset {expected}: what was between is missing")
        expected = _check_segment(disk, path, base, recovery_point)
    if expected < recovery_point:
        raise CorruptMetadata(f"{folder} ends at offset {expected}, and was flushed up to {recovery_point}")


def _check_segment(disk: Disk, path: str, base: int, recovery_point: int) -> int:
    """The offset after it, or at least the recovery point."""
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
            expected, end = header.next_offset, position + header.size_bytes
            if expected >= recovery_point:
                return expected
    except (RecordsError, ValueError) as error:
        raise CorruptMetadata(
            f"{path} is damaged at byte {end}: the batch at offset {expected} is not what was written ({error})"
        ) from error
    if end < len(data):
        raise CorruptMetadata(f"{path} is damaged at byte {end}: the batch at offset {expected} is cut short")
    return expected
