"""aiokafka's admin client and offset queries, beside an `AsyncBroker` in the same event loop."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.structs import OffsetAndMetadata, TopicPartition

from moldau.testing import AsyncBroker
from tests.support.clients import PATIENCE_SECONDS, run

NODE_ID = 1
ALREADY_EXISTS, UNKNOWN_TOPIC = 36, 3


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[str, Any]]:
    async with AsyncBroker() as broker, asyncio.timeout(PATIENCE_SECONDS):
        client = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
        await client.start()
        try:
            yield broker.bootstrap_servers, client
        finally:
            await client.close()


def beside_a_broker(work: Callable[[str, Any], Awaitable[None]]) -> None:
    async def main() -> None:
        async with connected() as (bootstrap, client):
            await work(bootstrap, client)

    run(main)


async def send(bootstrap: str, topic: str, timestamps_ms: list[int | None]) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for number, timestamp_ms in enumerate(timestamps_ms):
            await producer.send_and_wait(topic, b"%d" % number, partition=0, timestamp_ms=timestamp_ms)


def test_a_topic_is_created_described_and_deleted() -> None:
    async def work(bootstrap: str, client: Any) -> None:
        created = await client.create_topics([NewTopic("life", 3, 1), NewTopic("other", 1, 1)])
        assert [error[:2] for error in created.topic_errors] == [("life", 0), ("other", 0)]
        (described,) = await client.describe_topics(["life"])
        assert [each["partition"] for each in described["partitions"]] == [0, 1, 2]
        again = await client.create_topics([NewTopic("life", 1, 1)])
        assert again.topic_errors[0][1] == ALREADY_EXISTS
        await client.create_partitions({"life": NewPartitions(5)})
        (described,) = await client.describe_topics(["life"])
        assert len(described["partitions"]) == 5
        assert sorted(await client.list_topics()) == ["life", "other"]
        await client.delete_topics(["life"])
        assert await client.list_topics() == ["other"]
        gone = await client.delete_topics(["life"])
        assert gone.topic_error_codes[0][1] == UNKNOWN_TOPIC

    beside_a_broker(work)


def test_settings_are_described_and_altered() -> None:
    async def work(bootstrap: str, client: Any) -> None:
        await client.create_topics([NewTopic("settings", 1, 1, topic_configs={"retention.ms": "1000000"})])
        resource = ConfigResource(ConfigResourceType.TOPIC, "settings")

        async def value(key: str) -> str:
            (response,) = await client.describe_configs([resource])
            (found,) = response.resources
            assert found[0] == 0
            values: dict[str, str] = {entry[0]: entry[1] for entry in found[4]}
            return values[key]

        assert await value("retention.ms") == "1000000"
        await client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, "settings", {"segment.ms": "7000000"})])
        assert await value("segment.ms") == "7000000"
        # Its request replaces everything: what it does not name goes back to its default.
        assert await value("retention.ms") == "604800000"

    beside_a_broker(work)


def test_offsets_and_deleted_records() -> None:
    async def work(bootstrap: str, client: Any) -> None:
        await client.create_topics([NewTopic("times", 1, 1)])
        start_ms = int(time.time() * 1000) - 100_000
        await send(bootstrap, "times", [start_ms + n * 1_000 for n in range(6)])
        where = TopicPartition("times", 0)
        assert await client.delete_records({where: RecordsToDelete(2)}) == {where: 2}
        async with AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None) as consumer:
            assert await consumer.beginning_offsets([where]) == {where: 2}
            assert await consumer.end_offsets([where]) == {where: 6}
            found = await consumer.offsets_for_times({where: start_ms + 3_500})
            assert (found[where].offset, found[where].timestamp) == (4, start_ms + 4_000)
            assert (await consumer.offsets_for_times({where: start_ms + 60_000}))[where] is None
            consumer.assign([where])
            await consumer.seek_to_beginning(where)
            assert (await consumer.getone()).offset == 2
            await consumer.seek_to_end(where)
            assert await consumer.position(where) == 6

    beside_a_broker(work)


def test_cluster_and_groups() -> None:
    async def work(bootstrap: str, client: Any) -> None:
        cluster = await client.describe_cluster()
        (node,) = cluster["brokers"]
        assert (node["node_id"], f"{node['host']}:{node['port']}") == (NODE_ID, bootstrap)
        assert cluster["controller_id"] == NODE_ID
        await client.create_topics([NewTopic("grouped", 1, 1)])
        await send(bootstrap, "grouped", [None] * 3)
        where = TopicPartition("grouped", 0)
        async with AIOKafkaConsumer(
            "grouped",
            bootstrap_servers=bootstrap,
            group_id="some-group",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer:
            assert [(await consumer.getone()).offset for _ in range(3)] == [0, 1, 2]
            await consumer.commit({where: (3, "note")})
            (response,) = await client.describe_consumer_groups(["some-group"])
            assert response.groups[0][:3] == (0, "some-group", "Stable")
            assert ("some-group", "consumer") in await client.list_consumer_groups()
            assert await client.find_coordinator("some-group") == NODE_ID
        assert await client.list_consumer_group_offsets("some-group") == {where: OffsetAndMetadata(3, "note")}

    beside_a_broker(work)
