"""What lies on the disks of all brokers: a question to each of them."""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

from moldau.client.admin import Admin
from moldau.client.connection import BrokerError
from moldau.wire.messages import DescribeLogDirsRequest, DescribeLogDirsResponse


class Replica(NamedTuple):
    topic: str
    partition: int
    broker: int
    log_dir: str
    size_bytes: int
    offset_lag: int
    is_future: bool


class Dir(NamedTuple):
    broker: int
    log_dir: str
    error_code: int
    total_bytes: int | None
    usable_bytes: int | None
    replicas: list[Replica]


def describe_dirs(admin: Admin, without: Container[int] = ()) -> list[Dir]:
    """Every log dir of every broker that is there, `without` some."""
    admin.metadata([])
    found = []
    for broker in sorted(admin.brokers):
        if broker in without:
            continue
        answer = admin.ask_broker(broker, DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse)
        if answer.error_code:
            raise BrokerError(answer.error_code, f"log dirs of broker {broker}")
        for each in answer.results:
            replicas = [
                Replica(
                    topic.name,
                    row.partition_index,
                    broker,
                    each.log_dir,
                    row.partition_size,
                    row.offset_lag,
                    row.is_future_key,
                )
                for topic in each.topics
                for row in topic.partitions
            ]
            total, usable = (None if value < 0 else value for value in (each.total_bytes, each.usable_bytes))
            found.append(Dir(broker, each.log_dir, each.error_code, total, usable, replicas))
    return found


def replica_sizes(admin: Admin) -> list[Replica]:
    return [replica for each in describe_dirs(admin) for replica in each.replicas]
