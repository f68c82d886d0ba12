"""A well-behaved client beside an attack: writes every 20 ms, commits for its group, ends transactions, and notes each
error and how long its writes took. A process of its own, so that the attacker's work does not look like the broker's.

    python -m tests.attack.bystander HOST:PORT   (ends, and prints JSON, when its standard input does)
"""

import json
import select
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from moldau.records import build_batch
from moldau.wire import messages as m
from tests.broker.requests.handlers.wire_client import WireClient

EVERY_S = 0.02
TOPIC, GROUP, TRANSACTIONAL_ID = "bystander", "bystander", "bystander"
_NOT_YET = (14, 15, 16)  # a coordinator that is loading
_CONCURRENT = 51  # the end of the last transaction is still under way


def main(bootstrap: str) -> None:
    latencies: list[float] = []
    errors: list[str] = []
    with WireClient(bootstrap, "bystander") as client:
        client.new_topic(2, TOPIC)
        for key_type, key in ((0, GROUP), (1, TRANSACTIONAL_ID)):  # makes the coordinators' topics, too
            _until_taken(partial(client.ask, m.FindCoordinatorRequest(key, key_type), 3))
        producer = _until_taken(lambda: client.ask(m.InitProducerIdRequest(TRANSACTIONAL_ID, 60_000)))
        kind = m.ProduceRequest
        rounds = 0
        print("ready", flush=True)
        while not select.select([sys.stdin], [], [], 0)[0]:
            started = time.perf_counter()
            batch = bytes(build_batch([(0, time.time_ns() // 1_000_000, b"k", b"v", ())]))
            data = kind.TopicProduceData(name=TOPIC, partition_data=[kind.PartitionProduceData(index=0, records=batch)])
            answer = client.ask(kind(acks=-1, timeout_ms=5_000, topic_data=[data]), 12)
            latencies.append(time.perf_counter() - started)
            told = answer.responses[0].partition_responses[0]
            if told.error_code or told.base_offset != len(latencies) - 1:
                errors.append(f"write {len(latencies)}: {told.error_code}, offset {told.base_offset}")
            rounds += 1
            if rounds % 10 == 0:
                errors += _look_around(client, producer, rounds)
            time.sleep(max(0.0, EVERY_S - (time.perf_counter() - started)))
    print(json.dumps({"latencies": latencies, "errors": errors}), flush=True)


def _look_around(client: WireClient, producer: Any, rounds: int) -> list[str]:
    """Its group, its transaction and its topic are as they were."""
    errors = []
    commit = m.OffsetCommitRequest
    partition = commit.OffsetCommitRequestPartition(0, rounds, -1, "")
    told = client.ask(commit(GROUP, -1, "", topics=[commit.OffsetCommitRequestTopic(TOPIC, partitions=[partition])]), 8)
    if told.topics[0].partitions[0].error_code:
        errors.append(f"commit: {told.topics[0].partitions[0].error_code}")
    add = m.AddPartitionsToTxnRequest
    fields = {
        "v3_and_below_transactional_id": TRANSACTIONAL_ID,
        "v3_and_below_producer_id": producer.producer_id,
        "v3_and_below_producer_epoch": producer.producer_epoch,
        "v3_and_below_topics": [add.AddPartitionsToTxnTopic(TOPIC, [1])],
    }
    while True:
        told = client.ask(add(**fields), 3)
        code = told.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
        if code != _CONCURRENT:
            break
        time.sleep(0.005)
    if code:
        errors.append(f"transaction: {code}")
    told = client.ask(m.EndTxnRequest(TRANSACTIONAL_ID, producer.producer_id, producer.producer_epoch, True), 3)
    if told.error_code:
        errors.append(f"end of transaction: {told.error_code}")
    asked = m.MetadataRequest([m.MetadataRequest.MetadataRequestTopic(name=TOPIC)], False)
    (topic,) = client.ask(asked, 12).topics
    if topic.error_code or len(topic.partitions) != 2:
        errors.append(f"topic: {topic}")
    return errors


def _until_taken(ask: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 30
    while (answer := ask()).error_code in _NOT_YET and time.monotonic() < deadline:
        time.sleep(0.05)
    assert answer.error_code == 0, answer
    return answer


if __name__ == "__main__":
    main(sys.argv[1])
