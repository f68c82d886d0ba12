"""What the alert rules and the dashboard look at moves when it should: a number that never moves is no alarm."""

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from moldau.testing import Broker, Topic
from moldau.testing.settings import Settings
from tests.broker.metrics.test_watching import get, scrape, value
from tests.broker.requests.handlers.conftest import on_loop
from tests.support.clients import wait_for


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings: Settings = {
        "moldau.http.listener": "0",
        "log.cleaner.backoff.ms": 100,
        "log.cleaner.min.cleanable.ratio": 0.01,
    }
    with Broker(settings, topics=["plain"]) as broker:
        yield broker


def test_a_transaction_that_is_open(broker: Broker) -> None:
    def told() -> tuple[float, float]:
        samples = scrape(broker)
        return value(samples, "moldau_transactions", state="Ongoing"), value(
            samples, "moldau_oldest_transaction_seconds"
        )

    assert told() == (0, 0)
    producer = Producer(broker.client_settings() | {"transactional.id": "open"})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce("plain", b"x")
    assert producer.flush(20) == 0
    count, seconds = told()
    assert count == 1
    wait_for(lambda: told()[1] > seconds + 0.1, "it grows older")
    producer.abort_transaction(20)
    assert told() == (0, 0)
    assert value(scrape(broker), "moldau_transactions", state="CompleteAbort") == 1


def test_a_group_that_reads_and_waits(broker: Broker) -> None:
    broker.produce("plain", [b"x"])
    consumer = Consumer(broker.client_settings() | {"group.id": "awake", "auto.offset.reset": "earliest"})
    consumer.subscribe(["plain"])
    assert consumer.consume(1, 20)
    samples = scrape(broker)
    assert value(samples, "moldau_groups", state="Stable") == 1
    assert value(samples, "kafka_consumergroup_members", consumergroup="awake") == 1
    waiting = "kafka_server_delayedoperationpurgatory_numdelayedoperations"
    wait_for(lambda: value(scrape(broker), waiting, delayedoperation="Fetch") == 1, "its next fetch waits")
    consumer.close()
    assert value(scrape(broker), "moldau_groups", state="Empty") >= 1


def test_a_log_that_is_compacted(broker: Broker) -> None:
    broker.create_topics([Topic("compacted", config={"cleanup.policy": "compact", "segment.ms": 1})])
    for _ in range(3):
        broker.produce("compacted", [b"x" * 1000] * 10, key="k")
    wait_for(lambda: value(scrape(broker), "moldau_cleaner_runs_total") > 0, "the cleaner")
    samples = scrape(broker)
    assert value(samples, "moldau_cleaner_read_bytes_total") > value(samples, "moldau_cleaner_written_bytes_total") > 0
    assert value(samples, "kafka_log_logcleanermanager_uncleanable_partitions_count") == 0


def test_a_log_dir_that_failed(tmp_path: Path) -> None:
    dirs = [str(tmp_path / each) for each in ("a", "b")]
    settings: Settings = {
        "moldau.http.listener": "0",
        "log.dirs": ",".join(dirs),
        "metadata.log.dir": dirs[0],
        "offsets.topic.num.partitions": 1,
    }
    with Broker(settings, topics={"spread": 4}) as broker:
        samples = scrape(broker)
        assert value(samples, "kafka_log_logmanager_offlinelogdirectorycount") == 0
        assert all(value(samples, "moldau_disk_free_bytes", logdirectory=each) > 0 for each in dirs)

        def fail() -> int:
            logs = broker.node.broker.logs
            there = list(logs.dirs[dirs[1]].logs.values())
            there[0].fail(OSError(errno.EIO, "the disk is gone"))
            return len(there)

        lost = on_loop(broker, fail)
        assert lost > 0
        offline = "kafka_controller_kafkacontroller_offlinepartitionscount"
        wait_for(lambda: value(scrape(broker), offline) == lost, "the controller to know")
        samples = scrape(broker)
        assert value(samples, "kafka_log_logmanager_offlinelogdirectorycount") == 1
        assert value(samples, "kafka_log_logmanager_logdirectoryoffline", logdirectory=dirs[1]) == 1
        assert value(samples, "kafka_server_replicamanager_offlinereplicacount") == lost
        assert get(broker, "/ready") == (200, "ok\n")
        assert '"online": false' in get(broker, "/status")[1]
