"""Snapshots of the metadata: `<end offset, 20 digits>-<epoch, 10 digits>.checkpoint`, in Kafka's format.

A control batch with the header (and, from kraft.version 1 on, the kraft version and the voters), batches of metadata
records, and a control batch with the footer: a snapshot without a footer is not one. A file gets its name only when it
is complete and flushed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from moldau.broker.quorum.recovery_point import CorruptMetadata
from moldau.controller.features import METADATA_VERSION_LATEST, record_version
from moldau.controller.fold import apply
from moldau.controller.image import EMPTY_IMAGE, ClusterImage
from moldau.controller.snapshot import snapshot_records
from moldau.raft import SnapshotId, VoterSet
from moldau.records import (
    BatchBuilder,
    BatchOptions,
    ControlType,
    build_control_batch,
    check_crc,
    iter_batches,
    iter_records,
    read_control_records,
)
from moldau.seams import Disk
from moldau.wire import Message, decode, encode
from moldau.wire import messages as m
from moldau.wire.internal import decode_metadata_record, encode_metadata_record

SUFFIX = ".checkpoint"
PART_SUFFIX = ".checkpoint.part"
_OFFSET_DIGITS, _EPOCH_DIGITS = 20, 10
_BATCH_RECORDS = 1_000


class CorruptSnapshot(CorruptMetadata):
    """The file is no complete snapshot."""


class Snapshot(NamedTuple):
    """What a snapshot says."""

    image: ClusterImage
    timestamp_ms: int = -1
    kraft_version: int = 0
    voters: VoterSet | None = None


class _Found:
    """A snapshot while it is read."""

    def __init__(self) -> None:
        self.timestamp_ms = -1
        self.kraft_version = 0
        self.voters: VoterSet | None = None
        self.records: list[Message] = []
        self.is_complete = False


def snapshot_name(snapshot: SnapshotId) -> str:
    return f"{snapshot.end_offset:020d}-{snapshot.epoch:010d}{SUFFIX}"


def parse_name(name: str) -> SnapshotId | None:
    stem = name.removesuffix(SUFFIX)
    offset, dash, epoch = stem.partition("-")
    if stem == name or not dash or len(offset) != _OFFSET_DIGITS or len(epoch) != _EPOCH_DIGITS:
        return None
    return SnapshotId(int(offset), int(epoch)) if offset.isdigit() and epoch.isdigit() else None


def list_snapshots(disk: Disk, folder: str) -> list[SnapshotId]:
    """Oldest first. What was never finished is removed."""
    found = []
    for name in disk.list_dir(folder):
        if name.endswith(PART_SUFFIX):
            disk.remove(f"{folder}/{name}")
        elif (snapshot := parse_name(name)) is not None:
            found.append(snapshot)
    return sorted(found)


def snapshot_batches(
    image: ClusterImage,
    snapshot: SnapshotId,
    *,
    timestamp_ms: int,
    kraft_version: int = 0,
    voters: VoterSet | None = None,
) -> Iterator[bytes]:
    """The file's content. `timestamp_ms` is that of the last record it covers."""
    return record_batches(
        snapshot_records(image),
        image.metadata_version,
        epoch=snapshot.epoch,
        timestamp_ms=timestamp_ms,
        kraft_version=kraft_version,
        voters=voters,
    )


def record_batches(
    all_records: Iterable[Message],
    metadata_version: int = METADATA_VERSION_LATEST,
    *,
    epoch: int = 0,
    timestamp_ms: int = 0,
    kraft_version: int = 0,
    voters: VoterSet | None = None,
) -> Iterator[bytes]:
    """The same for any records."""
    offset = 0
    header = m.SnapshotHeaderRecord(last_contained_log_timestamp=timestamp_ms)
    control = [(ControlType.SNAPSHOT_HEADER, encode(header, 0))]
    if kraft_version > 0 and voters is not None:
        control.append((ControlType.KRAFT_VERSION, encode(m.KRaftVersionRecord(kraft_version=kraft_version), 0)))
        control.append((ControlType.KRAFT_VOTERS, encode(voters_record(voters), 0)))
    yield bytes(build_control_batch(control, timestamp_ms=timestamp_ms, base_offset=0, leader_epoch=epoch))
    offset += len(control)
    for records in _chunks(all_records):
        builder = BatchBuilder(BatchOptions(base_offset=offset, leader_epoch=epoch))
        for record in records:
            version = record_version(record, metadata_version)
            builder.append(timestamp_ms, None, encode_metadata_record(record, version))
        yield bytes(builder.finish())
        offset += len(records)
    footer = [(ControlType.SNAPSHOT_FOOTER, encode(m.SnapshotFooterRecord(), 0))]
    yield bytes(build_control_batch(footer, timestamp_ms=timestamp_ms, base_offset=offset, leader_epoch=epoch))


def _chunks(records: Iterable[Message]) -> Iterator[list[Message]]:
    chunk: list[Message] = []
    for record in records:
        chunk.append(record)
        if len(chunk) >= _BATCH_RECORDS:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def read_snapshot(data: bytes, snapshot: SnapshotId) -> Snapshot:
    """CorruptSnapshot unless every byte of it is there and says what it should."""
    found = _Found()
    name = snapshot_name(snapshot)
    end = 0
    try:
        for position, header in iter_batches(data):
            check_crc(data, position, header)
            if header.is_control:
                for kind, record in read_control_records(data, position):
                    _note_control(found, kind, record.value or b"")
            else:
                values = (record.value for record in iter_records(data, position))
                found.records += [decode_metadata_record(value) for value in values if value is not None]
            end = position + header.size_bytes
        if found.is_complete and end == len(data):
            image = apply(EMPTY_IMAGE, found.records, offset=snapshot.end_offset - 1, epoch=snapshot.epoch)
            return Snapshot(image, found.timestamp_ms, found.kraft_version, found.voters)
    except Exception as error:  # whatever bytes do to those who read them
        raise CorruptSnapshot(f"snapshot {name} is damaged after byte {end}: {error}") from error
    raise CorruptSnapshot(f"snapshot {name} has no footer at its end: it is cut short after byte {end}")


def _note_control(found: _Found, kind: ControlType, value: bytes) -> None:
    if kind is ControlType.SNAPSHOT_HEADER:
        found.timestamp_ms = decode(m.SnapshotHeaderRecord, 0, value).last_contained_log_timestamp
    elif kind is ControlType.SNAPSHOT_FOOTER:
        found.is_complete = True
    elif kind is ControlType.KRAFT_VERSION:
        found.kraft_version = decode(m.KRaftVersionRecord, 0, value).kraft_version
    elif kind is ControlType.KRAFT_VOTERS:
        found.voters = read_voters(decode(m.VotersRecord, 0, value))


def write_snapshot(disk: Disk, folder: str, snapshot: SnapshotId, parts: Iterable[bytes]) -> int:
    """Any thread. The file's size."""
    name = snapshot_name(snapshot)
    part = f"{folder}/{name.removesuffix(SUFFIX)}{PART_SUFFIX}"
    disk.remove(part)
    file = disk.open(part)
    try:
        for each in parts:
            file.append(each)
        file.flush()
        size = file.size
    finally:
        file.close()
    disk.rename(part, f"{folder}/{name}")
    disk.flush_dir(folder)
    return size


def voters_record(voters: VoterSet) -> m.VotersRecord:
    return m.VotersRecord(
        voters=[
            m.VotersRecord.Voter(
                voter_id=voter.key.id,
                voter_directory_id=voter.key.directory_id,
                endpoints=[
                    m.VotersRecord.Endpoint(name, address.host, address.port) for name, address in voter.endpoints
                ],
                kraft_version_feature=m.VotersRecord.KRaftVersionFeature(
                    voter.first_kraft_version, voter.last_kraft_version
                ),
            )
            for voter in voters
        ]
    )


def read_voters(record: m.VotersRecord) -> VoterSet:
    from moldau.raft import Address, ReplicaKey, Voter

    return VoterSet(
        tuple(
            Voter(
                ReplicaKey(each.voter_id, each.voter_directory_id),
                tuple((point.name, Address(point.host, point.port)) for point in each.endpoints),
                each.kraft_version_feature.min_supported_version,
                each.kraft_version_feature.max_supported_version,
            )
            for each in record.voters
        )
    )
