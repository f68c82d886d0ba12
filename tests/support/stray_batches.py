"""Batches of a transaction that no coordinator was told of: what a producer with a bug, or a lost state topic, leaves.

The broker must be started with `transaction.partition.verification.enable=false`, or it refuses them.
"""

import time

from moldau.client.admin import Admin
from moldau.client.settings import parse_client_settings
from moldau.records.builder import BatchOptions, build_batch
from moldau.wire import messages as m

UNVERIFIED = {"transaction.partition.verification.enable": "false"}
_UNASKED = 11  # from 12 on the broker adds the partition to the transaction by itself


def write_stray_batch(
    bootstrap_servers: str, topic: str, producer_id: int, *, epoch: int = 0, sequence: int = 0, minutes_ago: int = 0
) -> int:
    """Into partition 0; the offset it got."""
    options = BatchOptions(producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=True)
    record = (0, int(time.time() * 1000) - minutes_ago * 60_000, None, b"stray", ())
    data = m.ProduceRequest.PartitionProduceData(index=0, records=bytes(build_batch([record], options)))
    request = m.ProduceRequest(
        transactional_id="nobody",
        acks=-1,
        timeout_ms=5_000,
        topic_data=[m.ProduceRequest.TopicProduceData(name=topic, partition_data=[data])],
    )
    with Admin(parse_client_settings({"bootstrap.servers": bootstrap_servers})) as admin:
        (leader,) = [row.leader_id for row in admin.metadata([topic]).topics[0].partitions if row.partition_index == 0]
        answer = admin.ask_broker(leader, request, m.ProduceResponse, _UNASKED)
    (result,) = answer.responses[0].partition_responses
    assert result.error_code == 0, result
    return int(result.base_offset)
