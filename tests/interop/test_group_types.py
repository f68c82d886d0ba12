"""Groups that are no groups of consumers: share groups and Streams' own, on Apache Kafka, which alone has them. And
applications of Streams set back to their beginning, on both: as Kafka's tool would do it.
"""

import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import Command
from tests.interop.apache_kafka import TOOLS, ApacheKafka, compile_java, java_command, run_tool
from tests.interop.peers.workshop import PEERS
from tests.support.broker_process import BrokerProcess
from tests.support.clients import wait_for

LINES = 30
START_SECONDS = 60


@contextmanager
def running(command: list[str], log: Path) -> Iterator[None]:
    """Killed at the end: its members are left over."""
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def word_count(bootstrap: str, name: str, folder: Path, *protocol: str) -> list[str]:
    classes = compile_java(PEERS / "java" / "WordCount.java")
    state = folder / "state"
    return java_command(
        "WordCount", bootstrap, name, f"{name}-out", f"{name}-app", str(state), *protocol, classes=classes
    )


def told(moldau: Command, *arguments: str) -> Any:
    """None if it is refused: it is not there yet."""
    ended = moldau(*arguments, "--json")
    return ended.json if ended.code == 0 else None


def lag_of(moldau: Command, group: str) -> int | None:
    """None before everything it reads was read for the first time."""
    found = told(moldau, "group", "describe", group)
    if not found or any(row["committed"] is None for row in found[0]["partitions"] if row["end"]):
        return None
    return int(found[0]["lag"]) if found[0]["partitions"] else None


def first_counts(moldau: Command, topic: str) -> list[str]:
    return [each for each in moldau.ok("consume", topic, "-a", "-e", "-k", "=").lines if each == "a=1"]


@pytest.mark.parametrize("peer", ["apache_kafka", "moldau"])
def test_a_streams_application_starts_anew(
    peer: str, request: pytest.FixtureRequest, fresh_topic: Callable[[str], str], tmp_path: Path
) -> None:
    broker: ApacheKafka | BrokerProcess = request.getfixturevalue(peer)
    moldau, name = Command(broker.bootstrap_servers, str(tmp_path)), fresh_topic("lines")
    application = f"{name}-app"
    moldau.ok("topic", "create", name, f"{name}-out", "-p", "2")
    moldau.ok("produce", name, stdin="a b\n" * LINES)
    command = word_count(broker.bootstrap_servers, name, tmp_path)
    with running(command, tmp_path / "log"):
        wait_for(lambda: lag_of(moldau, application) == 0, "all lines counted", START_SECONDS)
        assert len(first_counts(moldau, f"{name}-out")) == 1
        refused = moldau.refused(1, "group", "reset-streams", application, "-t", name, "--execute")
        assert "stop it" in refused
    ours = moldau.ok("group", "reset-streams", application, "-t", name, "--force", "--json").json
    tool = ("--application-id", application, "--input-topics", name, "--force", "--dry-run")
    theirs = run_tool("kafka-streams-application-reset", "--bootstrap-server", broker.bootstrap_servers, *tool).stdout
    inferred = re.findall(r"inferred internal topics \[(.*)\]", theirs)[0].split(", ")
    assert sorted(inferred) == [row["name"] for row in ours if row["what"] == "topic"]
    places = re.findall(r"Topic: (\S+) Partition: (\d+) Offset: (\d+)", theirs)
    assert sorted((f"{topic}-{index}", int(offset)) for topic, index, offset in places) == [
        (row["name"], row["to"]) for row in ours if row["what"] == "offset"
    ]
    moldau.ok("group", "reset-streams", application, "-t", name, "--force", "--execute")
    assert moldau.ok("topic", "list", f"{application}-*", "--json").json == []
    with running(command, tmp_path / "log"):
        wait_for(lambda: len(first_counts(moldau, f"{name}-out")) == 2, "counting from one again", START_SECONDS)


def test_a_streams_group_is_described(
    apache_kafka: ApacheKafka, fresh_topic: Callable[[str], str], tmp_path: Path
) -> None:
    moldau, name = Command(apache_kafka.bootstrap_servers, str(tmp_path)), fresh_topic("streams")
    group = f"{name}-app"
    moldau.ok("topic", "create", name, f"{name}-out", "-p", "2")
    moldau.ok("produce", name, stdin="a b\n" * LINES)
    with running(word_count(apache_kafka.bootstrap_servers, name, tmp_path, "streams"), tmp_path / "log"):
        wait_for(lambda: lag_of(moldau, group) == 0, "all lines counted", START_SECONDS)
        (found,) = moldau.ok("group", "describe", group, "--json").json
        assert (found["type"], found["state"], found["members"]) == ("streams", "stable", 2)
        read = {f"{name}-0", f"{name}-1", f"{group}-counts-repartition-0", f"{group}-counts-repartition-1"}
        rows = moldau.ok("group", "members", group, "--json").json
        assert sorted(each for row in rows for each in row["partitions"]) == sorted(read)
        assert {row["client"] for row in found["partitions"]} == {row["client"] for row in rows}
    assert {"group": group, "topic": name, "partitions": 2, "members": 2, "lag": 0} in moldau.ok(
        "group", "lag", "--json"
    ).json


def test_a_share_group_is_described_reset_and_forgotten(
    apache_kafka: ApacheKafka, fresh_topic: Callable[[str], str], tmp_path: Path
) -> None:
    moldau, name = Command(apache_kafka.bootstrap_servers, str(tmp_path)), fresh_topic("shared")
    group = f"{name}-group"
    moldau.ok("topic", "create", name, "-p", "2")
    moldau.ok("produce", name, "-p", "1", stdin="v\n" * LINES)
    moldau.ok("config", "set", "group", group, "share.auto.offset.reset=earliest")
    reader = java_command(
        TOOLS["kafka-console-share-consumer"],
        *("--bootstrap-server", apache_kafka.bootstrap_servers, "--topic", name, "--group", group),
    )
    with running(reader, tmp_path / "log"):
        wait_for(lambda: lag_of(moldau, group) == 0, "all records accepted", START_SECONDS)
        (found,) = moldau.ok("group", "describe", group, "--json").json
        assert (found["type"], found["state"], found["assignor"], found["members"]) == ("share", "stable", "simple", 1)
        (row,) = moldau.ok("group", "members", group, "--json").json
        assert (row["client"], sorted(row["partitions"])) == ("console-share-consumer", [f"{name}-0", f"{name}-1"])
        assert moldau("group", "delete", group).code == 1
    wait_for(lambda: told(moldau, "group", "describe", group)[0]["state"] == "empty", "nobody there", START_SECONDS)
    assert moldau.ok("group", "lag", group, "--format", "{group} {topic} {lag}").lines == [f"{group} {name} 0"]
    moldau.ok("group", "reset", group, "-t", f"{name}:1", "--to", "5", "--execute")
    wait_for(lambda: lag_of(moldau, group) == LINES - 5, "an earlier start")
    assert moldau("group", "lag", group, "--max", "3").code == 6
    rows = moldau.ok("group", "delete-offsets", group, "-t", name, "--json").json
    assert {(row["partition"], row["result"]) for row in rows} >= {(1, "deleted")}
    assert "has no offsets" in moldau.refused(4, "group", "delete-offsets", group, "-t", name)
    moldau.ok("group", "delete", group)
    moldau.refused(4, "group", "describe", group)
