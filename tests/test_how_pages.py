"""`docs/how` answers what people who run Kafka are asked. The questions are those of the notes the pages follow: each
has a page that names it and the place in the source, so that none is lost when a page is rewritten."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "how"
_SOURCE = re.compile(r"`((?:\w+/)+\w+\.(?:py|txt))`")

QUESTIONS = {
    "index.md": ["Pull, not push", "fetch.max.wait.ms", "broadcast", "RocketMQ"],
    "records.md": ["topic", "batches", "murmur2", "sticky", "Round robin", "Compression", "schema", "CreateTopics"],
    "producing.md": [
        "batch.size",
        "linger.ms",
        "buffer.memory",
        "callback",
        "interceptor",
        "connections.max.idle.ms",
        "metadata.max.age.ms",
        "acks",
        "min.insync.replicas",
        "num.network.threads",
        "num.io.threads",
        "timing wheel",
        "page cache",
    ],
    "log.md": [
        "segment.bytes",
        "segment.jitter.ms",
        "index.interval.bytes",
        "warm",
        "timeindex",
        "sendfile",
        "page cache",
        "log.dirs",
        "retention.ms",
        "retention.bytes",
        "DeleteRecords",
        "tombstone",
    ],
    "replicas.md": ["LEO", "ISR", "OSR", "high watermark", "replica.lag.time.max.ms", "leader epoch", "unclean"],
    "groups.md": [
        "coordinator",
        "__consumer_offsets",
        "range",
        "sticky",
        "session.timeout.ms",
        "max.poll.interval.ms",
        "CommitFailedException",
        "commitAsync",
        "seek",
        "close()",
        "dead letters",
        "auto.offset.reset",
    ],
    "guarantees.md": [
        "at most once",
        "at least once",
        "exactly once",
        "enable.idempotence",
        "max.in.flight.requests.per.connection",
        "transactional.id",
        "read_committed",
        "new partitions",
        "Order",
        "outbox",
    ],
    "controller.md": ["ZooKeeper", "active controller", "pre-vote", "fenced"],
    "watching.md": ["Lag", "retention.ms", "page cache", "hot key"],
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_question_has_its_place(name: str) -> None:
    text = (PAGES / name).read_text()
    missing = [each for each in QUESTIONS[name] if not re.search(each, text, re.IGNORECASE)]
    assert missing == []
    assert len(set(_SOURCE.findall(text))) >= (1 if name == "index.md" else 2), "where is it in the source?"


def test_every_page_is_asked_about() -> None:
    assert {each.name for each in PAGES.glob("*.md")} == QUESTIONS.keys()
