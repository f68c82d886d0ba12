"""Records that no client would send: batches of our own making, sent as they are."""

from collections.abc import Sequence

from moldau.client.admin import Admin
from moldau.client.settings import parse_client_settings
from moldau.records.builder import build_batch
from moldau.wire import messages as m

_BY_NAME = 12


def send_raw(bootstrap_servers: str, topic: str, value: bytes, headers: Sequence[tuple[bytes, bytes | None]]) -> None:
    """One to partition 0, with any names of headers."""
    batch = build_batch([(0, 1_700_000_000_000, None, value, tuple(headers))])
    data = m.ProduceRequest.PartitionProduceData(index=0, records=bytes(batch))
    request = m.ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=5_000,
        topic_data=[m.ProduceRequest.TopicProduceData(name=topic, partition_data=[data])],
    )
    with Admin(parse_client_settings({"bootstrap.servers": bootstrap_servers})) as admin:
        (leader,) = [row.leader_id for row in admin.metadata([topic]).topics[0].partitions if row.partition_index == 0]
        answer = admin.ask_broker(leader, request, m.ProduceResponse, _BY_NAME)
    (result,) = answer.responses[0].partition_responses
    assert result.error_code == 0, result
