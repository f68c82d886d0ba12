"""Kafka's small text files: offset checkpoints, leader epochs, partition and node identity, the clean-shutdown marker.

Every one is replaced as a whole, so a reader sees the old or the new. A file that cannot be understood raises
`CorruptCheckpoint`, and its owner falls back to what the log itself says; it is never half believed.
"""

import base64
import binascii
import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from moldau.log.errors import CorruptCheckpoint
from moldau.seams import Disk

RECOVERY_POINT = "recovery-point-offset-checkpoint"
HIGH_WATERMARK = "replication-offset-checkpoint"
LOG_START_OFFSET = "log-start-offset-checkpoint"
CLEANER_OFFSET = "cleaner-offset-checkpoint"
LEADER_EPOCH = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
LOCK = ".lock"

TopicPartition = tuple[str, int]
_VERSION = 0
_ID_BYTES = 16


def _read_table(disk: Disk, path: str, columns: int) -> list[list[str]]:
    """The rows of a checkpoint file: a version, a count, then `count` rows. No file, no rows."""
    try:
        lines = disk.read_file(path).decode("utf-8").split("\n")
        version, count = int(lines[0]), int(lines[1])
    except FileNotFoundError:
        return []
    except (ValueError, IndexError) as error:
        raise CorruptCheckpoint(f"{path} does not start with a version and a count") from error
    rows = [line.split(" ") for line in lines[2:] if line]
    if version != _VERSION or len(rows) != count or any(len(row) != columns for row in rows):
        raise CorruptCheckpoint(f"{path} is of version {version} with {len(rows)} of {count} rows")
    return rows


def _table(rows: Iterable[str]) -> bytes:
    rows = list(rows)
    return "\n".join([str(_VERSION), str(len(rows)), *rows, ""]).encode()


def read_offsets(disk: Disk, path: str) -> dict[TopicPartition, int]:
    try:
        return {(topic, int(partition)): int(offset) for topic, partition, offset in _read_table(disk, path, 3)}
    except ValueError as error:
        raise CorruptCheckpoint(f"{path} holds something that is not a number") from error


def write_offsets(disk: Disk, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    rows = (f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items()))
    disk.write_file_atomically(path, _table(rows))


def read_epochs(disk: Disk, path: str) -> list[tuple[int, int]]:
    """(epoch, start offset) pairs, both strictly growing."""
    try:
        epochs = [(int(epoch), int(offset)) for epoch, offset in _read_table(disk, path, 2)]
    except ValueError as error:
        raise CorruptCheckpoint(f"{path} holds something that is not a number") from error
    for (epoch, offset), (next_epoch, next_offset) in itertools.pairwise(epochs):
        if next_epoch <= epoch or next_offset < offset:
            raise CorruptCheckpoint(f"{path} goes back at epoch {next_epoch}")
    return epochs


def write_epochs(disk: Disk, path: str, epochs: Iterable[tuple[int, int]], *, flush: bool) -> None:
    disk.write_file_atomically(path, _table(f"{epoch} {offset}" for epoch, offset in epochs), flush=flush)


def uuid_text(value: bytes) -> str:
    """Kafka's way of writing ids: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def uuid_bytes(text: str) -> bytes:
    try:
        value = base64.urlsafe_b64decode(text + "==")
    except (binascii.Error, ValueError) as error:
        raise CorruptCheckpoint(f"{text!r} is not an id") from error
    if len(value) != _ID_BYTES:
        raise CorruptCheckpoint(f"{text!r} is not an id of 16 bytes")
    return value


def read_topic_id(disk: Disk, folder: str) -> bytes | None:
    """The topic id in `partition.metadata`; None if there is no such file."""
    path = f"{folder}/{PARTITION_METADATA}"
    try:
        text = disk.read_file(path).decode(errors="replace")
    except FileNotFoundError:
        return None
    fields = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    if fields.get("version") != "0" or "topic_id" not in fields:
        raise CorruptCheckpoint(f"{path} does not hold a topic id")
    return uuid_bytes(fields["topic_id"])


def write_topic_id(disk: Disk, folder: str, topic_id: bytes) -> None:
    data = f"version: 0\ntopic_id: {uuid_text(topic_id)}".encode()
    disk.write_file_atomically(f"{folder}/{PARTITION_METADATA}", data, flush=False)


@dataclass(slots=True, frozen=True)
class MetaProperties:
    """Who a log dir belongs to. Ids are kept as Kafka's text; a dir formatted by an old version has no directory id."""

    cluster_id: str
    node_id: int
    directory_id: str | None = None


def read_meta_properties(disk: Disk, log_dir: str) -> MetaProperties | None:
    path = f"{log_dir}/{META_PROPERTIES}"
    if not disk.exists(path):
        return None
    fields = {}
    for line in disk.read_file(path).decode().splitlines():
        key, separator, value = line.strip().partition("=")
        if separator and not key.startswith(("#", "!")):
            fields[key.strip()] = value.strip()
    try:
        return MetaProperties(fields["cluster.id"], int(fields["node.id"]), fields.get("directory.id"))
    except (KeyError, ValueError) as error:
        raise CorruptCheckpoint(f"{path} lacks a valid cluster.id or node.id: format the log dir again") from error


def write_meta_properties(disk: Disk, log_dir: str, properties: MetaProperties) -> None:
    lines = ["#", "version=1", f"node.id={properties.node_id}", f"cluster.id={properties.cluster_id}"]
    if properties.directory_id is not None:
        lines.append(f"directory.id={properties.directory_id}")
    disk.write_file_atomically(f"{log_dir}/{META_PROPERTIES}", "\n".join([*lines, ""]).encode())


def write_clean_shutdown(disk: Disk, log_dir: str, broker_epoch: int) -> None:
    data = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode()
    disk.write_file_atomically(f"{log_dir}/{CLEAN_SHUTDOWN}", data)


def read_clean_shutdown(disk: Disk, log_dir: str) -> int | None:
    """The broker epoch the marker was written under (-1 if it does not say); None if there is no marker."""
    path = f"{log_dir}/{CLEAN_SHUTDOWN}"
    if not disk.exists(path):
        return None
    try:
        return int(json.loads(disk.read_file(path))["brokerEpoch"])
    except (ValueError, KeyError, TypeError):
        return -1


def remove_clean_shutdown(disk: Disk, log_dir: str) -> None:
    """Durably: a marker that came back after a crash would keep the damaged logs from being recovered."""
    if disk.exists(f"{log_dir}/{CLEAN_SHUTDOWN}"):
        disk.remove(f"{log_dir}/{CLEAN_SHUTDOWN}")
        disk.flush_dir(log_dir)
