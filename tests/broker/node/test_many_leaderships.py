"""A node that starts with many partitions takes their leadership in turns, and is asked for any of them meanwhile."""

import asyncio
import time
from pathlib import Path

import pytest

from moldau.broker.replicas.partition import Partition
from moldau.controller.image import PartitionImage
from moldau.testing import Broker
from tests.broker.requests.handlers.wire_client import WireClient

MANY = 60
TOOK_S = 0.002  # of the five milliseconds that a turn gives


def test_many_leaderships_are_taken_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Broker(data_dir=str(tmp_path)) as broker, WireClient(broker.bootstrap_servers) as client:
        topic = client.new_topic(MANY)
        for index in (0, MANY - 1):
            assert client.produce(topic, [b"before"], partition=index).base_offset == 0
    become = Partition.become
    in_turn = most = led = 0

    def next_turn() -> None:
        nonlocal in_turn
        in_turn = 0

    def slow(partition: Partition, image: PartitionImage) -> None:
        nonlocal in_turn, most, led
        led_before = hasattr(partition, "is_leader") and partition.is_leader
        become(partition, image)
        if partition.is_leader and not led_before:
            time.sleep(TOOK_S)
            if not in_turn:
                asyncio.get_running_loop().call_soon(next_turn)
            in_turn += 1
            led += 1
            most = max(most, in_turn)

    monkeypatch.setattr(Partition, "become", slow)
    with Broker(data_dir=str(tmp_path)) as broker, WireClient(broker.bootstrap_servers) as client:
        for index in (MANY - 1, 0):
            assert client.produce(topic, [b"after"], partition=index).base_offset == 1
        for index in range(1, MANY - 1):
            assert client.produce(topic, [b"first"], partition=index).base_offset == 0
    assert led >= MANY
    assert most <= 20
