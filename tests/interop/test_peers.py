"""The peers themselves, proven against Apache Kafka: what fails here says nothing about Moldau."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from moldau.wire import messages as m
from tests.interop.apache_kafka import KAFKA_VERSION, TOOLS, ApacheKafka, ApacheKafkaCluster, java_command, run_tool
from tests.interop.differential import NO_MASKS, Exchange, Masks, Side, differences, plain, run_scenario
from tests.interop.peers.clients import Client, Record, go_client, java_client, kcat_consume, node_client, run_kcat
from tests.interop.peers.kafka_python_suite import BROKER_PROPERTIES, run_suite
from tests.interop.peers.workshop import PeerError, build_once, run
from tests.interop.scenarios.catalogue import SCENARIOS

# Recent: retention removes old records within half a minute of a broker's start.
NOW_MS = time.time_ns() // 1_000_000
# A killed broker is replaced, or may come back, only when the controller has given up its former incarnation.
QUICK_EXPIRY = {"broker.session.timeout.ms": "1500", "broker.heartbeat.interval.ms": "500"}
FRESH = Callable[[str], str]
RECORDS = [
    Record("k1", "erster Wert: Über", (("trace", "abc"), ("empty", "")), NOW_MS + 1),
    Record(None, "no key", (), NOW_MS + 2),
    Record("k3", None, (), NOW_MS + 3),
    Record("k4", "x" * 5_000, (), NOW_MS + 4),
]


def visible(records: list[Record]) -> list[tuple[object, ...]]:
    return sorted((str(record.key), record.value or "", record.headers, record.timestamp) for record in records)


def test_every_tool_of_this_release_starts() -> None:
    def help_of(tool: str) -> str:
        command = java_command(TOOLS[tool], "--help")
        finished = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return (finished.stdout + finished.stderr).lower()

    with ThreadPoolExecutor(2) as pool:
        printed = dict(zip(TOOLS, pool.map(help_of, TOOLS), strict=True))
    needles = ("--bootstrap-server", "usage", "--deep-iteration")
    assert [tool for tool, text in printed.items() if not any(needle in text for needle in needles)] == []


def test_tools_answer_what_kafka_holds(apache_kafka: ApacheKafka, fresh_topic: FRESH) -> None:
    topic = fresh_topic("tools")
    server = ("--bootstrap-server", apache_kafka.bootstrap_servers)
    run_tool("kafka-topics", *server, "--create", "--topic", topic, "--partitions", "2")
    run_tool("kafka-console-producer", *server, "--topic", topic, stdin="one\ntwo\nthree\n")
    consumed = run_tool("kafka-console-consumer", *server, "--topic", topic, "--from-beginning", "--max-messages", "3")
    assert sorted(consumed.stdout.split()) == ["one", "three", "two"]
    offsets = run_tool("kafka-get-offsets", *server, "--topic", topic).stdout.split()
    assert sum(int(line.rpartition(":")[2]) for line in offsets) == 3
    log_dirs = run_tool("kafka-log-dirs", *server, "--describe", "--topic-list", topic).stdout
    described = json.loads(next(line for line in log_dirs.splitlines() if line.startswith("{")))
    assert len(described["brokers"][0]["logDirs"][0]["partitions"]) == 2


def test_dump_log_reads_the_folder_the_broker_wrote(apache_kafka: ApacheKafka, fresh_topic: FRESH) -> None:
    topic = fresh_topic("dumped")
    java_client().produce(apache_kafka.bootstrap_servers, topic, RECORDS, codec="zstd")
    segment = apache_kafka.log_dir / f"{topic}-0" / f"{0:020}.log"
    dumped = run_tool("kafka-dump-log", "--deep-iteration", "--print-data-log", "--files", str(segment)).stdout
    assert "compresscodec: zstd" in dumped
    assert "erster Wert: Über" in dumped


def test_round_trip_with_every_codec_of_the_client(
    client: Client, apache_kafka: ApacheKafka, fresh_topic: FRESH
) -> None:
    topic = fresh_topic(f"codecs-{client.name}")
    for codec in client.codecs:
        client.produce(apache_kafka.bootstrap_servers, topic, RECORDS, codec=codec, idempotent="true")
    expected = RECORDS * len(client.codecs)
    consumed = client.consume(apache_kafka.bootstrap_servers, topic, max_records=len(expected), group=topic)
    assert [item.offset for item in consumed] == list(range(len(expected)))
    as_records = [Record(item.key, item.value, item.headers, item.timestamp) for item in consumed]
    assert visible(as_records) == visible(expected)


def test_transactions_of_every_client_are_seen_by_the_java_client(
    client: Client, apache_kafka: ApacheKafka, fresh_topic: FRESH
) -> None:
    topic = fresh_topic(f"transactions-{client.name}")
    bootstrap = apache_kafka.bootstrap_servers
    client.produce(bootstrap, topic, [Record("a", "aborted")], transactional_id=topic, end="abort")
    client.produce(bootstrap, topic, [Record("c", "committed")], transactional_id=topic, end="commit")
    committed = java_client().consume(bootstrap, topic, isolation="read_committed")
    assert [(item.offset, item.value) for item in committed] == [(2, "committed")]  # 0 aborted, 1 its marker
    assert [item.value for item in java_client().consume(bootstrap, topic)] == ["aborted", "committed"]


def test_every_client_skips_aborted_records_when_reading_committed(
    client: Client, apache_kafka: ApacheKafka, fresh_topic: FRESH
) -> None:
    topic = fresh_topic(f"read-committed-{client.name}")
    bootstrap = apache_kafka.bootstrap_servers
    java_client().produce(bootstrap, topic, [Record("a", "aborted")], transactional_id=topic, end="abort")
    java_client().produce(bootstrap, topic, [Record("c", "committed")], transactional_id=topic, end="commit")
    consumed = client.consume(bootstrap, topic, max_records=1, isolation="read_committed", group=topic)
    assert [item.value for item in consumed] == ["committed"]


def test_the_java_consumer_reads_in_a_group_of_the_new_protocol(apache_kafka: ApacheKafka, fresh_topic: FRESH) -> None:
    topic = fresh_topic("new-protocol")
    java_client().produce(apache_kafka.bootstrap_servers, topic, RECORDS)
    consumed = java_client().consume(apache_kafka.bootstrap_servers, topic, 4, group=topic, protocol="consumer")
    assert len(consumed) == 4
    described = run_tool(
        "kafka-consumer-groups", "--bootstrap-server", apache_kafka.bootstrap_servers, "--describe", "--group", topic
    )
    lag_line = next(line for line in described.stdout.splitlines() if topic in line)
    assert lag_line.split()[2:6] == ["0", "4", "4", "0"]  # partition, committed offset, end, lag


def test_the_admin_tour_of_every_client_runs_through(
    client: Client, apache_kafka: ApacheKafka, fresh_topic: FRESH
) -> None:
    first = client.admin(apache_kafka.bootstrap_servers, fresh_topic(f"tour-{client.name}"))
    assert {step: line["error"] for step, line in first.items() if "error" in line} == {}
    second = client.admin(apache_kafka.bootstrap_servers, fresh_topic(f"tour-{client.name}"))
    assert first == second  # nothing in it depends on the run, so two brokers can be compared


def test_kcat_round_trip(apache_kafka: ApacheKafka, fresh_topic: FRESH) -> None:
    topic = fresh_topic("kcat")
    bootstrap = apache_kafka.bootstrap_servers
    run_kcat("-b", bootstrap, "-P", "-t", topic, "-K", ":", "-z", "lz4", "-H", "h=1", stdin="a:one\nb:two\n")
    consumed = kcat_consume(bootstrap, topic)
    assert [(item["key"], item["payload"], item["headers"]) for item in consumed] == [
        ("a", "one", ["h", "1"]),
        ("b", "two", ["h", "1"]),
    ]
    assert topic in run_kcat("-b", bootstrap, "-L").stdout


def test_kafka_passes_all_of_kafka_pythons_suite_that_applies() -> None:
    with ApacheKafka(BROKER_PROPERTIES) as kafka:
        result = run_suite(kafka.bootstrap_servers)
    assert not result.failed, result.report()
    assert not result.skipped  # what does not apply is named, with its reason, in NOT_APPLICABLE
    assert len(result.passed) == 55


def test_kafka_opens_its_own_folder_again_after_stop_and_after_kill(tmp_path: Path, fresh_topic: FRESH) -> None:
    topic = fresh_topic("reopened")
    with ApacheKafka(QUICK_EXPIRY, log_dir=tmp_path / "data") as kafka:
        java_client().produce(kafka.bootstrap_servers, topic, RECORDS)
        kafka.kill()
        kafka.start()  # the same node again, on the same ports
        assert len(java_client().consume(kafka.bootstrap_servers, topic)) == 4
        cluster_id = kafka.cluster_id
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
    with ApacheKafka(log_dir=tmp_path / "data") as kafka:  # another object, other ports, old data
        assert kafka.cluster_id == cluster_id
        assert len(java_client().consume(kafka.bootstrap_servers, topic)) == 4


def test_a_cluster_of_three_survives_the_loss_of_one(fresh_topic: FRESH) -> None:
    topic = fresh_topic("replicated")
    with ApacheKafkaCluster(3, QUICK_EXPIRY) as cluster:
        server = ("--bootstrap-server", cluster.bootstrap_servers)
        run_tool("kafka-topics", *server, "--create", "--topic", topic, "--replication-factor", "3")
        java_client().produce(cluster.bootstrap_servers, topic, RECORDS)
        cluster.nodes[0].kill()
        assert len(java_client().consume(cluster.bootstrap_servers, topic, 4)) == 4


def test_a_broker_that_cannot_start_says_why() -> None:
    with pytest.raises(PeerError, match=r"log\.cleaner\.threads"), ApacheKafka({"log.cleaner.threads": "-1"}):
        pytest.fail("started with an impossible configuration")


def test_the_jars_are_of_the_pinned_release() -> None:
    assert run_tool("kafka-topics", "--version").stdout.split()[0] == KAFKA_VERSION


def test_builds_are_made_once_and_never_left_half_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.interop.peers.workshop.BUILD", tmp_path)
    calls = []

    def fail_half_way(folder: Path) -> None:
        (folder / "part").touch()
        raise PeerError("interrupted")

    def build(folder: Path) -> None:
        calls.append(folder)
        (folder / "whole").touch()

    with pytest.raises(PeerError, match="interrupted"):
        build_once("thing", ["v1"], fail_half_way)
    first = build_once("thing", ["v1"], build)
    assert build_once("thing", ["v1"], build) == first
    assert build_once("thing", ["v2"], build) != first
    assert len(calls) == 2
    assert [path.name for path in first.iterdir()] == ["whole"]


def test_a_failing_peer_shows_what_it_printed() -> None:
    with pytest.raises(PeerError, match="so it goes"):
        run(["sh", "-c", "echo so it goes >&2; exit 3"])


def test_all_clients_can_be_built() -> None:
    assert [make().name for make in (java_client, go_client, node_client)] == ["java", "go", "node"]


@pytest.fixture(scope="module")
def kafka_twins() -> Iterator[tuple[ApacheKafka, ApacheKafka]]:
    with ApacheKafka() as one, ApacheKafka() as other:
        yield one, other


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_two_kafkas_do_not_differ(name: str, kafka_twins: tuple[ApacheKafka, ApacheKafka]) -> None:
    one, other = kafka_twins
    assert run_scenario(SCENARIOS[name], ("one", one.bootstrap_servers), ("other", other.bootstrap_servers)) == []


def trace_of(name: str, *answers: object, masks: Masks = NO_MASKS) -> Side:
    side = Side(name, "nowhere:1")
    side.trace = [Exchange(f"step {number}", "", plain(answer, masks)) for number, answer in enumerate(answers)]
    return side


def test_a_difference_is_named_with_its_path() -> None:
    kind = m.MetadataResponse

    def answer(error_code: int, topic_id: bytes) -> m.MetadataResponse:
        partition = kind.MetadataResponsePartition(error_code=error_code, partition_index=0)
        return kind(topics=[kind.MetadataResponseTopic(name="t", topic_id=topic_id, partitions=[partition])])

    ours, theirs = trace_of("ours", answer(0, b"\1" * 16)), trace_of("theirs", answer(0, b"\2" * 16))
    assert differences(ours, theirs) == []  # ids differ, and may
    assert differences(trace_of("ours", answer(5, b"\1" * 16)), theirs) == [
        "step 0: topics[0].partitions[0].error_code: ours 5, theirs 0"
    ]
    assert differences(trace_of("ours", answer(0, bytes(16))), theirs) == [
        "step 0: topics[0].topic_id: ours '<not set>', theirs '<set>'"
    ]


def test_a_side_that_ends_early_or_goes_elsewhere_is_a_difference() -> None:
    whole, early = trace_of("whole", 1, 2), trace_of("early", 1)
    assert differences(early, whole) == ["early ended early: 'step 1' was answered by whole only"]
    elsewhere = trace_of("elsewhere", 1)
    elsewhere.note("another step", 2)
    assert differences(elsewhere, whole) == ["elsewhere went on with 'another step', whole with 'step 1'"]


def test_a_scenario_that_fails_everywhere_is_broken_not_equal(apache_kafka: ApacheKafka) -> None:
    def broken(side: Side) -> None:
        raise ValueError("of course")

    both = ("one", apache_kafka.bootstrap_servers), ("other", apache_kafka.bootstrap_servers)
    with pytest.raises(AssertionError, match="of course"):
        run_scenario(broken, *both)


def test_unordered_lists_are_compared_without_order_and_others_with_it() -> None:
    forth, back = {"rows": [{"a": 1}, {"a": 2}]}, {"rows": [{"a": 2}, {"a": 1}]}
    assert differences(trace_of("x", forth), trace_of("y", back)) != []
    loose = Masks(unordered=("rows",))
    assert differences(trace_of("x", forth, masks=loose), trace_of("y", back, masks=loose)) == []
