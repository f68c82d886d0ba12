"""Folding records: every kind of record, transactions, snapshots, what changed, and what it costs."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.controller import EMPTY_IMAGE, MetadataCorrupt, apply, diff, snapshot_records
from moldau.controller.features import METADATA_VERSION
from moldau.controller.image import ConfigResource, PartitionImage, ResourceType, ScramKey
from moldau.seams.randomness import SeededRandom
from moldau.wire import messages as m
from moldau.wire.message import Message
from moldau.wire.primitives import ZERO_UUID

TOPIC_ID = b"t" * 16


def _topic(name: str = "orders", topic_id: bytes = TOPIC_ID) -> m.TopicRecord:
    return m.TopicRecord(name, topic_id)


def _partition(number: int = 0, topic_id: bytes = TOPIC_ID) -> m.PartitionRecord:
    return m.PartitionRecord(
        number,
        topic_id,
        [1, 2],
        [1, 2],
        leader=1,
        leader_epoch=0,
        partition_epoch=0,
        directories=[b"a" * 16, b"b" * 16],
    )


def _broker(broker_id: int = 1, epoch: int = 5) -> m.RegisterBrokerRecord:
    return m.RegisterBrokerRecord(
        broker_id,
        incarnation_id=b"i" * 16,
        broker_epoch=epoch,
        end_points=[m.RegisterBrokerRecord.BrokerEndpoint("PLAINTEXT", "localhost", 9092, 0)],
        features=[m.RegisterBrokerRecord.BrokerFeature(METADATA_VERSION, 7, 30)],
        rack="r1",
        log_dirs=[b"a" * 16],
    )


EVERY_KIND: list[Message] = [
    m.FeatureLevelRecord(METADATA_VERSION, 30),
    m.FeatureLevelRecord("group.version", 1),
    _broker(1),
    _broker(2),
    m.BrokerRegistrationChangeRecord(1, 5, fenced=-1),
    m.UnfenceBrokerRecord(2, 5),
    m.FenceBrokerRecord(2, 5),
    m.RegisterControllerRecord(
        9,
        b"c" * 16,
        False,
        [m.RegisterControllerRecord.ControllerEndpoint("CONTROLLER", "localhost", 9093, 0)],
        [m.RegisterControllerRecord.ControllerFeature(METADATA_VERSION, 7, 30)],
    ),
    _topic(),
    m.ConfigRecord(ResourceType.TOPIC, "orders", "retention.ms", "1000"),
    _partition(0),
    _partition(1),
    m.PartitionChangeRecord(1, TOPIC_ID, isr=[1], leader=1, eligible_leader_replicas=[2], last_known_elr=[]),
    m.ConfigRecord(ResourceType.BROKER, "", "min.insync.replicas", "2"),
    m.ClientQuotaRecord([m.ClientQuotaRecord.EntityData("user", None)], "producer_byte_rate", 1024.0, False),
    m.ProducerIdsRecord(1, 5, 2000),
    m.AccessControlEntryRecord(b"x" * 16, 2, "orders", 3, "User:ann", "*", 3, 3),
    m.AccessControlEntryRecord(b"y" * 16, 2, "gone", 3, "User:ann", "*", 3, 3),
    m.RemoveAccessControlEntryRecord(b"y" * 16),
    m.UserScramCredentialRecord("ann", 1, b"salt", b"stored", b"server", 4096),
    m.UserScramCredentialRecord("bob", 1, b"salt", b"stored", b"server", 4096),
    m.RemoveUserScramCredentialRecord("bob", 1),
    m.DelegationTokenRecord("User:ann", "User:ann", ["User:bob"], 1, 2, 3, "token"),
    m.DelegationTokenRecord("User:ann", "User:ann", [], 1, 2, 3, "gone"),
    m.RemoveDelegationTokenRecord("gone"),
    m.NoOpRecord(),
    m.ZkMigrationStateRecord(0),
]


def test_every_kind_of_record_ends_in_the_image() -> None:
    image = apply(EMPTY_IMAGE, EVERY_KIND, offset=41, epoch=3)
    assert (image.offset, image.epoch) == (41, 3)
    assert dict(image.features) == {METADATA_VERSION: 30, "group.version": 1}
    assert not image.brokers[1].fenced
    assert image.brokers[2].fenced
    assert image.brokers[1].endpoints[0].port == 9092
    assert image.brokers[1].registration_offset == 41
    assert image.controllers[9].endpoints[0].name == "CONTROLLER"
    assert image.topics["orders"].partitions[0] == PartitionImage(
        (1, 2), (b"a" * 16, b"b" * 16), (1, 2), (), (), 1, 0, 0, 0, (), ()
    )
    changed = image.topics["orders"].partitions[1]
    assert (changed.isr, changed.elr, changed.leader_epoch, changed.partition_epoch) == ((1,), (2,), 1, 1)
    assert image.config(ResourceType.TOPIC, "orders") == {"retention.ms": "1000"}
    assert dict(image.quotas) == {(("user", None),): {"producer_byte_rate": 1024.0}}
    assert image.next_producer_id == 2000
    assert list(image.acls) == [b"x" * 16]
    assert list(image.scram) == [ScramKey("ann", 1)]
    assert list(image.delegation_tokens) == ["token"]
    assert image.delegation_tokens["token"].renewers == ("User:bob",)


def test_record_by_record_or_all_at_once_is_the_same() -> None:
    at_once = apply(EMPTY_IMAGE, EVERY_KIND)
    one_by_one = EMPTY_IMAGE
    for record in EVERY_KIND:
        one_by_one = apply(one_by_one, [record])
    assert one_by_one == at_once


def test_a_snapshot_holds_all_of_the_image() -> None:
    image = apply(EMPTY_IMAGE, EVERY_KIND)
    records = list(snapshot_records(image))
    assert apply(EMPTY_IMAGE, records) == image
    assert isinstance(records[0], m.FeatureLevelRecord)
    assert records[0].name == METADATA_VERSION


def test_an_image_never_changes() -> None:
    image = apply(EMPTY_IMAGE, EVERY_KIND)
    copy = apply(EMPTY_IMAGE, EVERY_KIND)
    apply(image, [m.RemoveTopicRecord(TOPIC_ID), m.UnregisterBrokerRecord(1, 5), m.ConfigRecord(4, "", "a", "b")])
    assert image == copy


@pytest.mark.parametrize(
    "record",
    [
        _topic(),
        _topic("other"),
        _topic("orders", b"o" * 16),
        _partition(0, b"?" * 16),
        m.PartitionChangeRecord(7, TOPIC_ID),
        m.PartitionChangeRecord(0, b"?" * 16),
        m.RemoveTopicRecord(b"?" * 16),
        m.UnregisterBrokerRecord(7, 5),
        m.UnregisterBrokerRecord(1, 6),
        m.FenceBrokerRecord(1, 4),
        m.BrokerRegistrationChangeRecord(9, 5),
        m.RemoveAccessControlEntryRecord(b"?" * 16),
        m.RemoveUserScramCredentialRecord("nobody", 1),
        m.ProducerIdsRecord(1, 5, 2000),
        m.ClearElrRecord("unknown"),
        m.EndTransactionRecord(),
        m.AbortTransactionRecord(),
        m.VoteRequest(),
    ],
    ids=lambda record: str(record)[:60],
)
def test_a_record_that_cannot_follow_is_refused(record: Message) -> None:
    image = apply(EMPTY_IMAGE, EVERY_KIND)
    with pytest.raises(MetadataCorrupt):
        apply(image, [record])


def test_an_old_partition_record_has_no_directories() -> None:
    image = apply(EMPTY_IMAGE, [_topic(), m.PartitionRecord(0, TOPIC_ID, [1, 2], [1], leader=1)])
    assert image.topics["orders"].partitions[0].directories == (ZERO_UUID, ZERO_UUID)


def test_a_transaction_takes_effect_at_its_end() -> None:
    begun = apply(EMPTY_IMAGE, [m.BeginTransactionRecord("Bootstrap records"), _topic()], offset=1)
    assert begun.in_transaction
    assert not begun.topics
    more = apply(begun, [_partition()], offset=2)
    assert not more.topics
    with pytest.raises(ValueError, match="transaction is open"):
        list(snapshot_records(more))
    ended = apply(more, [m.EndTransactionRecord(), m.FeatureLevelRecord("group.version", 1)], offset=4)
    assert not ended.in_transaction
    assert list(ended.topics["orders"].partitions) == [0]
    assert ended.features["group.version"] == 1


def test_an_aborted_transaction_never_happened() -> None:
    begun = apply(EMPTY_IMAGE, [m.FeatureLevelRecord("a", 1), m.BeginTransactionRecord(), _topic()])
    aborted = apply(begun, [m.AbortTransactionRecord("Controller failover")])
    assert not aborted.in_transaction
    assert not aborted.topics
    assert dict(aborted.features) == {"a": 1}
    assert apply(aborted, [_topic()]).topics


def test_transactions_do_not_nest() -> None:
    begun = apply(EMPTY_IMAGE, [m.BeginTransactionRecord()])
    with pytest.raises(MetadataCorrupt, match="within another"):
        apply(begun, [m.BeginTransactionRecord()])


def test_clearing_the_elr_of_one_topic_or_of_all() -> None:
    other = b"o" * 16
    change = {"eligible_leader_replicas": [2], "last_known_elr": [1], "isr": [1]}
    image = apply(
        EMPTY_IMAGE,
        [
            _topic(),
            _partition(),
            m.PartitionChangeRecord(0, TOPIC_ID, **change),  # type: ignore[arg-type]  # three lists of ints
            _topic("other", other),
            _partition(0, other),
            m.PartitionChangeRecord(0, other, **change),  # type: ignore[arg-type]  # three lists of ints
        ],
    )
    one = apply(image, [m.ClearElrRecord("other")])
    assert one.topics["orders"].partitions[0].elr == (2,)
    assert one.topics["other"].partitions[0].elr == ()
    assert one.topics["other"].partitions[0].last_known_elr == ()
    everything = apply(image, [m.ClearElrRecord("")])
    assert all(not partition.elr for _, _, partition in everything.partitions())


def test_the_difference_says_what_to_react_to() -> None:
    before = apply(EMPTY_IMAGE, EVERY_KIND)
    after = apply(
        before,
        [
            m.PartitionChangeRecord(0, TOPIC_ID, leader=2),
            m.BrokerRegistrationChangeRecord(1, 5, fenced=1),
            m.ConfigRecord(ResourceType.TOPIC, "orders", "retention.ms", None),
            m.FeatureLevelRecord("group.version", 0),
            m.ClientQuotaRecord([m.ClientQuotaRecord.EntityData("user", None)], "producer_byte_rate", 0.0, True),
            m.RemoveAccessControlEntryRecord(b"x" * 16),
            m.ProducerIdsRecord(1, 5, 3000),
        ],
    )
    delta = diff(before, after)
    (partition,) = delta.partitions
    assert (partition.topic.name, partition.partition_id) == ("orders", 0)
    assert partition.before is not None
    assert (partition.before.leader, partition.after.leader) == (1, 2)
    (broker,) = delta.brokers
    assert broker.before is not None
    assert broker.after is not None
    assert (broker.key, broker.before.fenced, broker.after.fenced) == (1, False, True)
    assert delta.configs == (ConfigResource(ResourceType.TOPIC, "orders"),)
    assert [(change.key, change.before, change.after) for change in delta.features] == [("group.version", 1, None)]
    assert delta.quotas == ((("user", None),),)
    assert delta.acls == (b"x" * 16,)
    assert delta.producer_ids
    assert delta.topics_created == delta.topics_deleted == ()
    assert diff(after, after).is_empty
    assert not delta.is_empty


_NAMES = st.sampled_from(["a", "b", "a.b", "a_b", "c"])


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 6), _NAMES, st.integers(0, 3)), max_size=40))
def test_folding_in_any_batches_equals_a_snapshot(steps: list[tuple[int, str, int]]) -> None:
    """Whatever happened, in whatever batches it was read: snapshot and back is the same image, diff finds the rest."""
    source = SeededRandom(len(steps))
    image = EMPTY_IMAGE
    batch: list[Message] = []
    start = image
    for action, name, number in steps:
        current = apply(image, batch)
        topic = current.topics.get(name)
        if action <= 1 and topic is None:
            batch += [_topic(name, source.uuid()), m.ConfigRecord(ResourceType.TOPIC, name, "k", str(number))]
        elif action == 2 and topic is not None:
            batch.append(m.RemoveTopicRecord(topic.topic_id))
        elif action == 3 and topic is not None:
            batch.append(_partition(number, topic.topic_id))
        elif action == 4 and topic is not None and number in topic.partitions:
            batch.append(m.PartitionChangeRecord(number, topic.topic_id, isr=[2], leader=2))
        elif action == 5:
            batch.append(m.ConfigRecord(ResourceType.BROKER, name, "k", None if number == 0 else str(number)))
        else:
            batch.append(m.RegisterBrokerRecord(number, broker_epoch=number))
        if number == 0:
            image = apply(image, batch)
            batch = []
    image = apply(image, batch)
    assert apply(EMPTY_IMAGE, snapshot_records(image)) == image
    delta = diff(start, image)
    assert {topic.name for topic in delta.topics_created} == set(image.topics)
    assert {change.key for change in delta.brokers} == set(image.brokers)
    assert set(image.colliding_names.get("a_b", ())) == {n for n in ("a.b", "a_b") if n in image.topics}


def test_ten_thousand_topics_one_after_another_are_cheap() -> None:
    random = SeededRandom(1)
    image = EMPTY_IMAGE
    started = time.process_time()
    for number in range(10_000):
        topic_id = random.uuid()
        name = f"topic.{number}"
        after = apply(image, [_topic(name, topic_id), m.ConfigRecord(2, name, "a", "1"), _partition(0, topic_id)])
        assert len(diff(image, after).topics_created) == 1
        image = after
    assert len(image.topics) == 10_000
    assert time.process_time() - started < 8  # about 0.9 s on an idle machine
