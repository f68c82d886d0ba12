"""A broker that comes back without one of its log dirs: what may lie there is offline, not made anew and elected."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from moldau.controller.image import NO_LEADER, ClusterImage, PartitionImage, is_reserved_dir
from moldau.testing import Cluster
from tests.cluster.workload import QUIET, admin, read_all, wait_until

PARTITIONS = 4
RECORDS = 200


def image(cluster: Cluster) -> ClusterImage:
    return cluster.inner.nodes[1].broker.image


def partitions(cluster: Cluster) -> dict[int, PartitionImage]:
    return dict(image(cluster).topics["t"].partitions)


def dirs(tmp_path: Path, number: int) -> tuple[Path, Path]:
    return tmp_path / f"{number}-a", tmp_path / f"{number}-b"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Node 1 is the controller; brokers 2 and 3 have two log dirs each, and the topic."""
    with Cluster(nodes=1, settings={"broker.session.timeout.ms": "1500"}, data_dir=str(tmp_path)) as running:
        for number in (2, 3):
            running.add_broker(number, {"log.dirs": ",".join(map(str, dirs(tmp_path, number)))})
        servers = running.bootstrap_servers
        topic = NewTopic(
            "t",
            replica_assignment=[[2, 3]] * PARTITIONS,
            config={"min.insync.replicas": "2"},
            num_partitions=PARTITIONS,
        )
        client = admin(servers)
        client.create_topics([topic])["t"].result(20)
        producer = Producer({"bootstrap.servers": servers, "acks": "all", **QUIET})
        for record in range(RECORDS):
            producer.produce("t", b"%d" % record, partition=record % PARTITIONS)
        assert producer.flush(30) == 0
        wait_until(
            lambda: all(not any(map(is_reserved_dir, each.directories)) for each in partitions(running).values()),
            "the controller knows where all replicas lie",
        )
        yield running


def ends(cluster: Cluster, number: int) -> list[int]:
    logs = cluster.inner.nodes[number].broker.logs.logs
    return [logs["t", index].log_end_offset for index in range(PARTITIONS)]


def away(path: Path, how: str) -> None:
    path.rename(path.with_suffix(".away"))
    if how == "unreadable":
        path.write_text("this is no folder")


def back(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.with_suffix(".away").rename(path)


@pytest.mark.parametrize("how", ["missing", "unreadable"])
def test_nothing_acknowledged_is_lost(cluster: Cluster, tmp_path: Path, how: str) -> None:
    """A12: one broker stops cleanly, the other dies, the first comes back without one dir. It was elected, "clean", at
    offset 0, and the good log of the other was cut to 0."""
    assert image(cluster).is_elr_enabled
    cluster.stop_node(2)
    cluster.crash(3)
    wait_until(lambda: all(each.leader == NO_LEADER for each in partitions(cluster).values()), "nobody leads")
    kept, lost = dirs(tmp_path, 2)
    away(lost, how)
    cluster.start_node(2)
    assert not lost.is_dir(), "a folder that vanished is not made again"
    here = {index for index in range(PARTITIONS) if (kept / f"t-{index}").is_dir()}
    assert 0 < len(here) < PARTITIONS
    assert {index for index in range(PARTITIONS) if cluster.inner.nodes[2].broker.replicas.get("t", index)} == here
    assert all(each.leader != 2 for index, each in partitions(cluster).items() if index not in here)
    cluster.start_node(3)
    wait_until(lambda: all(each.leader != NO_LEADER for each in partitions(cluster).values()), "all have a leader")
    assert ends(cluster, 3) == [RECORDS // PARTITIONS] * PARTITIONS
    # With the disk in place again, the replicas in it are what they were.
    cluster.stop_node(2)
    back(lost)
    cluster.start_node(2)
    wait_until(lambda: all(sorted(each.isr) == [2, 3] for each in partitions(cluster).values()), "all are in sync")
    found = read_all(cluster.address(1), "t", RECORDS)
    assert sorted(int(value) for value, _, _ in found) == list(range(RECORDS))
    assert ends(cluster, 2) == [RECORDS // PARTITIONS] * PARTITIONS
