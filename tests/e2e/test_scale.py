"""Many connections and many topics on one node. Times and memory are printed; `pytest -s` shows them."""

import resource
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer

from moldau.wire import messages as m
from tests.e2e.raw import Raw
from tests.support.broker_process import BrokerProcess, resident_bytes
from tests.support.clients import CONFLUENT, Deliveries, Sent, admin, create_topic, quiet

MIB = 1 << 20
CONNECTIONS = 1_000
TOPICS = 10_000


@pytest.fixture(autouse=True)
def enough_descriptors() -> Iterator[None]:
    """The usual soft limit of 1,024 would be the test's, not the broker's; the broker process inherits it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4_096 if hard == resource.RLIM_INFINITY else min(4_096, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_thousand_idle_connections(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker, ExitStack() as stack:
        address = broker.bootstrap_servers
        topic = create_topic(address, "busy")
        before = resident_bytes(broker.process.pid)
        started = time.perf_counter()
        crowd = []
        for _ in range(CONNECTIONS):
            crowd.append(stack.enter_context(Raw(address)))
            # One after the other: beyond `socket.listen.backlog.size` the kernel makes newcomers wait a second.
            crowd[-1].ask(m.ApiVersionsRequest("raw", "1"))
        seconds = time.perf_counter() - started
        grown = resident_bytes(broker.process.pid) - before
        CONFLUENT.send(address, topic, [Sent(b"%d" % n) for n in range(2_000)], "none")
        assert len(CONFLUENT.read(address, topic, 2_000, 0)) == 2_000
        for raw in crowd:
            assert raw.ask(m.MetadataRequest(topics=[])).brokers
        print(f"{CONNECTIONS} connections in {seconds:.2f} s, {grown / CONNECTIONS / 1024:.1f} KiB each")
        assert grown < CONNECTIONS * 32 * 1024
        assert broker.stop() == 0


@pytest.mark.timeout(240)
def test_ten_thousand_topics(tmp_path: Path) -> None:
    kind = m.CreateTopicsRequest
    names = [f"topic-{number:05}" for number in range(TOPICS)]
    with BrokerProcess(tmp_path / "data") as broker:
        address = broker.bootstrap_servers
        started = time.perf_counter()
        with Raw(address, 50) as raw:
            for first in range(0, TOPICS, 2_500):
                topics = [kind.CreatableTopic(name, 1, 1) for name in names[first : first + 2_500]]
                answer = raw.ask(kind(topics=topics, timeout_ms=50_000))
                assert all(topic.error_code == 0 for topic in answer.topics)
            created = time.perf_counter()
            answer = raw.ask(m.MetadataRequest(topics=None))
            described = time.perf_counter()
            assert {topic.name for topic in answer.topics} == set(names)
        assert len(admin(address).list_topics(timeout=20).topics) == TOPICS
        print(
            f"{TOPICS} topics created in {created - started:.1f} s, described in {described - created:.2f} s, "
            f"{resident_bytes(broker.process.pid) / MIB:.0f} MiB"
        )
        send_to_all(address, names[:: TOPICS // 500])
        broker.kill()  # the harder case: no marker, every log is looked at
        killed = time.perf_counter()
        broker.start()
        print(
            f"killed, and ready again after {time.perf_counter() - killed:.1f} s, "
            f"{resident_bytes(broker.process.pid) / MIB:.0f} MiB"
        )
        assert len(admin(address).list_topics(timeout=20).topics) == TOPICS
        for name in (names[0], names[TOPICS // 2]):
            assert CONFLUENT.read(address, name, 1, 0)[0].value == name.encode()


def send_to_all(address: str, topics: list[str]) -> None:
    producer = Producer(quiet(address))
    report = Deliveries()
    for name in topics:
        producer.produce(name, name.encode(), on_delivery=report)
    assert producer.flush(30) == 0
    assert not report.errors
