"""Stock clients of four languages against Moldau: Java (both group protocols), Go (franz-go), Node (kafkajs), C (kcat).

What test_peers.py proves of these clients with Apache Kafka is proven here with Moldau; the tour of the admin client is
walked on both, and must find the same.
"""

import time
from collections.abc import Callable

import pytest

from tests.interop.apache_kafka import ApacheKafka
from tests.interop.peers.clients import Client, Record, java_client, kcat_consume, run_kcat
from tests.support.broker_process import BrokerProcess

FRESH = Callable[[str], str]
NOW_MS = time.time_ns() // 1_000_000
RECORDS = [
    Record("k1", "erster Wert: Über", (("trace", "abc"), ("empty", "")), NOW_MS + 1),
    Record(None, "no key", (), NOW_MS + 2),
    Record("k3", None, (), NOW_MS + 3),
    Record("k4", "x" * 5_000, (), NOW_MS + 4),
]


def visible(records: list[Record]) -> list[tuple[object, ...]]:
    return sorted((str(record.key), record.value or "", record.headers, record.timestamp) for record in records)


def test_round_trip_with_every_codec_of_the_client(client: Client, moldau: BrokerProcess, fresh_topic: FRESH) -> None:
    topic = fresh_topic(f"codecs-{client.name}")
    for codec in client.codecs:
        client.produce(moldau.bootstrap_servers, topic, RECORDS, codec=codec, idempotent="true")
    expected = RECORDS * len(client.codecs)
    consumed = client.consume(moldau.bootstrap_servers, topic, max_records=len(expected), group=topic)
    assert [item.offset for item in consumed] == list(range(len(expected)))
    as_records = [Record(item.key, item.value, item.headers, item.timestamp) for item in consumed]
    assert visible(as_records) == visible(expected)


def test_transactions_of_every_client_are_atomic(client: Client, moldau: BrokerProcess, fresh_topic: FRESH) -> None:
    topic = fresh_topic(f"transactions-{client.name}")
    bootstrap = moldau.bootstrap_servers
    client.produce(bootstrap, topic, [Record("a", "aborted")], transactional_id=topic, end="abort")
    client.produce(bootstrap, topic, [Record("c", "committed")], transactional_id=topic, end="commit")
    consumed = client.consume(bootstrap, topic, max_records=1, isolation="read_committed", group=topic)
    assert [(item.offset, item.value) for item in consumed] == [(2, "committed")]  # 0 aborted, 1 its marker
    # The Java client reads to the end: nothing else is there.
    committed = java_client().consume(bootstrap, topic, isolation="read_committed")
    assert [(item.offset, item.value) for item in committed] == [(2, "committed")]
    assert [item.value for item in java_client().consume(bootstrap, topic)] == ["aborted", "committed"]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_java_consumer_resumes_where_its_group_stopped(
    protocol: str, moldau: BrokerProcess, fresh_topic: FRESH
) -> None:
    topic = fresh_topic(f"java-{protocol}")
    bootstrap = moldau.bootstrap_servers
    java_client().produce(bootstrap, topic, RECORDS)
    first = java_client().consume(bootstrap, topic, 4, group=topic, protocol=protocol)
    assert [item.offset for item in first] == [0, 1, 2, 3]
    java_client().produce(bootstrap, topic, RECORDS[:2])
    second = java_client().consume(bootstrap, topic, 2, group=topic, protocol=protocol)
    assert [item.offset for item in second] == [4, 5]


def test_the_admin_tour_finds_what_it_finds_in_kafka(
    client: Client, moldau: BrokerProcess, apache_kafka: ApacheKafka, fresh_topic: FRESH
) -> None:
    theirs = client.admin(apache_kafka.bootstrap_servers, fresh_topic(f"tour-{client.name}"))
    ours = client.admin(moldau.bootstrap_servers, fresh_topic(f"tour-{client.name}"))
    assert ours == theirs
    assert {step: line["error"] for step, line in ours.items() if "error" in line} == {}


def test_kcat_round_trip(moldau: BrokerProcess, fresh_topic: FRESH) -> None:
    topic = fresh_topic("kcat")
    bootstrap = moldau.bootstrap_servers
    run_kcat("-b", bootstrap, "-P", "-t", topic, "-K", ":", "-z", "lz4", "-H", "h=1", stdin="a:one\nb:two\n")
    consumed = kcat_consume(bootstrap, topic)
    assert [(item["key"], item["payload"], item["headers"]) for item in consumed] == [
        ("a", "one", ["h", "1"]),
        ("b", "two", ["h", "1"]),
    ]
    assert topic in run_kcat("-b", bootstrap, "-L").stdout
    asked = run_kcat("-b", bootstrap, "-Q", "-t", f"{topic}:0:-1").stdout
    assert asked.split() == [topic, "[0]", "offset", "2"]
    grouped = run_kcat("-b", bootstrap, "-G", topic, "-o", "beginning", "-c", "2", "-q", topic).stdout
    assert grouped.split() == ["one", "two"]
