"""What `moldau.testing` gives besides a broker: topics, records, restarts, faults, and fixtures that tests paste in."""

import asyncio
import os
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from moldau.testing import AsyncBroker, AsyncCluster, Broker, Cluster, Topic
from tests.support.clients import admin, fresh, wait_for

pytest_plugins = ["pytester"]


def partitions_of(broker: Broker | Cluster, topic: str) -> int:
    return len(admin(broker.bootstrap_servers).list_topics(topic, timeout=20).topics[topic].partitions)


# -- topics, records, restarts


def test_topics_are_there_from_the_start() -> None:
    compacted = Topic("prices", 2, config={"cleanup.policy": "compact"})
    with Broker(topics=["orders", compacted]) as broker:
        assert (partitions_of(broker, "orders"), partitions_of(broker, "prices")) == (1, 2)
        log = broker.node.broker.logs.get("prices", 0)
        assert log is not None
        assert log.config.compact
        broker.create_topics({"later": 3})
        assert partitions_of(broker, "later") == 3


def test_a_topic_without_a_number_has_as_many_partitions_as_the_setting_says() -> None:
    with Broker({"num.partitions": 3}, topics=["by-default", Topic("two", 2)]) as broker:
        broker.create_topics([Topic("as-well")])
        assert [partitions_of(broker, each) for each in ("by-default", "two", "as-well")] == [3, 2, 3]


def test_topics_that_cannot_be_are_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="topic bad name"), Broker(topics=["bad name"]):
        pass
    with pytest.raises(TypeError, match="list of names"):
        Broker(topics="orders")


def test_records_there_and_back(moldau_shared_broker: Broker, moldau_topic: str) -> None:
    broker = moldau_shared_broker
    places = broker.produce(moldau_topic, [b"one", "two", None], key=lambda value: b"k", headers={"h": b"1"})
    assert places == [(0, 0), (0, 1), (0, 2)]
    found = broker.read(moldau_topic)
    assert [(each.key, each.value, each.headers) for each in found] == [
        (b"k", b"one", (("h", b"1"),)),
        (b"k", b"two", (("h", b"1"),)),
        (b"k", None, (("h", b"1"),)),
    ]
    assert [each.value for each in broker.read(moldau_topic, 1)] == [b"one"]


def test_reading_what_is_not_there(moldau_shared_broker: Broker, moldau_topic: str) -> None:
    assert moldau_shared_broker.read(moldau_topic) == []
    with pytest.raises(TimeoutError, match="0 of 2 records"):
        moldau_shared_broker.read(moldau_topic, 2, seconds=0.3)
    moldau_shared_broker.produce(moldau_topic, [b"x"])
    client = admin(moldau_shared_broker.bootstrap_servers)
    for future in client.delete_records([TopicPartition(moldau_topic, 0, 1)]).values():
        future.result(20)
    assert moldau_shared_broker.read(moldau_topic) == []


@pytest.mark.parametrize("crash", [False, True])
def test_a_restart_keeps_port_and_data(crash: bool) -> None:
    with Broker(topics={"kept": 1}) as broker:
        address, folder = broker.bootstrap_servers, broker.data_dir
        broker.produce("kept", [b"before"])
        broker.restart(crash=crash)
        assert (broker.bootstrap_servers, broker.data_dir) == (address, folder)
        broker.produce("kept", [b"after"])
        assert [each.value for each in broker.read("kept")] == [b"before", b"after"]
    assert not os.path.exists(folder)


# -- faults


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture(autouse=True)
def all_is_well(request: pytest.FixtureRequest) -> None:
    if "broker" in request.fixturenames:
        request.getfixturevalue("broker").faults.clear()


def test_an_error_that_passes_is_retried_by_the_client(broker: Broker) -> None:
    topic = fresh("retried")
    broker.create_topics([topic])
    before = broker.faults.counts.get("fail", 0)
    broker.faults.fail("Produce", "NOT_ENOUGH_REPLICAS", times=2)
    assert broker.produce(topic, [b"x"]) == [(0, 0)]
    assert broker.faults.counts["fail"] - before == 2


def test_an_error_that_stays_reaches_the_caller(broker: Broker) -> None:
    topic = fresh("refused")
    broker.create_topics([topic])
    broker.faults.fail("Produce", "TOPIC_AUTHORIZATION_FAILED")
    with pytest.raises(KafkaException, match="uthorization"):
        broker.produce(topic, [b"x"], seconds=5)
    broker.faults.clear()
    assert broker.read(topic) == []


@pytest.mark.parametrize("api", ["Metadata", "ListOffsets", "OffsetCommit", "FindCoordinator", "JoinGroup"])
def test_other_apis_are_refused_in_their_own_form(broker: Broker, api: str) -> None:
    """The client understands the answer, and goes on when all is well again."""
    topic = fresh("read")
    broker.create_topics([topic])
    broker.produce(topic, [b"x"])
    error = {"FindCoordinator": "COORDINATOR_NOT_AVAILABLE", "OffsetCommit": "GROUP_AUTHORIZATION_FAILED"}.get(
        api, "COORDINATOR_LOAD_IN_PROGRESS" if api == "JoinGroup" else "LEADER_NOT_AVAILABLE"
    )
    broker.faults.fail(api, error, times=1)
    settings = {"group.id": fresh("g"), "auto.offset.reset": "earliest", **broker.client_settings()}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    assert [each.value() for each in consumer.consume(1, 20)] == [b"x"]
    try:
        consumer.commit(asynchronous=False)
    except KafkaException:  # told to the caller: OffsetCommit is not retried
        assert api == "OffsetCommit"
    consumer.close()


def test_a_fetch_that_fails_delays_only(broker: Broker) -> None:
    topic = fresh("fetched")
    broker.create_topics([topic])
    broker.produce(topic, [b"x"])
    broker.faults.fail("Fetch", "NOT_LEADER_OR_FOLLOWER", times=1)
    assert [each.value for each in broker.read(topic, 1)] == [b"x"]


def test_a_lost_answer_is_sent_again(broker: Broker) -> None:
    """Carried out, and the producer does not know: without idempotence the record is there twice."""
    topic = fresh("lost")
    broker.create_topics([topic])
    for is_idempotent, values in ((True, [b"x"]), (False, [b"x", b"y", b"y"])):
        broker.faults.disconnect("Produce", times=1, after=True)
        settings = {**broker.client_settings(), "enable.idempotence": is_idempotent, "linger.ms": 0}
        producer = Producer(settings)
        producer.produce(topic, b"x" if is_idempotent else b"y")
        assert producer.flush(20) == 0
        assert [each.value for each in broker.read(topic)] == values


def test_a_delay_keeps_the_order(broker: Broker) -> None:
    topic = fresh("slow")
    broker.create_topics([topic])
    broker.faults.delay("Produce", seconds=0.2, times=1)
    producer = Producer({**broker.client_settings(), "linger.ms": 0, "batch.num.messages": 1})
    for each in (b"1", b"2", b"3"):
        producer.produce(topic, each)
    assert producer.flush(20) == 0
    assert [each.value for each in broker.read(topic)] == [b"1", b"2", b"3"]


def test_a_frozen_broker_answers_nobody_and_then_everybody(broker: Broker) -> None:
    topic = fresh("frozen")
    broker.create_topics([topic])
    producer = Producer(broker.client_settings())
    producer.list_topics(topic, timeout=20)
    with broker.faults.paused():
        producer.produce(topic, b"x")
        assert producer.flush(0.3) == 1
    assert producer.flush(20) == 0
    assert [each.value for each in broker.read(topic)] == [b"x"]


def test_a_full_disk_and_what_helps() -> None:
    with Broker(topics={"filled": 1}) as broker:
        broker.produce("filled", [b"before"])
        broker.faults.fill_disk()
        with pytest.raises((KafkaException, TimeoutError)):
            broker.produce("filled", [b"lost"], seconds=1)
        broker.faults.free_disk()
        broker.restart(crash=True)
        broker.produce("filled", [b"after"])
        assert [each.value for each in broker.read("filled")] == [b"before", b"after"]


def test_what_does_not_exist_is_refused(broker: Broker) -> None:
    with pytest.raises(ValueError, match="there is no API 'Prodce'; there are "):
        broker.faults.fail("Prodce", "NOT_ENOUGH_REPLICAS")
    with pytest.raises(ValueError, match="there is no error"):
        broker.faults.fail("Produce", "NO_SUCH_ERROR")


# -- clusters


@pytest.mark.timeout(180)
def test_a_cut_off_leader_is_replaced_and_comes_back() -> None:
    settings = {"replica.lag.time.max.ms": 3000, "broker.session.timeout.ms": 3000}
    with Cluster(3, settings, topics=[Topic("orders", 1, config={"min.insync.replicas": 2})]) as cluster:
        cluster.produce("orders", [b"before"])

        def leader() -> int:
            images = [node.broker.image.partition("orders", 0) for node in cluster.inner.nodes.values()]
            return next(image.leader for image in images if image is not None)

        cut = leader()
        cluster.cut(cut)
        others = [node for number, node in cluster.inner.nodes.items() if number != cut]

        def new_leader() -> bool:
            images = [node.broker.image.partition("orders", 0) for node in others]
            return all(image is not None and image.leader not in (cut, -1) for image in images)

        wait_for(new_leader, "another leader")
        cluster.heal()

        def all_in_sync() -> bool:
            images = [node.broker.image.partition("orders", 0) for node in cluster.inner.nodes.values()]
            return all(image is not None and len(image.isr) == 3 for image in images)

        wait_for(all_in_sync, "everybody in sync")
        cluster.produce("orders", [b"after"])
        assert [each.value for each in cluster.read("orders")] == [b"before", b"after"]


# -- fixtures as people paste them


@pytest.mark.timeout(180)
def test_settings_by_marker_factory_and_cluster(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        pytestmark = pytest.mark.moldau(
            settings={"num.partitions": 2, "delete.topic.enable": False, "auto.create.topics.enable": False},
            topics=["orders", "payments"],
        )

        @pytest.mark.moldau(settings={"num.partitions": 3}, topics={"orders": 6})
        def test_marked(moldau_broker):
            config = moldau_broker.node.broker.config
            assert config.get_int("num.partitions") == 3
            assert not config.get_bool("delete.topic.enable")
            moldau_broker.produce("orders", [b"x"], partition=5)
            assert moldau_broker.read("orders")[0].partition == 5
            assert moldau_broker.produce("payments", ["x"], partition=2, seconds=5) == [(2, 0)]

        def test_made(moldau_broker_factory):
            first, second = moldau_broker_factory({"num.partitions": 4}), moldau_broker_factory(topics=["t"])
            assert first.bootstrap_servers != second.bootstrap_servers
            assert second.produce("t", ["x"]) == [(0, 0)]

        @pytest.mark.moldau(nodes=2, topics={"t": 1}, settings={})
        def test_cluster(moldau_cluster):
            assert len(moldau_cluster.bootstrap_servers.split(",")) == 2
            moldau_cluster.produce("t", [b"x"])

        @pytest.mark.parametrize("number", range(2))
        def test_topic(moldau_topic, moldau_shared_broker, number):
            assert moldau_topic.startswith("test_topic-")
            moldau_shared_broker.produce(moldau_topic, [str(number)])
            assert [each.value for each in moldau_shared_broker.read(moldau_topic)] == [str(number).encode()]

        @pytest.mark.moldau(partitions=3)
        @pytest.mark.xfail(raises=pytest.UsageError, strict=True)
        def test_wrong(moldau_broker):
            pass
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "--strict-markers")
    result.assert_outcomes(passed=5, xfailed=1)


def test_in_an_event_loop() -> None:
    async def run() -> None:
        async with AsyncBroker(topics={"t": 2}) as broker:
            await broker.restart()
            await broker.create_topics(["u"])
            assert {"t", "u"} <= set(broker.node.broker.image.topics)
            turns = 0

            async def count() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0.001)

            counting = asyncio.ensure_future(count())
            assert await broker.produce("u", [b"x"], key="k") == [(0, 0)]
            assert [(each.key, each.value) for each in await broker.read("u", 1)] == [(b"k", b"x")]
            counting.cancel()
            assert turns > 5, "the loop went on meanwhile"
        async with AsyncCluster(2, topics={"t": 1}) as cluster:
            await cluster.produce("t", [b"x"])
            assert len(await cluster.read("t")) == 1

    asyncio.run(run())
