"""What the folders of earlier versions hold, written and read through clients: the script that makes the folders and
the test that opens them share it.

`write` knows what it wrote; nothing is taken from what the node says. So a version that lost something when it wrote
a folder is noticed by the script, and one that loses something when it opens it by the test.
"""

import json
import time
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
    ResourceType,
)

from tests.support.clients import Sent, admin, quiet, read_all, send_confluent, wait_for

Contents = dict[str, Any]
SETTINGS = {
    "log_cleaner_backoff_ms": "50",
    "log_flush_start_offset_checkpoint_interval_ms": "100",
    "metadata_log_max_record_bytes_between_snapshots": "2000",
    "transaction_max_timeout_ms": "60000",
}
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
CONFIGS = {
    "plain": {"retention.ms": "-1", "max.message.bytes": "123456"},
    "keyed": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.001", "segment.ms": "200"},
}
PARTITIONS = {"plain": 2, "keyed": 1, "transfers": 1, "open": 1}
DELETED_BEFORE = 12
KEYS = 5
KEYED = 200
PATIENCE_SECONDS = 40.0


def write(bootstrap: str) -> tuple[Contents, list[Producer]]:
    """Fill a node. Whoever is given the producers must keep them until the node is gone: one has a transaction open."""
    client = admin(bootstrap)
    topics = [NewTopic(topic, count, 1, config=CONFIGS.get(topic, {})) for topic, count in PARTITIONS.items()]
    for future in client.create_topics([*topics, NewTopic("gone", 1, 1)]).values():
        future.result(PATIENCE_SECONDS)
    alter_config(client, "plain", "retention.ms", "987654321")
    expected: Contents = {
        "topics": PARTITIONS,
        "configs": {**CONFIGS, "plain": {**CONFIGS["plain"], "retention.ms": "987654321"}},
        "records": write_plain(bootstrap, client),
        "newest": write_keyed(bootstrap),
        "groups": {"classic": commit(bootstrap, "classic", [20, 3]), "modern": join(bootstrap, "modern", [40, 10])},
        "committed": write_transfers(bootstrap),
    }
    send_confluent(bootstrap, "gone", [Sent(b"soon")])
    client.delete_topics(["gone"])["gone"].result(PATIENCE_SECONDS)
    wait_for(lambda: "gone" not in client.list_topics(timeout=20).topics, "the deletion of a topic")
    pending = transactional(bootstrap, "leaves one open")
    pending.begin_transaction()
    pending.produce("open", b"pending")
    assert pending.flush(PATIENCE_SECONDS) == 0
    return json.loads(json.dumps(expected)), [pending]


def write_plain(bootstrap: str, client: AdminClient) -> Contents:
    """Batches of every codec, and a log start that is not the first segment's."""
    first = [Sent(b"v%d" % number, b"k%d" % number, (("h", b"%d" % number),)) for number in range(40)]
    for index, codec in enumerate(CODECS):
        producer = Producer(quiet(bootstrap, compression_type=codec, linger_ms=20))
        for sent in first[8 * index : 8 * index + 8]:
            producer.produce("plain", sent.value, sent.key, 0, headers=list(sent.headers))
        assert producer.flush(PATIENCE_SECONDS) == 0
    producer = Producer(quiet(bootstrap, enable_idempotence=True))
    for number in range(10):
        producer.produce("plain", b"w%d" % number, partition=1)
    assert producer.flush(PATIENCE_SECONDS) == 0
    (future,) = client.delete_records([TopicPartition("plain", 0, DELETED_BEFORE)]).values()
    future.result(PATIENCE_SECONDS)
    return {
        "plain-0": [[number, f"k{number}", f"v{number}", str(number)] for number in range(DELETED_BEFORE, 40)],
        "plain-1": [[number, None, f"w{number}", None] for number in range(10)],
    }


def write_keyed(bootstrap: str) -> Contents:
    """Many values of a few keys, compacted."""
    send_confluent(bootstrap, "keyed", [Sent(b"%d" % number, b"k%d" % (number % KEYS)) for number in range(KEYED)])

    def is_compacted() -> bool:
        send_confluent(bootstrap, "keyed", [Sent(b"last", b"last")])  # rolls the segment, sooner or later
        return bool(read_all(bootstrap, "keyed")[0].offset())

    wait_for(is_compacted, "compaction", PATIENCE_SECONDS)
    newest = {f"k{number % KEYS}": str(number) for number in range(KEYED)}
    return {**newest, "last": "last"}


def write_transfers(bootstrap: str) -> list[str]:
    producer = transactional(bootstrap, "teller")
    for number in range(6):
        producer.begin_transaction()
        producer.produce("transfers", b"transfer %d" % number)
        producer.flush(PATIENCE_SECONDS)
        if number % 2:
            producer.abort_transaction(PATIENCE_SECONDS)
        else:
            producer.commit_transaction(PATIENCE_SECONDS)
    return [f"transfer {number}" for number in range(0, 6, 2)]


def transactional(bootstrap: str, name: str) -> Producer:
    producer = Producer(quiet(bootstrap, transactional_id=name, transaction_timeout_ms=60_000))
    producer.init_transactions(PATIENCE_SECONDS)
    return producer


def commit(bootstrap: str, group: str, offsets: list[int]) -> Contents:
    consumer = Consumer(quiet(bootstrap, group_id=group))
    places = [TopicPartition("plain", index, offset, f"note {index}") for index, offset in enumerate(offsets)]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()
    return {str(index): offset for index, offset in enumerate(offsets)}


def join(bootstrap: str, group: str, ends: list[int]) -> Contents:
    """A member of the new protocol reads everything, commits, and leaves."""
    consumer = Consumer(
        quiet(
            bootstrap, group_id=group, group_protocol="consumer", auto_offset_reset="earliest", enable_auto_commit=False
        )
    )
    consumer.subscribe(["plain"])
    missing = sum(ends) - DELETED_BEFORE
    deadline = time.monotonic() + PATIENCE_SECONDS
    while missing and time.monotonic() < deadline:
        missing -= len(consumer.consume(missing, 1))
    assert not missing, f"group {group} lacks {missing} records"
    consumer.commit(asynchronous=False)
    consumer.close()
    return {str(index): offset for index, offset in enumerate(ends)}


def alter_config(client: AdminClient, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    (future,) = client.incremental_alter_configs([resource]).values()
    future.result(PATIENCE_SECONDS)


def read(bootstrap: str) -> Contents:
    """The same, as the node tells it."""
    client = admin(bootstrap)
    listed = client.list_topics(timeout=20).topics
    topics = {name: len(topic.partitions) for name, topic in listed.items() if not name.startswith("__")}
    records: Contents = {"plain-0": [], "plain-1": []}
    for message in read_all(bootstrap, "plain", 2):
        headers: Any = message.headers()
        header = _text(headers[0][1]) if headers else None
        row = [message.offset(), _text(message.key()), _text(message.value()), header]
        records[f"plain-{message.partition()}"].append(row)
    return {
        "topics": topics,
        "configs": {topic: read_configs(client, topic) for topic in CONFIGS},
        "records": records,
        "newest": {_text(message.key()): _text(message.value()) for message in read_all(bootstrap, "keyed")},
        "groups": {group: read_committed_offsets(bootstrap, group) for group in ("classic", "modern")},
        "committed": [_text(message.value()) for message in read_all(bootstrap, "transfers")],
    }


def _text(value: bytes | str | None) -> str | None:
    return value.decode() if isinstance(value, bytes) else value


def read_configs(client: AdminClient, topic: str) -> dict[str, str | None]:
    (future,) = client.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    entries = future.result(PATIENCE_SECONDS).values()
    return {entry.name: entry.value for entry in entries if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value}


def read_committed_offsets(bootstrap: str, group: str) -> Contents:
    consumer = Consumer(quiet(bootstrap, group_id=group))
    found = consumer.committed([TopicPartition("plain", index) for index in range(2)], PATIENCE_SECONDS)
    consumer.close()
    return {str(place.partition): place.offset for place in found}
