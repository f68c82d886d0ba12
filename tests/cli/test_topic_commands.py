"""`moldau topic …` word for word, and what it says to what cannot be."""

import json

import pytest

from tests.cli.running import Command
from tests.support.clients import CONFLUENT, Sent, fresh


@pytest.fixture
def topic(moldau: Command) -> str:
    name = fresh("orders")
    moldau.ok("topic", "create", name, "-p", "2", "-c", "retention.ms=60000")
    return name


def test_create_says_what_became_of_each(moldau: Command) -> None:
    first, last = fresh("a"), fresh("b")
    assert moldau.ok("topic", "create", first).out == f"created {first}\n"
    ended = moldau("topic", "create", first, last)
    assert (ended.code, ended.out) == (1, f"created {last}\n")
    assert f"moldau: {first}: " in ended.err
    assert "already exists" in ended.err
    assert moldau.ok("topic", "create", first, "--if-not-exists").out == f"exists {first}\n"
    assert moldau.ok("topic", "create", fresh("c"), "--json").json["result"] == "created"
    never = fresh("never")
    assert moldau.ok("topic", "create", never, "--dry-run").out == f"could create {never}\n"
    assert never not in moldau.ok("topic", "list").lines


def test_replicas_can_be_placed_by_hand(moldau: Command) -> None:
    name = fresh("placed")
    moldau.ok("topic", "create", name, "--replica-assignment", "1,1,1")
    assert len(moldau.ok("topic", "describe", name, "--json").json[0]["partitions"]) == 3


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--partitions", "-5"], "--partitions"),
        (["--partitions", "0"], "at least one partition"),
        (["-c", "retention.ms"], "KEY=VALUE"),
        (["--config", "retention.ms=5"], "topic settings are -c KEY=VALUE"),
        (["--replica-assignment", "x"], "1:2,2:3"),
        (["--replica-assignment", "1,1", "-p", "3"], "leave -p and -r out"),
        (["--json", "--format", "{name}"], "choose one"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_what_no_topic_can_be_is_refused_before_anything_begins(
    moldau: Command, arguments: list[str], word: str
) -> None:
    assert word in moldau.refused(2, "topic", "create", fresh("odd"), *arguments)


def test_the_broker_s_refusal_is_told(moldau: Command) -> None:
    assert "retention.ms" in moldau.refused(1, "topic", "create", fresh("bad"), "-c", "retention.ms=soon")


def test_list(moldau: Command, topic: str) -> None:
    assert topic in moldau.ok("topic", "list").lines
    assert moldau.ok("topic", "list", f"{topic}*").out == f"{topic}\n"
    width = max(len(topic), len("name"))
    assert moldau.ok("topic", "list", topic, "-d").out == (
        f"{'name'.ljust(width)}  partitions  replicas  under-replicated  offline\n"
        f"{topic.ljust(width)}           2         1                 0        0\n"
    )
    row = {"name": topic, "partitions": 2, "replicas": 1, "under_replicated": 0, "offline": 0}
    assert moldau.ok("topic", "list", topic, "--json").json == [row]
    assert moldau.ok("topic", "list", topic, "--format", "{name}\\t{partitions}").out == f"{topic}\t2\n"
    assert "{name}" in moldau.refused(2, "topic", "list", topic, "--format", "{nonsense}")


def test_describe(moldau: Command, topic: str) -> None:
    assert moldau.ok("topic", "describe", topic).out == (
        f"{topic}: 2 partitions, retention.ms=60000\n"
        "partition  leader  replicas  in-sync\n"
        "        0       1  1         1\n"
        "        1       1  1         1\n"
    )
    partitions = [{"partition": each, "leader": 1, "replicas": [1], "in_sync": [1]} for each in (0, 1)]
    document = [{"name": topic, "settings": {"retention.ms": "60000"}, "partitions": partitions}]
    assert moldau.ok("topic", "describe", topic, "--json").json == document
    assert moldau.ok("topic", "describe", topic, "--format", "{topic}-{partition}").out == f"{topic}-0\n{topic}-1\n"
    assert moldau.ok("topic", "describe", topic, "--under-replicated").out == ""
    assert "moldau topic list" in moldau.refused(4, "topic", "describe", "nowhere")


def test_alter_sets_and_takes_back(moldau: Command, topic: str) -> None:
    assert moldau.ok("topic", "alter", topic, "-c", "retention.ms=5", "-c", "max.message.bytes=9").out == (
        f"changed topic {topic}\n"
    )
    moldau.ok("topic", "alter", topic, "-u", "max.message.bytes")
    assert moldau.ok("topic", "describe", topic, "--json").json[0]["settings"] == {"retention.ms": "5"}
    moldau.ok("topic", "alter", topic, "-c", "retention.ms=7", "--dry-run")
    assert moldau.ok("topic", "describe", topic, "--json").json[0]["settings"] == {"retention.ms": "5"}
    assert "nothing to change" in moldau.refused(2, "topic", "alter", topic)
    assert "retention.ms" in moldau.refused(1, "topic", "alter", topic, "-c", "retention.ms=x")
    moldau.refused(4, "topic", "alter", "nowhere", "-c", "retention.ms=5")


def test_add_partitions(moldau: Command, topic: str) -> None:
    assert moldau.ok("topic", "add-partitions", topic, "--add", "1").out == f"extended {topic}\n"
    assert moldau.ok("topic", "list", topic, "--format", "{partitions}").out == "3\n"
    moldau.ok("topic", "add-partitions", topic, "--to", "5")
    assert moldau.ok("topic", "list", topic, "--format", "{partitions}").out == "5\n"
    moldau.refused(1, "topic", "add-partitions", topic, "--to", "2")
    assert "--to TOTAL" in moldau.refused(2, "topic", "add-partitions", topic)
    moldau.refused(4, "topic", "add-partitions", "nowhere", "--to", "2")


def test_offsets_sizes_and_emptying(moldau: Command, topic: str) -> None:
    CONFLUENT.send(
        moldau.bootstrap_servers, topic, [Sent(b"x", timestamp_ms=1_700_000_000_000 + n) for n in range(5)], "none"
    )
    rows = moldau.ok("topic", "offsets", topic, "--at", "1700000000003", "--json").json
    assert rows[0] == {"topic": topic, "partition": 0, "first": 0, "next": 5, "at": 3, "records": 5}
    assert moldau.ok("topic", "offsets", topic, "--format", "{partition}:{next}").out == "0:5\n1:0\n"
    (total,) = moldau.ok("topic", "sizes", topic, "--json").json
    assert total["replicas"] == 2
    assert total["bytes"] > 0
    each = moldau.ok("topic", "sizes", topic, "-p", "--json").json
    assert sum(row["bytes"] for row in each) == total["bytes"]
    assert moldau.ok("topic", "empty", topic, "--before", "2", "-p", "0", "--json").json[0]["begins_at"] == 2
    moldau.ok("topic", "empty", topic)
    assert moldau.ok("topic", "offsets", topic, "--format", "{first}").out == "5\n0\n"
    assert "no time" in moldau.refused(2, "topic", "offsets", topic, "--at", "whenever")
    moldau.refused(4, "topic", "offsets", "nowhere")
    moldau.refused(4, "topic", "sizes", "nowhere")
    moldau.refused(4, "topic", "empty", "nowhere")


def test_delete(moldau: Command, topic: str) -> None:
    ended = moldau("topic", "delete", topic, "nowhere")
    assert (ended.code, ended.out) == (4, f"deleted {topic}\n")
    assert "nowhere: " in ended.err
    assert moldau.ok("topic", "delete", topic, "--if-exists").out == ""
    assert topic not in moldau.ok("topic", "list").lines


def test_config_of_topics_and_brokers(moldau: Command, topic: str) -> None:
    moldau.ok("config", "set", "topic", topic, "cleanup.policy=compact")
    rows = {row["setting"]: row for row in moldau.ok("config", "describe", "topic", topic, "--json").json}
    assert rows["cleanup.policy"] == {"setting": "cleanup.policy", "value": "compact", "from": "topic"}
    moldau.ok("config", "set", "topic", topic, "cleanup.policy+=delete")
    (row,) = moldau.ok("config", "describe", "topic", topic, "cleanup.policy", "--json").json
    assert row["value"] == "compact,delete"
    moldau.ok("config", "set", "topic", topic, "cleanup.policy-=compact")
    assert moldau.ok("config", "unset", "topic", topic, "cleanup.policy").out == f"changed topic {topic}\n"
    assert len(moldau.ok("config", "describe", "topic", topic, "--all", "--json").json) > 20
    moldau.ok("config", "set", "client-metrics", "slow", "interval.ms=60000")
    moldau.ok("config", "set", "group", "g", "consumer.session.timeout.ms=50000")
    named = moldau.ok("config", "list", "client-metrics", "group", "broker", "--format", "{kind} {name}")
    assert named.lines == ["broker 1", "client-metrics slow", "group g"]
    assert f"topic {topic}" in moldau.ok("config", "list", "--format", "{kind} {name}").lines
    assert "settings belong to" in moldau.refused(2, "config", "list", "planet")
    moldau.ok("config", "unset", "client-metrics", "slow", "interval.ms")
    moldau.ok("config", "unset", "group", "g", "consumer.session.timeout.ms")
    assert moldau.ok("config", "list", "client-metrics", "group").err == "nothing of the kind has settings\n"
    moldau.ok("config", "set", "broker", "-", "log.retention.ms=777")
    assert "777" in moldau.ok("config", "describe", "broker", "1", "log.retention.ms").out
    moldau.ok("config", "unset", "broker", "-", "log.retention.ms")
    moldau.ok("config", "set", "broker", "1", "log.cleaner.threads=2", "--dry-run")
    assert "settings belong to" in moldau.refused(2, "config", "describe", "planet", "earth")
    assert "give its id" in moldau.refused(2, "config", "describe", "broker", "earth")
    assert "KEY=VALUE" in moldau.refused(2, "config", "set", "topic", topic, "nonsense")
    moldau.refused(4, "config", "describe", "topic", "nowhere")
    assert json.dumps(moldau.ok("config", "describe", "broker", "1", "--docs", "-a", "--json").json).count("about") > 50
