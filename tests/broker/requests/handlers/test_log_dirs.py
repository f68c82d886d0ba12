"""DescribeLogDirs and AlterReplicaLogDirs: where partitions lie, and how they move while they are written."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from moldau.log.dirs.move import MoveJob
from moldau.testing import Broker
from moldau.wire import ErrorCode
from moldau.wire import messages as m
from tests.broker.requests.handlers.conftest import make_broker, on_loop
from tests.broker.requests.handlers.wire_client import WireClient
from tests.support.clients import wait_for

Dirs = m.DescribeLogDirsRequest
Move = m.AlterReplicaLogDirsRequest


def describe(client: WireClient, topic: str, partition: int = 0, version: int = 5) -> list[tuple[str, Any]]:
    """(dir, partition) wherever it lies."""
    asked = Dirs([Dirs.DescribableLogDirTopic(topic, [partition])])
    return [
        (result.log_dir, found)
        for result in client.ask(asked, version).results
        for each in result.topics
        for found in each.partitions
    ]


def dir_of(client: WireClient, topic: str) -> str:
    (where,) = [path for path, found in describe(client, topic) if not found.is_future_key]
    return where


def move(client: WireClient, topic: str, path: str, *, partition: int = 0, version: int = 2) -> int:
    target = Move.AlterReplicaLogDir(path, [Move.AlterReplicaLogDirTopic(topic, [partition])])
    return int(client.ask(Move([target]), version).results[0].partitions[0].error_code)


def other_dir(broker: Broker, path: str) -> str:
    (other,) = [each for each in broker.node.config.log_dirs if each != path]
    return other


def wait_until_in(client: WireClient, topic: str, path: str) -> None:
    deadline = time.monotonic() + 20
    while [(where, found.is_future_key) for where, found in describe(client, topic)] != [(path, False)]:
        assert time.monotonic() < deadline, describe(client, topic)


@pytest.mark.parametrize("version", range(1, 6))
def test_dirs_tell_what_lies_in_them(broker: Broker, client: WireClient, version: int) -> None:
    name = client.new_topic(2)
    client.produce(name, [b"x" * 100] * 10)
    answer = client.ask(Dirs(None), version)
    assert (answer.error_code, {each.log_dir for each in answer.results}) == (0, set(broker.node.config.log_dirs))
    sizes = {
        found.partition_index: (found.partition_size, found.offset_lag, found.is_future_key)
        for result in answer.results
        for topic in result.topics
        if topic.name == name
        for found in topic.partitions
    }
    assert sizes.keys() == {0, 1}
    assert sizes[0][0] > 1000
    assert sizes[1] == (0, 0, False)
    for result in answer.results:
        assert (result.total_bytes >= result.usable_bytes > 0) == (version >= 4)
        assert not result.is_cordoned
    assert describe(client, "no-such", version=version) == []


@pytest.mark.parametrize("version", [1, 2])
def test_a_move_to_nowhere_is_refused(broker: Broker, client: WireClient, version: int) -> None:
    name = client.new_topic()
    here = dir_of(client, name)
    assert move(client, name, "/nowhere", version=version) == ErrorCode.LOG_DIR_NOT_FOUND
    assert move(client, "no-such", here, version=version) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert move(client, name, here, partition=7, version=version) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert move(client, "x" * 245, here, version=version) == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert move(client, name, here, version=version) == 0
    assert dir_of(client, name) == here


def test_a_partition_moves_while_it_is_written(broker: Broker, client: WireClient) -> None:
    name = client.new_topic(segment_bytes="1048576")
    for _ in range(40):
        client.produce(name, [b"x" * 10_000] * 10)
    target = other_dir(broker, dir_of(client, name))
    stop = threading.Event()
    offsets: list[int] = []

    def write() -> None:
        with WireClient(broker.bootstrap_servers) as writer:
            while not stop.is_set():
                answer = writer.produce(name, [b"y" * 1000])
                assert answer.error_code == 0
                offsets.append(answer.base_offset)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert move(client, name, target) == 0
        wait_until_in(client, name, target)
        written = len(offsets)
        deadline = time.monotonic() + 20
        while len(offsets) < written + 20:
            assert time.monotonic() < deadline
    finally:
        stop.set()
        thread.join()
    assert offsets == list(range(400, 400 + len(offsets)))
    assert client.latest(name).offset == 400 + len(offsets)

    def directories() -> tuple[bytes, bytes]:
        node = broker.node.broker
        properties = node.logs.dirs[target].properties
        assert properties is not None
        image = node.image.partition(name, 0)
        assert image is not None
        return image.directory_of(1), bytes(str(properties.directory_id), "ascii")

    from moldau.log.checkpoints import uuid_text

    def is_known() -> bool:
        assigned, expected = on_loop(broker, directories)
        return uuid_text(assigned).encode() == expected

    wait_for(is_known, "the controller to know where it lies")  # it is told when the move is over


def test_what_moved_is_there_after_a_restart(tmp_path: Path) -> None:
    with make_broker(tmp_path) as broker, WireClient(broker.bootstrap_servers) as client:
        name = client.new_topic()
        client.produce(name, [b"a", b"b"])
        target = other_dir(broker, dir_of(client, name))
        assert move(client, name, target) == 0
        wait_until_in(client, name, target)
        client.produce(name, [b"c"])
    with make_broker(tmp_path) as broker, WireClient(broker.bootstrap_servers) as client:
        assert (dir_of(client, name), client.latest(name).offset) == (target, 3)


class HeldMoves:
    """Lets no copy begin until it is told to."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        original = MoveJob.run

        def run(job: MoveJob) -> None:
            assert self.go.wait(20)
            original(job)

        patch.setattr(MoveJob, "run", run)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> HeldMoves:
    return HeldMoves(monkeypatch)


def test_a_copy_under_way_is_shown_as_future(own_broker: Broker, own_client: WireClient, held: HeldMoves) -> None:
    name = own_client.new_topic()
    own_client.produce(name, [b"a", b"b"])
    here = dir_of(own_client, name)
    target = other_dir(own_broker, here)
    assert move(own_client, name, target) == 0
    shown = {(path, found.is_future_key, found.offset_lag) for path, found in describe(own_client, name)}
    assert shown == {(here, False, 0), (target, True, 2)}
    held.go.set()
    wait_until_in(own_client, name, target)


def test_settings_changed_meanwhile_hold_for_the_moved_log(
    own_broker: Broker, own_client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied, go = threading.Event(), threading.Event()
    original = MoveJob.run

    def run(job: MoveJob) -> None:
        original(job)
        copied.set()
        assert go.wait(20)

    monkeypatch.setattr(MoveJob, "run", run)
    name = own_client.new_topic()
    target = other_dir(own_broker, dir_of(own_client, name))
    assert move(own_client, name, target) == 0
    assert copied.wait(20)
    assert own_client.alter(2, name, ("max.message.bytes", 0, "2000")).error_code == 0
    go.set()
    wait_until_in(own_client, name, target)
    assert own_client.produce(name, [b"x" * 4000]).error_code == ErrorCode.MESSAGE_TOO_LARGE


def test_asking_for_the_old_dir_ends_the_move(own_broker: Broker, own_client: WireClient, held: HeldMoves) -> None:
    name = own_client.new_topic()
    own_client.produce(name, [b"a"])
    here = dir_of(own_client, name)
    assert move(own_client, name, other_dir(own_broker, here)) == 0
    assert move(own_client, name, here) == 0
    held.go.set()
    wait_until_in(own_client, name, here)
    assert own_client.produce(name, [b"b"]).base_offset == 1


def test_a_topic_deleted_while_it_moves_stays_deleted(
    own_broker: Broker, own_client: WireClient, held: HeldMoves
) -> None:
    name = own_client.new_topic()
    own_client.produce(name, [b"a"])
    assert move(own_client, name, other_dir(own_broker, dir_of(own_client, name))) == 0
    deleted = own_client.ask(m.DeleteTopicsRequest(topic_names=[name], timeout_ms=5_000), 5)
    assert deleted.responses[0].error_code == 0
    held.go.set()
    deadline = time.monotonic() + 20
    while describe(own_client, name):
        assert time.monotonic() < deadline
    own_client.new_topic(name=name)
    assert own_client.latest(name).offset == 0


def remake(client: WireClient, name: str, others: int = 0) -> None:
    """With `others`, new topics take the places that would be its own."""
    deleted = client.ask(m.DeleteTopicsRequest(topic_names=[name], timeout_ms=5_000), 5)
    assert deleted.responses[0].error_code == 0
    for _ in range(others):
        client.new_topic()
    client.new_topic(name=name)


def test_a_topic_made_again_while_its_former_self_moves_moves_by_itself(
    own_broker: Broker, own_client: WireClient, held: HeldMoves
) -> None:
    name = own_client.new_topic()
    assert move(own_client, name, other_dir(own_broker, dir_of(own_client, name))) == 0
    remake(own_client, name)
    target = other_dir(own_broker, dir_of(own_client, name))
    assert move(own_client, name, target) == 0
    held.go.set()
    wait_until_in(own_client, name, target)
    assert (own_client.produce(name, [b"a"]).error_code, own_client.latest(name).offset) == (0, 1)
    assert len(own_broker.node.broker.logs.online_dirs) == 2


def test_what_was_wished_for_a_topic_is_not_done_to_its_successor(
    own_broker: Broker, own_client: WireClient, held: HeldMoves
) -> None:
    name = own_client.new_topic()
    here = dir_of(own_client, name)
    assert move(own_client, name, other_dir(own_broker, here)) == 0
    assert move(own_client, name, here) == 0  # ends the first, and is the last that was wished
    remake(own_client, name)
    if dir_of(own_client, name) == here:
        remake(own_client, name, others=1)
    assert dir_of(own_client, name) != here
    held.go.set()
    moves = own_broker.node.broker.moves
    deadline = time.monotonic() + 20
    while on_loop(own_broker, lambda: len(moves._tasks)):
        assert time.monotonic() < deadline
    assert dir_of(own_client, name) == other_dir(own_broker, here)


def test_stopping_gives_up_a_move_and_keeps_the_records(tmp_path: Path, held: HeldMoves) -> None:
    with make_broker(tmp_path) as broker, WireClient(broker.bootstrap_servers) as client:
        name = client.new_topic()
        client.produce(name, [b"a", b"b"])
        here = dir_of(client, name)
        assert move(client, name, other_dir(broker, here)) == 0
        on_loop(broker, lambda: broker.node.broker.loop.call_later(0.1, held.go.set))
    with make_broker(tmp_path) as broker, WireClient(broker.bootstrap_servers) as client:
        assert (dir_of(client, name), client.latest(name).offset) == (here, 2)


def test_a_failed_dir_is_offline_and_the_other_goes_on(own_broker: Broker, own_client: WireClient) -> None:
    names = [own_client.new_topic() for _ in range(2)]
    where = {dir_of(own_client, name): name for name in names}
    assert len(where) == 2
    metadata_dir = own_broker.node.config.metadata_log_dir
    failed = other_dir(own_broker, metadata_dir)
    on_loop(own_broker, lambda: own_broker.node.broker.logs.dir_failed(failed, OSError(5, "pulled out")))
    results = {each.log_dir: each.error_code for each in own_client.ask(Dirs(None)).results}
    assert results == {metadata_dir: 0, failed: ErrorCode.KAFKA_STORAGE_ERROR}
    assert move(own_client, where[metadata_dir], failed) == ErrorCode.KAFKA_STORAGE_ERROR
    assert move(own_client, where[failed], metadata_dir) == ErrorCode.KAFKA_STORAGE_ERROR
    assert own_client.produce(where[metadata_dir], [b"x"]).error_code == 0


def test_a_topic_made_again_after_its_dir_failed_has_a_replica(own_broker: Broker, own_client: WireClient) -> None:
    names = [own_client.new_topic() for _ in range(2)]
    where = {dir_of(own_client, name): name for name in names}
    metadata_dir = own_broker.node.config.metadata_log_dir
    failed = other_dir(own_broker, metadata_dir)
    on_loop(own_broker, lambda: own_broker.node.broker.logs.dir_failed(failed, OSError(5, "pulled out")))
    name = where[failed]
    # Whether the controller has heard of it already, or not yet.
    gone = (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert own_client.produce(name, [b"x"]).error_code in gone
    state = m.DeleteTopicsRequest.DeleteTopicState
    (deleted,) = own_client.ask(m.DeleteTopicsRequest(topics=[state(name=name)])).responses
    assert deleted.error_code == 0
    own_client.new_topic(name=name)
    assert own_client.produce(name, [b"x"]).error_code == 0
    assert dir_of(own_client, name) == metadata_dir


def test_the_controller_hears_at_once_of_a_failed_dir(own_broker: Broker, own_client: WireClient) -> None:
    node = own_broker.node.broker
    failed = other_dir(own_broker, own_broker.node.config.metadata_log_dir)
    on_loop(own_broker, lambda: node.logs.dir_failed(failed, OSError(5, "pulled out")))
    deadline = time.monotonic() + 20
    while len(node.image.brokers[node.node_id].directories) > 1:
        assert time.monotonic() < deadline
    own_client.produce(own_client.new_topic(), [b"x"])


def test_cordoned_dirs_get_no_new_replicas(own_broker: Broker, own_client: WireClient) -> None:
    """KIP-1066."""
    node = own_broker.node.broker
    one, two = own_broker.node.config.log_dirs

    def cordon(*paths: str) -> None:
        value = ",".join(paths)
        assert own_client.alter(4, str(node.node_id), ("cordoned.log.dirs", 0, value)).error_code == 0
        wanted = {each.directory_id for path, each in node.logs.dirs.items() if path in paths}
        deadline = time.monotonic() + 20
        while set(node.image.brokers[node.node_id].cordoned_directories or ()) != wanted:
            assert time.monotonic() < deadline, "the controller heard of it"
        marked = {each.log_dir for each in own_client.ask(Dirs(None)).results if each.is_cordoned}
        assert marked == set(paths)

    cordon(one)
    names = [own_client.new_topic() for _ in range(3)]
    assert {dir_of(own_client, name) for name in names} == {two}
    assert move(own_client, names[0], one) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    cordon(one, two)
    kind = m.CreateTopicsRequest.CreatableTopic
    (refused,) = own_client.ask(m.CreateTopicsRequest(topics=[kind("none", 1, 1)])).topics
    assert refused.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    cordon()
    assert move(own_client, names[0], one) == 0
    wait_until_in(own_client, names[0], one)


def test_dirs_cordoned_in_the_settings_file_are_from_the_start(tmp_path: Path) -> None:
    settings = {"cordoned_log_dirs": f"{tmp_path}/one"}
    with make_broker(tmp_path, **settings) as broker, WireClient(broker.bootstrap_servers) as client:
        names = [client.new_topic() for _ in range(3)]
        assert {dir_of(client, name) for name in names} == {f"{tmp_path}/two"}
