"""Kafka's small text files, byte for byte, and what happens when one is damaged."""

import pytest

from moldau.log.checkpoints import (
    MetaProperties,
    read_clean_shutdown,
    read_epochs,
    read_meta_properties,
    read_offsets,
    read_topic_id,
    remove_clean_shutdown,
    uuid_bytes,
    uuid_text,
    write_clean_shutdown,
    write_epochs,
    write_meta_properties,
    write_offsets,
    write_topic_id,
)
from moldau.log.epoch_cache import EpochCache, EpochEndOffset
from moldau.log.errors import CorruptCheckpoint
from moldau.log.jobs import CheckpointFile
from tests.support.sim_disk import SimDisk


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk()
    disk.make_dirs("/d")
    return disk


def test_offset_checkpoint(disk: SimDisk) -> None:
    write_offsets(disk, "/d/c", {("b", 1): 7, ("a", 0): 2**40})
    assert disk.read_file("/d/c") == b"0\n2\na 0 1099511627776\nb 1 7\n"
    assert read_offsets(disk, "/d/c") == {("b", 1): 7, ("a", 0): 2**40}
    assert read_offsets(disk, "/d/missing") == {}


@pytest.mark.parametrize(
    "data", [b"", b"0", b"1\n0\n", b"0\n2\na 0 1\n", b"0\n1\na 0\n", b"0\n1\na x 1\n", b"\xff\xfe", b"0\nx\n"]
)
def test_damaged_offset_checkpoint(disk: SimDisk, data: bytes) -> None:
    disk.write_file_atomically("/d/c", data)
    with pytest.raises(CorruptCheckpoint):
        read_offsets(disk, "/d/c")


def test_epoch_checkpoint(disk: SimDisk) -> None:
    write_epochs(disk, "/d/e", [(0, 0), (3, 100)], flush=True)
    assert disk.read_file("/d/e") == b"0\n2\n0 0\n3 100\n"
    assert read_epochs(disk, "/d/e") == [(0, 0), (3, 100)]
    disk.write_file_atomically("/d/e", b"0\n2\n3 100\n2 200\n")
    with pytest.raises(CorruptCheckpoint):
        read_epochs(disk, "/d/e")


def test_topic_id(disk: SimDisk) -> None:
    topic_id = uuid_bytes("27hmWoDnRVqKrXFAFQAfUA")
    write_topic_id(disk, "/d", topic_id)
    assert disk.read_file("/d/partition.metadata") == b"version: 0\ntopic_id: 27hmWoDnRVqKrXFAFQAfUA"
    assert read_topic_id(disk, "/d") == topic_id
    assert uuid_text(topic_id) == "27hmWoDnRVqKrXFAFQAfUA"
    for damaged in (b"", b"version: 0", b"version: 0\ntopic_id: x", b"\0" * 40):
        disk.write_file_atomically("/d/partition.metadata", damaged)
        with pytest.raises(CorruptCheckpoint):
            read_topic_id(disk, "/d")


def test_meta_properties(disk: SimDisk) -> None:
    assert read_meta_properties(disk, "/d") is None
    properties = MetaProperties("cluster", 3, "27hmWoDnRVqKrXFAFQAfUA")
    write_meta_properties(disk, "/d", properties)
    assert read_meta_properties(disk, "/d") == properties
    java = b"#\n#Sat Nov 14 2026\nnode.id=1\nversion=1\ncluster.id = abc\n"
    disk.write_file_atomically("/d/meta.properties", java)
    assert read_meta_properties(disk, "/d") == MetaProperties("abc", 1)
    disk.write_file_atomically("/d/meta.properties", b"version=1\n")
    with pytest.raises(CorruptCheckpoint):
        read_meta_properties(disk, "/d")


def test_clean_shutdown_marker_does_not_come_back(disk: SimDisk) -> None:
    write_clean_shutdown(disk, "/d", 17)
    assert disk.read_file("/d/.kafka_cleanshutdown") == b'{"version":0,"brokerEpoch":17}'
    assert read_clean_shutdown(disk, "/d") == 17
    remove_clean_shutdown(disk, "/d")
    assert all(read_clean_shutdown(disk.crash(seed), "/d") is None for seed in range(20))
    disk.write_file_atomically("/d/.kafka_cleanshutdown", b"")  # as old Kafka versions wrote it
    assert read_clean_shutdown(disk, "/d") == -1


def test_an_older_checkpoint_never_overwrites_a_newer_one(disk: SimDisk) -> None:
    file = CheckpointFile(disk, "/d/c")
    older, newer = file.next_turn([("t", 0)]), file.next_turn([("t", 0)])
    file.write(newer, {("t", 0): 5})
    file.write(older, {("t", 0): 9})
    assert read_offsets(disk, "/d/c") == {("t", 0): 5}


def epochs(disk: SimDisk, *entries: tuple[int, int]) -> EpochCache:
    cache = EpochCache(disk, "/d")
    for epoch, offset in entries:
        cache.assign(epoch, offset)
    return cache


def test_epochs_answer_as_kafka_does(disk: SimDisk) -> None:
    cache = epochs(disk, (2, 10), (4, 20), (7, 40))
    assert cache.end_offset_for(7, 99) == EpochEndOffset(7, 99)  # the present epoch ends at the log end
    assert cache.end_offset_for(4, 99) == EpochEndOffset(4, 40)
    assert cache.end_offset_for(5, 99) == EpochEndOffset(4, 40)  # unknown: the largest one below
    assert cache.end_offset_for(1, 99) == EpochEndOffset(1, 10)  # older than the log
    assert cache.end_offset_for(8, 99) == EpochEndOffset(-1, -1)
    assert cache.end_offset_for(-1, 99) == EpochEndOffset(-1, -1)
    assert [cache.epoch_for_offset(offset) for offset in (9, 10, 39, 40, 100)] == [-1, 2, 4, 7, 7]


def test_epochs_only_grow(disk: SimDisk) -> None:
    cache = epochs(disk, (2, 10), (4, 20))
    cache.assign(4, 25)  # known
    assert cache.entries == [(2, 10), (4, 20)]
    cache.assign(5, 15)  # contradicts epoch 4: the newer knowledge wins
    assert cache.entries == [(2, 10), (5, 15)]
    cache.assign(3, 30)  # an epoch that went back takes the later ones with it
    assert cache.entries == [(2, 10), (3, 30)]


def test_epoch_truncation(disk: SimDisk) -> None:
    cache = epochs(disk, (2, 10), (4, 20), (7, 40))
    cache.truncate_from_end(40)
    assert cache.entries == [(2, 10), (4, 20)]
    cache.truncate_from_start(25)
    assert cache.entries == [(4, 25)]
    cache.truncate_from_start(5)  # before the first: nothing to do
    assert cache.entries == [(4, 25)]
    assert EpochCache.load(disk, "/d").entries == [(4, 25)]
    cache.clear()
    assert EpochCache.load(disk, "/d").entries == []
