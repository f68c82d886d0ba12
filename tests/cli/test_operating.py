"""`broker`, `quorum`, `reassign`, `txn`, `health`, `doctor`, `top`, `bench` on a cluster of three nodes."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.cli.bench import histogram, percentiles
from moldau.cli.reassigning import spread
from moldau.testing import Cluster
from tests.cli.running import Command
from tests.support.clients import CONFLUENT, Sent, fresh, wait_for


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    factors = ("default", "offsets.topic", "transaction.state.log")
    copies = dict.fromkeys((f"{each}.replication.factor" for each in factors), 2)
    with Cluster(3, {**copies, "transaction.state.log.min.isr": 1}) as running:  # so that one can be drained
        yield running


@pytest.fixture(scope="module")
def moldau(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Command:
    return Command(cluster.bootstrap_servers, str(tmp_path_factory.mktemp("home")))


@pytest.fixture
def topic(moldau: Command) -> str:
    name = fresh("spread")
    moldau.ok("topic", "create", name, "--replica-assignment", "1:2,1:2,1:2")
    wait_for(lambda: "ok" in moldau("health", "--format", "{check} {result}").out.split("replicas ")[1], "in sync")
    return name


def test_brokers(moldau: Command, topic: str) -> None:
    found = moldau.ok("broker", "list", "--json").json
    assert [(row["id"], row["state"]) for row in found["brokers"]] == [(1, "online"), (2, "online"), (3, "online")]
    assert [row["broker"] for row in moldau.ok("broker", "disks", "--json").json] == [1, 2, 3]
    assert [row["broker"] for row in moldau.ok("broker", "disks", "2", "--json").json] == [2]
    moldau.refused(4, "broker", "disks", "9")
    rows = {row["api"]: row for row in moldau.ok("broker", "api-versions", "2", "--json").json}
    assert rows["Fetch"]["to"] >= 17
    assert "there is no broker 9" in moldau.refused(4, "broker", "api-versions", "9")
    levels = {row["feature"]: row["level"] for row in moldau.ok("broker", "features", "--json").json}
    assert levels["metadata.version"] > 20
    assert moldau.refused(1, "broker", "set-feature", "metadata.version", "1")
    level = str(levels["metadata.version"])
    assert "could be" in moldau.ok("broker", "set-feature", "metadata.version", level, "--dry-run").out
    moldau.ok("broker", "elect-leaders", topic)
    assert "name the topics" in moldau.refused(2, "broker", "elect-leaders", "--unclean")
    moldau.refused(4, "broker", "elect-leaders", "nowhere")
    moldau.refused(4, "broker", "unregister", "77")
    assert "there are 1, 2, 3" in moldau.refused(4, "config", "describe", "broker", "77")


def test_quorum(moldau: Command) -> None:
    found = moldau.ok("quorum", "status", "--json").json
    assert found["voters"] == [1, 2, 3]
    assert found["leader"] in (1, 2, 3)
    assert [line.split()[0] for line in moldau.ok("quorum", "status").lines][:3] == ["what", "cluster", "leader"]
    rows = moldau.ok("quorum", "replicas", "--json").json
    assert sorted(row["role"] for row in rows) == ["leader", "voter", "voter"]
    directory = rows[0]["directory"]
    assert "NAME://HOST:PORT" in moldau.refused(2, "quorum", "add-voter", "9", directory, "--listener", "x")
    assert "no directory id" in moldau.refused(2, "quorum", "remove-voter", "9", "x")
    moldau.refused(1, "quorum", "remove-voter", "9", directory)
    moldau.refused(1, "quorum", "add-voter", "9", directory, "--listener", "CONTROLLER://127.0.0.1:1")


def replicas(moldau: Command, topic: str) -> list[list[int]]:
    (found,) = moldau.ok("topic", "describe", topic, "--json").json
    return [row["replicas"] for row in found["partitions"]]


def test_a_plan_is_made_carried_out_and_taken_back(moldau: Command, topic: str, tmp_path: Path) -> None:
    CONFLUENT.send(moldau.bootstrap_servers, topic, [Sent(b"x" * 1000) for _ in range(100)], "none")
    plan, back = tmp_path / "plan.json", tmp_path / "back.json"
    moldau.ok("reassign", "plan", topic, "--brokers", "2,3", "--plan", str(plan), "--rollback", str(back))
    assert all(set(row["replicas"]) <= {2, 3} for row in json.loads(plan.read_text())["partitions"])
    ended = moldau.ok("reassign", "run", str(plan), "--wait", "--throttle", "10000000")
    assert ended.err.endswith("moldau: 3 of 3 moves are under way\nmoldau: all moves are done\n")
    assert all(set(each) == {2, 3} for each in replicas(moldau, topic))
    settings = moldau.ok("topic", "describe", topic, "--json").json[0]["settings"]
    assert not [name for name in settings if "throttled" in name], "taken off again"
    assert moldau.ok("reassign", "status").err == "nothing is moving\n"
    moldau.ok("reassign", "run", str(back), "--wait")
    assert replicas(moldau, topic) == [[1, 2]] * 3
    assert moldau.ok("reassign", "run", str(back)).err == "nothing needs to move\n"
    assert moldau.ok("reassign", "cancel", "--all").out == "cancelled 0 moves\n"
    assert moldau.ok("reassign", "unthrottle").out == "unthrottled\n"


def test_moves_to_a_broker_that_crawls_can_be_watched_and_cancelled(
    moldau: Command, topic: str, tmp_path: Path
) -> None:
    CONFLUENT.send(moldau.bootstrap_servers, topic, [Sent(b"x" * 100_000) for _ in range(50)], "none")
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": [1, 3]}]}))
    ended = moldau.ok("reassign", "run", str(plan), "--throttle", "1000")
    assert "the throttle stays" in ended.err
    (row,) = moldau.ok("reassign", "status", "--json").json
    assert (row["topic"], row["adding"], row["removing"]) == (topic, [3], [2])
    assert row["percent"] < 100
    moldau.ok("reassign", "run", str(plan), "--throttle", "2000")
    assert throttled(moldau, topic) == ("0:1,0:2", "0:3"), "still slow, at another rate"
    more = tmp_path / "more.json"
    more.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 1, "replicas": [3, 2]}]}))
    moldau.ok("reassign", "run", str(more), "--throttle", "2000")
    assert throttled(moldau, topic) == ("0:1,0:2,1:1,1:2", "0:3,1:3"), "the first move, too"
    moldau.ok("reassign", "cancel", str(more))
    assert moldau.ok("reassign", "cancel", str(plan)).out == "cancelled 1 move\n"
    assert moldau.ok("reassign", "status", "--json").json == []
    assert replicas(moldau, topic)[0] == [1, 2]
    moldau.ok("reassign", "unthrottle", topic)


def throttled(moldau: Command, topic: str) -> tuple[str, str]:
    """Who sends and who receives slowly."""
    settings = moldau.ok("topic", "describe", topic, "--json").json[0]["settings"]
    leaders, followers = (settings[f"{each}.replication.throttled.replicas"] for each in ("leader", "follower"))
    return str(leaders), str(followers)


def test_drain(moldau: Command, topic: str) -> None:
    planned = moldau.ok("reassign", "drain", "1", "--json")
    assert "nothing was changed" in planned.err
    moldau.ok("reassign", "drain", "1", "--execute", "--wait")
    assert all(1 not in each for each in replicas(moldau, topic))
    assert moldau.ok("reassign", "drain", "1").err == "moldau: no replica is on broker 1\n"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("nonsense", "is no plan"),
        ('{"partitions": [{"topic": "t"}]}', "is no plan"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 1]}]}', "the same one twice"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": []}]}', "no replicas"),
    ],
)
def test_files_that_are_no_plans(moldau: Command, tmp_path: Path, text: str, word: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    assert word in moldau.refused(2, "reassign", "run", str(tmp_path / "plan.json"))


def test_reassignments_that_cannot_be(moldau: Command, topic: str, tmp_path: Path) -> None:
    assert "there is no broker 9" in moldau.refused(4, "reassign", "plan", topic, "--brokers", "9")
    assert "ids with commas" in moldau.refused(2, "reassign", "plan", topic, "--brokers", "x")
    assert "need 2 brokers" in moldau.refused(2, "reassign", "plan", topic, "--brokers", "3")
    assert "no such topic" in moldau.refused(4, "reassign", "plan", "nowhere")
    assert "cannot read" in moldau.refused(2, "reassign", "run", str(tmp_path / "none"))
    assert "say which moves" in moldau.refused(2, "reassign", "cancel")


def test_spreading_is_fair_and_moves_little() -> None:
    before = {("t", index): [1, 2, 3] for index in range(8)}
    after = spread(before, [1, 2, 3, 4], {})
    load = {broker: sum(broker in each for each in after.values()) for broker in (1, 2, 3, 4)}
    assert set(load.values()) == {6}
    assert sum(len(set(after[place]) - set(before[place])) for place in before) == 6, "no more than the new one needs"
    leads = [sum(each[0] == broker for each in after.values()) for broker in (1, 2, 3, 4)]
    assert max(leads) == 2
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    apart = spread({("t", index): [1] for index in range(8)}, [1, 2, 3, 4], racks, copies=2)
    assert all(racks[first] != racks[second] for first, second in apart.values())


def test_transactions(moldau: Command) -> None:
    from confluent_kafka import Producer

    topic, name = fresh("txn"), fresh("worker")
    moldau.ok("topic", "create", topic)
    producer = Producer({"bootstrap.servers": moldau.bootstrap_servers, "transactional.id": name, "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"x")
    producer.flush()
    found = moldau.ok("txn", "describe", name, "--json").json
    assert (found["state"], found["partitions"]) == ("Ongoing", [f"{topic}-0"])
    assert name in moldau.ok("txn", "list", "--state", "Ongoing", "--format", "{id}").lines
    assert name not in moldau.ok("txn", "list", "--longer-than", "600", "--format", "{id}").lines
    (row,) = moldau.ok("txn", "producers", topic, "--json").json
    assert (row["producer_id"], row["open_since_offset"]) == (found["producer_id"], 0)
    assert moldau.ok("txn", "hanging", topic, "--older-than", "0").err == "none hang\n", "its coordinator knows it"
    assert moldau.ok("txn", "terminate", name).out.startswith(f"fenced {name}: ")
    assert moldau.ok("txn", "describe", name, "--json").json["state"] in ("CompleteAbort", "Empty")
    wait_for(lambda: moldau("txn", "producers", topic, "--json").json[0]["open_since_offset"] is None, "the abort")
    assert name not in moldau.ok("txn", "list", "--longer-than", "0", "--format", "{id}").lines, "it is over"
    assert "begins at 0" in moldau.refused(4, "txn", "abort", topic, "-p", "0", "--start-offset", "0")
    moldau.refused(4, "txn", "describe", "nobody")
    moldau.refused(4, "txn", "terminate", "nobody")
    moldau.refused(4, "txn", "producers", "nowhere")
    moldau.refused(4, "txn", "producers", topic, "-p", "9")
    assert "Nonsense" in moldau.refused(2, "txn", "list", "--state", "Nonsense")


def test_health_and_doctor_notice_a_node_that_is_away(
    moldau: Command, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    well = moldau.ok("health", "--json").json
    assert well["healthy"]
    assert [each["check"] for each in well["checks"]] == ["brokers", "leaders", "replicas", "writes", "quorum", "disks"]
    checks = {row["check"]: row["result"] for row in moldau.ok("doctor", "--json").json}
    assert (checks["advertised"], checks["login"]) == ("ok", "ok")
    assert "no such folder" in moldau("doctor", "-d", str(tmp_path / "none")).out
    away = next(number for number in (2, 3) if number != cluster.controller_id())
    rigid = f"a-{topic}"  # among the first, of which doctor tells the names
    moldau.ok("topic", "create", rigid, "--replica-assignment", "1:2", "-c", "min.insync.replicas=2")
    assert rigid in moldau.ok("doctor", "--json", "-q").out, "all replicas must be there: rigid"
    moldau.ok("topic", "delete", rigid)
    cluster.crash(away)
    try:
        wait_for(lambda: moldau("health").code == 6, "that it is noticed")

        def failed() -> list[str]:
            checks = moldau("health", "--json").json["checks"]
            return [each["check"] for each in checks if each["result"] == "failed"]

        # That it does not answer is seen before the controller has taken it from the in-sync replicas.
        wait_for(lambda: "replicas" in failed(), "that replicas are missing")
    finally:
        cluster.start_node(away)
    assert moldau.ok("health", "--wait", "30", "--json").json["healthy"]  # a warning, of a full disk, may stand there


def test_top_and_bench(moldau: Command, topic: str) -> None:
    found = moldau.ok("top", "-c", "1", "-i", "0.2", "--json").json
    assert (found["brokers"], found["offline"]) == (3, 0)
    assert topic in [row["topic"] for row in found["topics"]]
    assert "at least 0.2" in moldau.refused(2, "top", "-i", "0")
    made = moldau.ok("bench", "produce", topic, "-n", "500", "--json").json
    assert made["p50_ms"] < 450  # librdkafka's producer takes half a second to start: that is nobody's latency
    slow = moldau.ok("bench", "produce", topic, "-n", "60", "--rate", "60", "--json").json
    assert slow["p50_ms"] < 300, "not until the pauses are over"
    assert moldau.ok("bench", "consume", topic, "-n", "10", "--json").json["records"] == 10
    read = moldau.ok("bench", "consume", topic, "-n", "500", "--json").json
    assert read["records"] == 500
    ended = moldau.ok("bench", "latency", "-n", "20", "--plot")
    assert ended.lines[0] == "20 records of 100 bytes, end to end"
    assert "█" in ended.out
    assert not [name for name in moldau.ok("topic", "list").lines if name.startswith("moldau-bench")]
    moldau.refused(2, "bench", "produce", "--acks", "7")
    moldau.refused(4, "bench", "consume", "nowhere")


def test_percentiles_and_bars() -> None:
    assert percentiles([1.0] * 98 + [5.0, 9.0]) == {
        "p50": 1.0, "p90": 1.0, "p95": 1.0, "p99": 9.0, "p999": 9.0, "max": 9.0,
    }  # fmt: skip
    assert [line.split()[3] for line in histogram([0.9] * 3 + [1.5])] == ["3", "1"]


def test_health_waits_for_no_node_that_hangs(cluster: Cluster, moldau: Command, topic: str) -> None:
    hanging = cluster.controller_id()
    assert hanging is not None
    with cluster.faults[hanging].paused():
        began = time.monotonic()
        ended = moldau("health", "--json")
        took = time.monotonic() - began
    assert ended.code == 6, ended
    found = next(each for each in ended.json["checks"] if each["check"] == "brokers")
    assert found["result"] == "failed"
    assert found["found"].endswith(f": {hanging}")
    assert took < 15, "not the half minute that a request may take"
    assert moldau.ok("health", "--wait", "30", "--json").json["healthy"]
