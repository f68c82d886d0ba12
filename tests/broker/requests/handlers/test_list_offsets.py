"""ListOffsets and OffsetForLeaderEpoch: what each special timestamp means, and who may be told."""

import pytest

from moldau.records import BatchOptions, build_batch
from moldau.testing import Broker
from moldau.wire import ErrorCode
from moldau.wire import messages as m
from tests.broker.requests.handlers.conftest import on_loop
from tests.broker.requests.handlers.wire_client import FIRST_TIMESTAMP_MS, WireClient

Request = m.ListOffsetsRequest
NOTHING = (0, -1, -1, -1)


def ask(
    client: WireClient,
    topic: str,
    timestamp: int,
    *,
    partition: int = 0,
    version: int = 11,
    epoch: int = -1,
    replica: int = -1,
    isolation: int = 0,
) -> tuple[int, int, int, int]:
    """(error, timestamp, offset, leader epoch)"""
    wanted = Request.ListOffsetsPartition(partition, epoch, timestamp)
    request = Request(replica, isolation, [Request.ListOffsetsTopic(topic, [wanted])])
    found = client.ask(request, version).topics[0].partitions[0]
    return found.error_code, found.timestamp, found.offset, found.leader_epoch


@pytest.fixture
def topic(client: WireClient) -> str:
    """Five records, of which the fourth is the youngest, and an empty second partition."""
    name = client.new_topic(2)
    client.produce(name, [b"a", b"b"])
    client.produce(name, [b"c", b"d"], first_timestamp_ms=FIRST_TIMESTAMP_MS + 10)
    client.produce(name, [b"e"], first_timestamp_ms=FIRST_TIMESTAMP_MS + 5)
    return name


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        (-1, (0, -1, 5, 0)),
        (-2, (0, -1, 0, 0)),
        (-3, (0, FIRST_TIMESTAMP_MS + 11, 3, 0)),
        (-4, (0, -1, 0, 0)),
        (-5, NOTHING),
        (-6, NOTHING),
        (0, (0, FIRST_TIMESTAMP_MS, 0, 0)),
        (FIRST_TIMESTAMP_MS + 1, (0, FIRST_TIMESTAMP_MS + 1, 1, 0)),
        (FIRST_TIMESTAMP_MS + 2, (0, FIRST_TIMESTAMP_MS + 10, 2, 0)),
        (FIRST_TIMESTAMP_MS + 11, (0, FIRST_TIMESTAMP_MS + 11, 3, 0)),
        (FIRST_TIMESTAMP_MS + 12, NOTHING),
    ],
)
def test_timestamps_find_offsets(
    client: WireClient, topic: str, timestamp: int, expected: tuple[int, int, int, int]
) -> None:
    assert ask(client, topic, timestamp) == expected


@pytest.mark.parametrize(
    ("timestamp", "expected"), [(-1, (0, -1, 0, 0)), (-2, (0, -1, 0, 0)), (-3, NOTHING), (5, NOTHING)]
)
def test_empty_partitions_have_ends_and_no_records(
    client: WireClient, topic: str, timestamp: int, expected: tuple[int, int, int, int]
) -> None:
    assert ask(client, topic, timestamp, partition=1) == expected


@pytest.mark.parametrize(("timestamp", "since"), [(-1, 1), (-2, 1), (-3, 7), (-4, 8), (-5, 9), (-6, 11)])
def test_each_special_timestamp_has_its_first_version(
    client: WireClient, topic: str, timestamp: int, since: int
) -> None:
    for version in range(1, 12):
        expected = ErrorCode.NONE if version >= since else ErrorCode.UNSUPPORTED_VERSION
        assert ask(client, topic, timestamp, version=version)[0] == expected, version
    assert ask(client, topic, -7)[0] == ErrorCode.UNSUPPORTED_VERSION


def test_the_leader_epoch_is_told_from_version_4_on(client: WireClient, topic: str) -> None:
    assert ask(client, topic, -1, version=3)[3] == -1
    assert ask(client, topic, -1, version=4)[3] == 0


def test_unknown_topics_and_partitions(client: WireClient, topic: str) -> None:
    expected = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1, -1)
    assert ask(client, topic, -1, partition=7) == expected
    assert ask(client, "no-such-topic", -1) == expected


def test_a_partition_named_twice_is_refused_once(client: WireClient, topic: str) -> None:
    wanted = [Request.ListOffsetsPartition(index, -1, -1) for index in (0, 1, 0)]
    answer = client.ask(Request(-1, 0, [Request.ListOffsetsTopic(topic, wanted)])).topics[0].partitions
    assert [(each.partition_index, each.error_code) for each in answer] == [(0, ErrorCode.INVALID_REQUEST), (1, 0)]


def test_a_senseless_isolation_level_finds_nothing(client: WireClient, topic: str) -> None:
    assert ask(client, topic, -1, isolation=9)[0] == ErrorCode.UNKNOWN_SERVER_ERROR


def test_more_searches_than_one_turn_takes_are_all_answered(client: WireClient, topic: str) -> None:
    names = [client.new_topic(100) for _ in range(2)]
    wanted = [Request.ListOffsetsPartition(index, -1, 5) for index in range(100)]
    asked = [Request.ListOffsetsTopic(name, wanted) for name in names]
    asked.append(Request.ListOffsetsTopic(topic, [Request.ListOffsetsPartition(0, -1, FIRST_TIMESTAMP_MS + 10)]))
    answer = client.ask(Request(-1, 0, asked))
    assert [len(each.partitions) for each in answer.topics] == [100, 100, 1]
    assert answer.topics[2].partitions[0].offset == 2


def test_read_committed_ends_before_an_open_transaction(own_broker: Broker, own_client: WireClient) -> None:
    topic = own_client.new_topic()
    own_client.produce(topic, [b"a", b"b"])
    batch = build_batch(
        [(0, FIRST_TIMESTAMP_MS + 50, None, b"open", ())],
        BatchOptions(producer_id=7, producer_epoch=0, base_sequence=0, transactional=True),
    )

    def append() -> None:
        log = own_broker.node.broker.replicas.leader(topic, 0).log
        guard = log.start_verification(7, 0, 0)
        log.append_as_leader(bytearray(batch), 0, verification_guard=guard)
        log.update_high_watermark(log.log_end_offset)

    on_loop(own_broker, append)
    assert ask(own_client, topic, -1)[2] == 3
    assert ask(own_client, topic, -1, isolation=1)[2] == 2
    assert ask(own_client, topic, FIRST_TIMESTAMP_MS + 50)[2] == 2
    assert ask(own_client, topic, FIRST_TIMESTAMP_MS + 50, isolation=1) == NOTHING
    assert ask(own_client, topic, -3, isolation=1) == NOTHING


def test_epochs_tell_who_is_behind(own_broker: Broker, own_client: WireClient) -> None:
    topic = own_client.new_topic()

    def raise_epoch() -> None:
        own_broker.node.broker.replicas.leader(topic, 0).leader_epoch = 5

    on_loop(own_broker, raise_epoch)
    assert ask(own_client, topic, -1, epoch=5)[0] == 0
    assert ask(own_client, topic, -1, epoch=4)[0] == ErrorCode.FENCED_LEADER_EPOCH
    assert ask(own_client, topic, -1, epoch=6)[0] == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_only_debuggers_ask_followers(own_broker: Broker, own_client: WireClient) -> None:
    topic = own_client.new_topic()
    own_client.produce(topic, [b"a"])

    def step_down() -> None:
        own_broker.node.broker.replicas.leader(topic, 0).is_leader = False

    on_loop(own_broker, step_down)
    assert ask(own_client, topic, -1)[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert ask(own_client, topic, -1, replica=-2)[2] == 1


def test_a_new_leader_says_nothing_until_its_high_watermark_is_there(
    own_broker: Broker, own_client: WireClient
) -> None:
    """KIP-207: offsets told to consumers never go backwards."""
    topic = own_client.new_topic()
    own_client.produce(topic, [b"a", b"b", b"c"])

    def elect() -> None:
        partition = own_broker.node.broker.replicas.leader(topic, 0)
        partition.leader_epoch = 1
        partition.log.assign_epoch(1)
        partition.log.update_high_watermark(1)

    on_loop(own_broker, elect)
    assert ask(own_client, topic, -1)[0] == ErrorCode.OFFSET_NOT_AVAILABLE
    assert ask(own_client, topic, -1, version=4)[0] == ErrorCode.LEADER_NOT_AVAILABLE
    assert ask(own_client, topic, FIRST_TIMESTAMP_MS)[2] == 0  # this one is certain
    assert ask(own_client, topic, FIRST_TIMESTAMP_MS + 2)[0] == ErrorCode.OFFSET_NOT_AVAILABLE
    assert ask(own_client, topic, -2)[2] == 0
    assert ask(own_client, topic, -1, replica=3)[2] == 3  # replicas see the log's end


@pytest.mark.parametrize("version", [2, 3, 4])
def test_where_an_epoch_ends(client: WireClient, topic: str, version: int) -> None:
    kind = m.OffsetForLeaderEpochRequest
    wanted = [
        kind.OffsetForLeaderPartition(0, -1, 0),
        kind.OffsetForLeaderPartition(0, 0, 0),
        kind.OffsetForLeaderPartition(0, 9, 0),
        kind.OffsetForLeaderPartition(0, -1, 7),
        kind.OffsetForLeaderPartition(8, -1, 0),
    ]
    answer = client.ask(kind(-2, [kind.OffsetForLeaderTopic(topic, wanted)]), version).topics[0].partitions
    assert [(each.error_code, each.leader_epoch, each.end_offset) for each in answer] == [
        (0, 0, 5),
        (0, 0, 5),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1),
        (0, -1, -1),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1),
    ]


def test_the_end_of_a_former_epoch_is_the_start_of_the_next(own_broker: Broker, own_client: WireClient) -> None:
    topic = own_client.new_topic()
    own_client.produce(topic, [b"a", b"b"])

    def next_epoch() -> None:
        partition = own_broker.node.broker.replicas.leader(topic, 0)
        partition.leader_epoch = 3
        partition.log.assign_epoch(3)

    on_loop(own_broker, next_epoch)
    own_client.produce(topic, [b"c"])
    kind = m.OffsetForLeaderEpochRequest
    wanted = [kind.OffsetForLeaderPartition(0, 3, epoch) for epoch in (0, 2, 3)]
    answer = own_client.ask(kind(-2, [kind.OffsetForLeaderTopic(topic, wanted)])).topics[0].partitions
    assert [(each.leader_epoch, each.end_offset) for each in answer] == [(0, 2), (0, 2), (3, 3)]
