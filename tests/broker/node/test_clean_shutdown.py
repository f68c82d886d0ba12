"""Which shutdowns count as clean: the controller keeps a replica eligible after those only."""

import errno

import pytest

from moldau.broker.node.registration import clean_shutdown_epoch
from moldau.controller.image import BrokerRegistration
from moldau.log import LogManager
from moldau.log.checkpoints import MetaProperties, remove_clean_shutdown, uuid_text, write_clean_shutdown
from moldau.log.checkpoints import write_meta_properties as write_identity
from moldau.seams import SystemClock
from moldau.seams.randomness import SeededRandom
from tests.support.sim_disk import SimDisk

IDS = {"/a": b"a" * 16, "/b": b"b" * 16}


def registered(*dirs: bytes) -> BrokerRegistration:
    return BrokerRegistration(1, 7, bytes(16), (), {}, None, False, False, directories=dirs)


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk()
    for path, directory in IDS.items():
        disk.make_dirs(path)
        write_identity(disk, path, MetaProperties("c", 1, uuid_text(directory)))
        write_clean_shutdown(disk, path, 7)
    return disk


def epoch(disk: SimDisk, known: BrokerRegistration | None = None, dirs: tuple[str, ...] = ("/a", "/b")) -> int:
    logs = LogManager(dirs, disk=disk, clock=SystemClock(), random=SeededRandom(1))
    logs.open_dirs()
    logs.abandon()
    return clean_shutdown_epoch(logs, registered(*IDS.values()) if known is None else known)


def test_all_dirs_are_there_and_agree(disk: SimDisk) -> None:
    assert epoch(disk) == 7


def test_a_dir_left_by_another_life(disk: SimDisk) -> None:
    write_clean_shutdown(disk, "/b", 5)
    assert epoch(disk) == -1


def test_a_dir_that_was_not_closed(disk: SimDisk) -> None:
    remove_clean_shutdown(disk, "/b")
    assert epoch(disk) == -1


def test_a_dir_that_is_gone(disk: SimDisk) -> None:
    disk.remove_tree("/b")
    assert epoch(disk) == -1


def test_a_dir_that_cannot_be_read(disk: SimDisk) -> None:
    disk.fail("/b", errno.EIO)
    assert epoch(disk) == -1


def test_a_dir_that_is_no_longer_configured(disk: SimDisk) -> None:
    assert epoch(disk, dirs=("/a",)) == -1
    assert epoch(disk, registered(IDS["/a"]), dirs=("/a",)) == 7
