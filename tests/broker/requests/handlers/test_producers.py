"""InitProducerId without transactions, and DescribeProducers."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from moldau.broker.coordinators.producer_ids import ProducerIds
from moldau.records import BatchOptions, build_batch
from moldau.testing import Broker
from moldau.transactions import ProducerIdAllocator
from moldau.wire import ErrorCode
from moldau.wire import messages as m
from tests.broker.requests.handlers.conftest import make_broker, on_loop
from tests.broker.requests.handlers.wire_client import FIRST_TIMESTAMP_MS, WireClient

Init = m.InitProducerIdRequest
Describe = m.DescribeProducersRequest


def init(client: WireClient, version: int = 5) -> int:
    answer = client.ask(Init(None, 60_000), version)
    assert (answer.error_code, answer.producer_epoch) == (0, 0)
    return int(answer.producer_id)


def batch(producer_id: int, sequence: int) -> bytes:
    options = BatchOptions(producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
    return bytes(build_batch([(0, FIRST_TIMESTAMP_MS + sequence, None, b"v", ())], options))


@pytest.mark.parametrize("version", range(6))
def test_every_version_gives_an_id(client: WireClient, version: int) -> None:
    assert init(client, version) >= 0


def test_ids_are_never_given_twice(own_broker: Broker) -> None:
    """More than two blocks of a thousand, asked for by several clients at once."""

    def claim(_: int) -> list[int]:
        with WireClient(own_broker.bootstrap_servers) as client:
            return [init(client) for _ in range(550)]

    with ThreadPoolExecutor(4) as threads:
        given = [producer_id for ids in threads.map(claim, range(4)) for producer_id in ids]
    assert len(set(given)) == len(given) == 2200


def test_ids_are_never_given_twice_over_a_restart(tmp_path: Path) -> None:
    seen: list[int] = []
    for _ in range(2):
        with make_broker(tmp_path) as broker, WireClient(broker.bootstrap_servers) as client:
            seen += [init(client), init(client)]
    assert len(set(seen)) == 4


@pytest.mark.parametrize(("producer_id", "epoch"), [(5, -1), (-1, 5)])
def test_half_a_former_id_is_refused(client: WireClient, producer_id: int, epoch: int) -> None:
    answer = client.ask(Init(None, 60_000, producer_id, epoch))
    assert (answer.error_code, answer.producer_id) == (ErrorCode.INVALID_REQUEST, -1)


def test_an_empty_transactional_id_is_refused(client: WireClient) -> None:
    answer = client.ask(Init("", 60_000))
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (ErrorCode.INVALID_REQUEST, -1, -1)


def test_when_the_controller_has_no_ids_the_client_tries_again(
    own_broker: Broker, own_client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = own_broker.node.broker
    working: Callable[..., Any] = node.controller.submit

    async def failing(*_: object) -> object:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(node.controller, "submit", failing)
    producer_ids = on_loop(own_broker, lambda: node.producer_ids)
    monkeypatch.setattr(producer_ids, "allocator", ProducerIdAllocator())  # one without a block
    answer = own_client.ask(Init(None, 60_000))
    assert (answer.error_code, answer.producer_id) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, -1)
    monkeypatch.setattr(node.controller, "submit", working)
    while (answer := own_client.ask(Init(None, 60_000))).error_code:  # after the allocator's pause
        assert answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert answer.producer_id >= 0


def test_all_who_wait_are_served_by_one_request(own_broker: Broker) -> None:
    node = own_broker.node.broker
    producer_ids = ProducerIds(node)  # without a block yet
    asked = 0

    async def many() -> list[int | None]:
        nonlocal asked
        submit = node.controller.submit

        async def counted(command: Any, request: Any, **more: Any) -> Any:
            nonlocal asked
            asked += 1
            return await submit(command, request, **more)

        node.controller.submit = counted  # type: ignore[method-assign]  # a throwaway broker
        return await asyncio.gather(*(producer_ids.claim() for _ in range(50)))

    ids = asyncio.run_coroutine_threadsafe(many(), node.loop).result(20)
    given = sorted(producer_id for producer_id in ids if producer_id is not None)
    assert given == list(range(given[0], given[0] + 50))
    assert asked == 1


def test_nothing_is_asked_of_the_controller_before_it_knows_the_broker(own_broker: Broker) -> None:
    node = own_broker.node.broker

    async def prefetch() -> int | None:
        registered_epoch, node.broker_epoch = node.broker_epoch, -1
        unregistered = ProducerIds(node)
        unregistered.prefetch()
        assert await unregistered.claim() is None
        node.broker_epoch = registered_epoch
        unregistered.prefetch()
        return await unregistered.claim()

    claimed = asyncio.run_coroutine_threadsafe(prefetch(), node.loop).result(20)
    assert claimed is not None


def test_producers_of_a_partition_are_described(client: WireClient) -> None:
    name = client.new_topic(2)
    first, second = init(client), init(client)
    for producer_id, sequence in ((first, 0), (first, 1), (second, 0)):
        assert client.produce_batch(name, batch(producer_id, sequence)).error_code == 0
    topics = [
        Describe.TopicRequest(name, [0, 1, 7]),
        Describe.TopicRequest("no-such", [0]),
        Describe.TopicRequest("a/b", [0]),
    ]
    answer = client.ask(Describe(topics))
    here, empty, missing = answer.topics[0].partitions
    assert {
        (each.producer_id, each.producer_epoch, each.last_sequence, each.last_timestamp, each.current_txn_start_offset)
        for each in here.active_producers
    } == {(first, 0, 1, FIRST_TIMESTAMP_MS + 1, -1), (second, 0, 0, FIRST_TIMESTAMP_MS, -1)}
    assert (empty.error_code, empty.active_producers) == (0, [])
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [each.partitions[0].error_code for each in answer.topics[1:]] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    ]


def test_only_the_leader_describes_producers(own_broker: Broker, own_client: WireClient) -> None:
    name = own_client.new_topic()

    def step_down() -> None:
        own_broker.node.broker.replicas.leader(name, 0).is_leader = False

    on_loop(own_broker, step_down)
    answer = own_client.ask(Describe([Describe.TopicRequest(name, [0])]))
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
