"""The walks that docs/ARCHITECTURE.md describes, walked: every file named on one is really passed.

A broker runs in this process, and its threads note which files of ours they call into.
"""

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from pyspark.sql.streaming.datasource import ReadAllAvailable

import moldau
from moldau.client.cluster import Cluster
from moldau.client.settings import parse_client_settings
from moldau.testing import Broker
from tests.spark.reading import rows, send, stream_reader
from tests.support.clients import wait_for

PACKAGE = Path(moldau.__file__).parent
PAGE = PACKAGE.parent.parent / "docs" / "ARCHITECTURE.md"
# Named on a walk for those it concerns; one node, reading and writing its own, does not pass them.
NOT_ALONE = {
    "A produce": {
        "timers/purgatory.py",  # waits for other replicas
        "log/segment.py",  # the short way writes to the file itself
    },
    "A fetch": {"broker/replicas/follower_fetch.py"},
    "A metadata change": {
        "broker/requests/forwarding.py",  # from a broker that is not the active controller
        "broker/controller/channel.py",
        "broker/quorum/fetches.py",  # to the other controllers
    },
    # Spark's own way in, and the way out, take a JVM: tests/spark walks them.
    "A Spark batch": {"spark/datasource.py", "spark/sink.py", "spark/producing.py", "spark/transactions.py"},
}


class Steps:
    """Which files were called into while somebody looked."""

    def __init__(self) -> None:
        self._is_looking = False
        self._passed: set[str] = set()
        self._prefix = f"{PACKAGE}/"

    def profile(self, frame: FrameType, event: str, _: Any) -> None:
        if self._is_looking and event == "call" and (path := frame.f_code.co_filename).startswith(self._prefix):
            self._passed.add(path.removeprefix(self._prefix))

    @contextmanager
    def noted(self) -> Iterator[set[str]]:
        self._passed, self._is_looking = set(), True
        try:
            yield self._passed
        finally:
            self._is_looking = False


@pytest.fixture(scope="module")
def steps() -> Iterator[Steps]:
    made = Steps()
    threading.setprofile(made.profile)  # of threads that begin from now on: the broker's loop
    yield made
    threading.setprofile(None)


@pytest.fixture(scope="module")
def broker(steps: Steps) -> Iterator[Broker]:
    with Broker(topics=["t"]) as running:
        yield running


def named(walk: str) -> set[str]:
    """The files on the page, by their path in the package: those of the broker are written without its name."""
    (text,) = re.findall(rf"^- \*\*{walk}\*\*.*?(?=^- \*\*|^## |^Files )", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    found = re.findall(r"`((?:\w+/)+\w+\.py)`", text)
    assert found
    return {path if (PACKAGE / path).exists() else f"broker/{path}" for path in found}


def check(walk: str, passed: set[str]) -> None:
    assert not named(walk) - NOT_ALONE.get(walk, set()) - passed


def test_a_metadata_change(broker: Broker, steps: Steps) -> None:
    with Cluster(parse_client_settings({"bootstrap.servers": broker.bootstrap_servers})) as cluster:
        cluster.topics(["t"])
        with steps.noted() as passed:
            cluster.make_topics(["made"], 1)
            wait_for(lambda: cluster.topics(["made"]).leaders.get(("made", 0), -1) >= 0, "it is led")
    check("A metadata change", passed)


def test_a_produce_and_a_fetch(broker: Broker, steps: Steps) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0, "enable.idempotence": True})
    producer.produce("t", b"the first goes in with care, and opens the short way")
    assert producer.flush(30) == 0
    with steps.noted() as passed:
        producer.produce("t", b"as nearly all")
        assert producer.flush(30) == 0
    check("A produce", passed)
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "walker", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings | {"group.protocol": "consumer"})
    try:
        with steps.noted() as passed:
            consumer.subscribe(["t"])
            wait_for(lambda: consumer.poll(0.05) is not None, "a record")
    finally:
        consumer.close()
    check("A fetch", passed)
    check("A rebalance", passed)


def test_a_spark_batch(broker: Broker, steps: Steps) -> None:
    """The part of it that Python workers do."""
    send(broker.bootstrap_servers, "t", 3)
    sys.setprofile(steps.profile)
    try:
        with steps.noted() as passed:
            reader = stream_reader(broker.bootstrap_servers, subscribe="t", startingOffsets="earliest")
            start = reader.initialOffset()
            end = reader.latestOffset(start, ReadAllAvailable())
            assert rows(reader, reader.partitions(start, end))
            reader.stop()
    finally:
        sys.setprofile(None)
    check("A Spark batch", passed)
