"""`/metrics`, `/live`, `/ready` and `/status` of a broker under a client: valid for Prometheus, and true."""

import asyncio
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from moldau.broker.config import InvalidConfig
from moldau.broker.config.http import http_address
from moldau.broker.metrics.partitions import NamedTopics
from moldau.broker.request_times import SAMPLED_MASK
from moldau.testing import Broker, Security, Topic
from moldau.testing.settings import Settings
from tests.broker.quotas.test_enforcement import limit, produce
from tests.broker.requests.handlers.wire_client import WireClient
from tests.support.clients import admin, create_topic, wait_for
from tests.support.exposition import read_openmetrics, read_prometheus

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings: Settings = {
        "moldau.http.listener": "0",
        "offsets.topic.num.partitions": 1,
        "auto.create.topics.enable": False,
    }
    with Broker(settings) as broker:
        yield broker


def get(broker: Broker, path: str, accept: str = "") -> tuple[int, str]:
    address = broker.node.http_address
    assert address is not None
    request = urllib.request.Request(f"http://{address[0]}:{address[1]}{path}", headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def scrape(broker: Broker) -> Samples:
    _, text = get(broker, "/metrics", "application/openmetrics-text; version=1.0.0")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in read_openmetrics(text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: Any) -> float:
    return samples[name, frozenset((key, str(each)) for key, each in labels.items())]


def send(broker: Broker, topic: str, values: list[bytes], **settings: Any) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, **settings})
    for each in values:
        producer.produce(topic, each)
    assert producer.flush(20) == 0


def commit(broker: Broker, group: str, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def test_both_formats_are_valid(broker: Broker) -> None:
    _, older = get(broker, "/metrics")
    _, openmetrics = get(broker, "/metrics", "application/openmetrics-text")
    names = {family.name for family in read_prometheus(older)}
    assert {"kafka_brokers", "kafka_server_replicamanager_underreplicatedpartitions"} <= names
    assert len(names) == len(list(read_openmetrics(openmetrics)))


def test_traffic_of_a_topic(broker: Broker) -> None:
    topic = create_topic(broker.bootstrap_servers, "counted", 1)
    before = scrape(broker)
    send(broker, topic, [b"x" * 100] * 20)
    after = scrape(broker)
    prefix = "kafka_server_brokertopicmetrics"
    assert value(after, f"{prefix}_messagesin_total", topic=topic) == 20
    assert value(after, f"{prefix}_messagesin_total") - value(before, f"{prefix}_messagesin_total") == 20
    assert value(after, f"{prefix}_bytesin_total", topic=topic) > 2000
    assert value(after, f"{prefix}_bytesout_total", topic=topic) == 0
    assert value(after, "kafka_topic_partition_current_offset", topic=topic, partition=0) == 20
    assert value(after, "kafka_log_log_size", topic=topic, partition=0) > 2000
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "unused"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert len(consumer.consume(20, 20)) == 20
    consumer.close()
    assert value(scrape(broker), f"{prefix}_bytesout_total", topic=topic) > 2000


def test_requests_by_topic_and_how_idle_it_is(broker: Broker) -> None:
    """Dashboards for Kafka ask for these."""
    topic = "asked-of"
    broker.create_topics([Topic(topic, config={"cleanup.policy": "compact"})])
    prefix = "kafka_server_brokertopicmetrics"

    def counts() -> list[float]:
        names = ("totalproduce", "failedproduce", "totalfetch", "failedfetch")
        samples = scrape(broker)
        return [value(samples, f"{prefix}_{name}requests_total", topic=topic) for name in names]

    assert counts() == [0, 0, 0, 0]
    broker.produce(topic, [b"x"], key="k")
    assert counts() == [1, 0, 0, 0]
    with pytest.raises(KafkaException):
        broker.produce(topic, [b"no key"])
    assert counts()[:2] == [2, 1]
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "unused"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert len(consumer.consume(1, 20)) == 1
    consumer.close()
    assert counts()[2] >= 1
    assert counts()[3] == 0
    idle = value(scrape(broker), "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent")
    assert 0 <= idle <= 1
    assert value(scrape(broker), "kafka_network_socketserver_networkprocessoravgidle_percent") <= 1


def test_requests_are_counted_and_timed(broker: Broker) -> None:
    topic = create_topic(broker.bootstrap_servers, "asked", 1)
    labels = {"request": "Produce", "listener_kind": "broker"}
    name = "kafka_network_requestmetrics_requests_total"
    before = scrape(broker).get((name, frozenset(labels.items())), 0)
    for _ in range(40):
        send(broker, topic, [b"one"])
    after = scrape(broker)
    assert value(after, name, **labels) - before == 40
    timed = value(after, "moldau_request_seconds_count", **labels)
    # Of those answered at once, one stands for many.
    assert abs(timed - value(after, name, **labels)) <= SAMPLED_MASK + 1
    assert value(after, "moldau_request_seconds_sum", **labels) > 0
    assert value(after, "kafka_network_requestmetrics_localtimems_sum", **labels) > 0


def test_who_was_silenced_for_a_quota(broker: Broker) -> None:
    topic = create_topic(broker.bootstrap_servers, "limited", 1)
    assert value(scrape(broker), "moldau_quota_throttles_total", quota="Produce") == 0
    with (
        WireClient(broker.bootstrap_servers, "admin") as admin,
        WireClient(broker.bootstrap_servers, "greedy") as greedy,
    ):
        limit(admin, "greedy", "producer_byte_rate", 10_000)
        throttled_ms = produce(greedy, topic, 120_000).throttle_time_ms
        limit(admin, "greedy", "producer_byte_rate", None)
    after = scrape(broker)
    assert value(after, "moldau_quota_throttles_total", quota="Produce") == 1
    assert value(after, "moldau_quota_throttled_seconds_total", quota="Produce") * 1000 + 1 >= throttled_ms > 0
    assert value(after, "moldau_quota_entities", quota="Produce") == 1
    assert value(after, "moldau_quota_throttles_total", quota="Fetch") == 0


def test_a_fetch_that_waits_is_told_as_waiting(broker: Broker) -> None:
    topic = create_topic(broker.bootstrap_servers, "waited-for", 1)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "unused", "fetch.wait.max.ms": 50})
    consumer.assign([TopicPartition(topic, 0, 0)])
    labels = {"request": "Fetch", "listener_kind": "broker"}

    def remote_ms() -> float:
        consumer.poll(0.1)
        return scrape(broker).get(("kafka_network_requestmetrics_remotetimems_sum", frozenset(labels.items())), 0.0)

    start = remote_ms()
    wait_for(lambda: remote_ms() >= start + 100, "fetches that waited")
    consumer.close()
    assert value(scrape(broker), "moldau_purgatory_expired_total", delayedoperation="Fetch") > 0


def test_errors_by_code(broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "message.timeout.ms": 1000})
    producer.produce("there-is-no-such-topic", b"x")
    producer.flush(20)
    labels = {"request": "Metadata", "listener_kind": "broker", "error": "UNKNOWN_TOPIC_OR_PARTITION"}
    assert value(scrape(broker), "kafka_network_requestmetrics_errors_total", **labels) > 0


def test_lag_in_records_and_seconds(broker: Broker) -> None:
    topic = create_topic(broker.bootstrap_servers, "read-late", 1)
    send(broker, topic, [b"%d" % each for each in range(10)], **{"linger.ms": 0, "batch.num.messages": 1})
    commit(broker, "late", topic, 7)
    place = {"consumergroup": "late", "topic": topic, "partition": 0}

    def seconds() -> float:
        return value(scrape(broker), "kafka_consumergroup_lag_seconds", **place)

    samples = scrape(broker)
    assert value(samples, "kafka_consumergroup_current_offset", **place) == 7
    assert value(samples, "kafka_consumergroup_lag", **place) == 3
    assert value(samples, "kafka_consumergroup_lag_sum", consumergroup="late", topic=topic) == 3
    first = seconds()
    wait_for(lambda: seconds() >= first + 0.2, "the record to age")
    commit(broker, "late", topic, 10)
    assert value(scrape(broker), "kafka_consumergroup_lag", **place) == 0
    assert seconds() == 0


def test_a_partition_nobody_has_committed_is_told(broker: Broker) -> None:
    """As kafka_exporter tells it. Left out, a sum over a topic that is read in part would look as if all of it were."""
    topic = create_topic(broker.bootstrap_servers, "read-in-part", 3)
    commit(broker, "partly", topic, 0)
    samples = scrape(broker)
    for partition, offset in enumerate((0, -1, -1)):
        place = {"consumergroup": "partly", "topic": topic, "partition": partition}
        assert value(samples, "kafka_consumergroup_current_offset", **place) == offset
        assert value(samples, "kafka_consumergroup_lag", **place) == offset
    told = {
        dict(labels)["partition"]
        for name, labels in samples
        if name == "kafka_consumergroup_lag_seconds" and ("topic", topic) in labels
    }
    assert told == {"0"}
    assert value(samples, "kafka_consumergroup_current_offset_sum", consumergroup="partly", topic=topic) == 0
    assert value(samples, "kafka_consumergroup_lag_sum", consumergroup="partly", topic=topic) == 0


def test_the_process_is_told_as_other_python_programs_are(broker: Broker) -> None:
    samples = scrape(broker)
    assert value(samples, "process_open_fds") == pytest.approx(len(os.listdir("/dev/fd")), abs=5)
    assert 0 < time.time() - value(samples, "process_start_time_seconds") < 24 * 3600
    assert value(samples, "python_gc_collections_total", generation=0) > 0


def test_a_partition_says_how_many_replicas_it_can_lose(broker: Broker) -> None:
    topic = create_topic(broker.bootstrap_servers, "in-sync", 1)
    for name in ("underreplicated", "underminisr", "atminisr"):
        assert value(scrape(broker), f"kafka_cluster_partition_{name}", topic=topic, partition=0) == 0


def test_series_are_bounded() -> None:
    limits: Settings = {"moldau.http.listener": "0", "moldau.metrics.topics.max": 4, "moldau.metrics.groups.max": 2}
    with Broker(limits) as broker:
        _see_bounds(broker)


def _see_bounds(broker: Broker) -> None:
    topics = [create_topic(broker.bootstrap_servers, f"one-of-many-{each}", 1) for each in range(6)]
    for topic in topics:
        send(broker, topic, [b"x"])
    for each in range(4):
        commit(broker, f"group-{each}", topics[0], 1)
    samples = scrape(broker)
    named = {dict(labels)["topic"] for name, labels in samples if name.endswith("messagesin_total") and labels}
    assert len(named) == 5
    assert "_other" in named
    total = value(samples, "kafka_server_brokertopicmetrics_messagesin_total")
    by_topic = [value(samples, "kafka_server_brokertopicmetrics_messagesin_total", topic=each) for each in named]
    assert sum(by_topic) == total
    groups = {dict(labels)["consumergroup"] for name, labels in samples if name == "kafka_consumergroup_members"}
    assert len(groups) == 2


def test_what_topics_have_together_does_not_fall_when_they_go() -> None:
    """Deleted, deleted and made again, or given series of their own: for Prometheus a fall is a restart."""
    name = "kafka_server_brokertopicmetrics_messagesin_total"
    limits: Settings = {"moldau.http.listener": "0", "moldau.metrics.topics.max": 1}
    with Broker(limits, topics=["named", "a", "b"]) as broker:

        def others() -> float:
            return value(scrape(broker), name, topic="_other")

        def delete(topic: str) -> None:
            client = admin(broker.bootstrap_servers)
            client.delete_topics([topic])[topic].result(20)
            wait_for(lambda: broker.node.broker.replicas.get(topic, 0) is None, "it is gone")

        for topic, count in (("named", 100), ("a", 20), ("b", 3)):
            broker.produce(topic, [b"x"] * count)
        assert value(scrape(broker), name, topic="named") == 100
        assert others() == 23
        delete("b")
        assert others() == 23
        broker.create_topics(["b"])
        broker.produce("b", [b"x"])
        assert others() == 24
        delete("a")
        broker.create_topics(["a"])
        broker.produce("a", [b"x"] * 7)
        assert others() == 31
        delete("named")
        assert others() == 31, "one of them is named now"


def test_a_topic_keeps_its_place() -> None:
    named = NamedTopics()
    assert named.choose(["b", "c"], 2) == {"b", "c"}
    assert named.choose(["a", "b", "c"], 2) == {"b", "c"}
    assert named.choose(["a", "c"], 2) == {"a", "c"}


def test_live_ready_and_status(broker: Broker) -> None:
    assert get(broker, "/live") == (200, "ok\n")
    assert get(broker, "/ready") == (200, "ok\n")
    code, text = get(broker, "/status")
    told = json.loads(text)
    assert code == 200
    assert (told["ready"], told["phase"], told["node_id"]) == (True, "serving", 1)
    assert told["cluster_id"] == broker.node.broker.cluster_id
    assert told["listeners"]["PLAINTEXT"] == broker.bootstrap_servers
    assert get(broker, "/")[0] == 404


def test_many_who_scrape_leave_room_for_who_asks_whether_it_lives(broker: Broker) -> None:
    """A scrape that takes long, and twenty who want one."""
    watching = broker.node._watching
    assert watching is not None
    lock = watching._one_at_a_time
    loop = broker.node.broker.loop
    asyncio.run_coroutine_threadsafe(lock.acquire(), loop).result(10)
    with ThreadPoolExecutor(20) as pool:
        try:
            waiting = [pool.submit(get, broker, "/metrics") for _ in range(20)]
            wait_for(lambda: sum(each.done() for each in waiting) == 16, "those who are too many were told so")
            assert get(broker, "/live") == (200, "ok\n")
        finally:
            loop.call_soon_threadsafe(lock.release)
        assert sorted(each.result()[0] for each in waiting) == [200] * 4 + [503] * 16


def test_a_node_that_starts_or_failed_is_not_ready(broker: Broker) -> None:
    watching = broker.node._watching
    assert watching is not None
    watching.phase = "opening and recovering logs"
    try:
        assert get(broker, "/ready") == (503, "opening and recovering logs\n")
        assert get(broker, "/live") == (200, "ok\n")
        assert json.loads(get(broker, "/status")[1])["ready"] is False
        assert value(scrape(broker), "moldau_ready") == 0
        watching.failure = "the disk is gone"
        assert get(broker, "/live") == (503, "the disk is gone\n")
    finally:
        watching.phase, watching.failure = "serving", None


def test_where_it_listens() -> None:
    assert http_address("") is None
    assert http_address("9404") == ("127.0.0.1", 9404)
    assert http_address("0.0.0.0:9404") == ("0.0.0.0", 9404)
    assert http_address("[::1]:9404") == ("::1", 9404)
    for wrong in ("host", "host:", "host:x", "host:99999"):
        with pytest.raises(InvalidConfig, match="HOST:PORT"):
            http_address(wrong)


def test_nothing_listens_unless_asked_to(moldau_shared_broker: Broker) -> None:
    assert moldau_shared_broker.node.http_address is None


def test_who_logged_in_and_who_did_not() -> None:
    """Also by SASL without TLS: somebody who guesses passwords is seen by the counter Kafka has for it."""
    prefix = "kafka_server_socketservermetrics"
    security = Security(protocol="SASL_PLAINTEXT", mechanism="PLAIN", users={"alice": "secret"})
    with Broker({"moldau.http.listener": "0"}, security=security) as broker:
        labels = {"listener": "SASL_PLAINTEXT"}
        before = value(scrape(broker), f"{prefix}_successful_authentication_total", **labels)
        assert value(scrape(broker), f"{prefix}_failed_authentication_total", **labels) == 0
        assert AdminClient(broker.client_settings("alice")).list_topics(timeout=20).brokers
        assert value(scrape(broker), f"{prefix}_successful_authentication_total", **labels) > before
        stranger = AdminClient(broker.client_settings("alice") | {"sasl.password": "guessed", "log_level": 0})
        with pytest.raises(KafkaException):
            stranger.list_topics(timeout=2)
        assert value(scrape(broker), f"{prefix}_failed_authentication_total", **labels) >= 1
        assert value(scrape(broker), f"{prefix}_successful_reauthentication_total", **labels) == 0
