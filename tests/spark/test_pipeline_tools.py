"""What is done to a pipeline beside running it: environments, secrets, shadows, dead letters sent back, metrics."""

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from confluent_kafka import Producer
from rich.console import Console
from typer.testing import CliRunner

from moldau.cli.pipeline import _table
from moldau.cli.pipelines import app
from moldau.spark.pipelines import PipelineError, load, loads, model, validate
from moldau.spark.pipelines.explain import explained
from moldau.spark.pipelines.metrics import exposition, served
from moldau.spark.pipelines.progress import QueryProgress
from moldau.spark.pipelines.redrive import is_allowed, redrive
from moldau.spark.pipelines.secrecy import redacted
from moldau.spark.pipelines.shadow import shadow_of
from tests.support.clients import create_topic, quiet, read_all

FILE = """
name: orders
parameters: {bootstrap: "dev:9092", folder: data}
environments:
  prod: {bootstrap: "prod:9092", folder: /srv}
kafka:
  bootstrap.servers: ${bootstrap}
  sasl.password: ${secret:file:PASSWORD}
sources:
  orders: {topic: orders}
sinks:
  - {topic: copies, from: orders}
  - {delta: "${folder}/orders", from: orders}
  - {database: "sqlite:///${folder}/x.db", table: orders, from: orders}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "password").write_text("tr0ub4dor\n")
    path = tmp_path / "orders.yaml"
    path.write_text(FILE.replace("PASSWORD", str(tmp_path / "password")))
    return path


def test_one_file_has_several_targets_and_secrets_are_never_shown(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(file).bootstrap_servers == "dev:9092"
    pipeline = load(file, environment="prod")
    assert pipeline.bootstrap_servers == "prod:9092"
    assert load(file, {"bootstrap": "x:1"}, environment="prod").bootstrap_servers == "x:1"
    assert pipeline.kafka["sasl.password"] == "tr0ub4dor"
    assert "tr0ub4dor" not in repr(pipeline)
    assert redacted("login tr0ub4dor at postgresql://amy:pw@h/x", pipeline) == "login *** at postgresql://amy:***@h/x"
    with pytest.raises(PipelineError, match="there is no environment 'prd'; did you mean 'prod'"):
        load(file, environment="prd")
    kafka = "kafka: {bootstrap.servers: 'h:1', x: '${secret:env:A_SECRET}'}"
    text = f"name: x\n{kafka}\nsources: {{a: {{rate: 1}}}}\nsinks: [console: 1]"
    with pytest.raises(PipelineError, match=r"x\.yaml:2:.*the secret cannot be read: the environment has no A_SECRET"):
        loads(text, "x.yaml")
    monkeypatch.setenv("A_SECRET", "${bootstrap}")
    assert loads(text, "x.yaml").kafka["x"] == "${bootstrap}", "a secret is taken as it is"
    url = text.replace("a: {rate: 1}", "a: {database: 'sqlite://u:pw@/x.db', query: SELECT 1, cursor: x}")
    assert "pw" not in explained(loads(url, "x.yaml"))
    listed = CliRunner().invoke(app, ["explain", str(file), "--env", "prod"])
    assert "prod:9092" in listed.output


def test_a_shadow_touches_nothing_of_the_real_one(file: Path) -> None:
    pipeline = load(file)
    shadow = shadow_of(pipeline, "replay", start="2026-11-15T12:00:00Z", until="2026-11-16")
    validate(shadow)
    source = shadow.sources["orders"]
    assert isinstance(source, model.TopicSource)
    assert (shadow.name, source.start, source.until) == ("orders-replay", "2026-11-15T12:00:00Z", "2026-11-16")
    topic, delta, database = shadow.sinks
    assert isinstance(topic, model.TopicSink)
    assert isinstance(delta, model.DeltaSink)
    assert isinstance(database, model.DatabaseSink)
    assert (topic.topic, delta.delta, database.table) == ("copies-replay", "data/orders-replay", "orders_replay")
    assert shadow.checkpoint_folder == pipeline.checkpoint_folder + "-replay"
    assert shadow.dead_letter_topic == "orders-dlt-replay"
    with pytest.raises(PipelineError, match="is not a time"):
        validate(shadow_of(pipeline, "x", until="soon"))
    round_trip = loads(FILE.replace("${secret:file:PASSWORD}", "x").replace("copies", "orders"), "o.yaml")
    with pytest.raises(PipelineError, match="reads a topic that it writes itself"):
        shadow_of(round_trip, "x")


def test_dead_letters_go_back_once_as_they_were(bootstrap: str) -> None:
    origin, letters = create_topic(bootstrap), create_topic(bootstrap)
    pipeline = loads(
        f"name: p\nkafka: {{bootstrap.servers: '{bootstrap}'}}\ndead_letters: {letters}\n"
        f"sources: {{a: {{topic: {origin}}}}}\nsinks: [console: 1]",
        "p.yaml",
    )
    producer = Producer(quiet(bootstrap))
    for number in range(6):
        headers: list[tuple[str, str | bytes | None]] = [
            ("trace", b"7"),
            ("x-original-topic", origin.encode()),
            ("__connect.errors.connector.name", b"other-x" if number == 5 else b"p-dead-letters-a"),
            ("kafka_dlt-exception-message", b"not JSON" if number % 2 else b"rule 'x' is broken"),
        ]
        producer.produce(letters, b"v%d" % number, b"k", headers=headers)
    assert producer.flush(30) == 0
    rehearsed = redrive(pipeline, reason="not JSON", rehearse=True)
    assert (rehearsed.sent, rehearsed.left_out) == ({origin: 2}, 4)
    first = redrive(pipeline, limit=2)
    assert first.sent == {origin: 2}
    rest = redrive(pipeline)
    assert (rest.sent, rest.left_out) == ({origin: 3}, 1)
    assert redrive(pipeline).sent == {}
    found = read_all(bootstrap, origin)
    assert [message.value() for message in found] == [b"v0", b"v1", b"v2", b"v3", b"v4"]
    assert all(message.headers() == [("trace", b"7")] for message in found)


def test_a_letter_cannot_choose_any_topic(bootstrap: str) -> None:
    """Whoever may write letters must not write, by the hand of who redrives, where they may not."""
    victim, letters = create_topic(bootstrap), create_topic(bootstrap)
    text = (
        f"name: p\nkafka: {{bootstrap.servers: '{bootstrap}'}}\ndead_letters: {letters}\n"
        "sources: {a: {topic: 'own, second'}, b: {topic_pattern: 'logs-.*|__.*'}}\nsinks: [{console: 1, from: a}]"
    )
    pipeline = loads(text, "p.yaml")
    assert [is_allowed(each, pipeline) for each in ("own", "second", "logs-1", victim, "__consumer_offsets")] == [
        True,
        True,
        True,
        False,
        False,
    ]
    producer = Producer(quiet(bootstrap))
    for topic in (victim, *(f"made-up-{number}" for number in range(50))):
        headers: list[tuple[str, str | bytes | None]] = [
            ("x-original-topic", topic.encode()),
            ("__connect.errors.connector.name", b"p-dead-letters-a"),
        ]
        producer.produce(letters, b"v", headers=headers)
    assert producer.flush(30) == 0
    rehearsed = redrive(pipeline, also=[victim], rehearse=True)
    assert rehearsed.sent == {victim: 1}
    done = redrive(pipeline)
    assert (done.sent.total(), done.refused.total(), done.refused[victim]) == (0, 51, 1)
    assert len(done.refused) <= 21, "names that others chose are not kept without a limit"
    assert read_all(bootstrap, victim) == []


def test_a_new_file_from_a_sample_of_a_topic(bootstrap: str, tmp_path: Path) -> None:
    topic = create_topic(bootstrap)
    producer = Producer(quiet(bootstrap))
    for number in range(5):
        row = {"id": number, "price": 1.5, "at": "2026-11-15T12:00:00Z", "tags": ["a"], "note": None}
        producer.produce(topic, json.dumps(row).encode())
    assert producer.flush(30) == 0
    file = tmp_path / "new.yaml"
    asked = ["init", "--topic", topic, "--name", "new", "-b", bootstrap, "--file", str(file)]
    told = CliRunner().invoke(app, asked)
    assert told.exit_code == 0, told.output
    source = next(iter(load(file).sources.values()))
    assert isinstance(source, model.TopicSource)
    assert isinstance(source.parse, model.JsonParse)
    assert source.parse.schema == "`id` bigint, `price` double, `at` timestamp, `tags` array<string>, `note` string"
    assert CliRunner().invoke(app, asked).exit_code == 2, "a file that is there is left alone"
    missing = CliRunner().invoke(app, ["init", "--topic", "nobody", "--name", "n", "-b", bootstrap])
    assert "there is no topic 'nobody'" in missing.output
    assert missing.exit_code == 4


def test_metrics_and_a_view_of_80_columns() -> None:
    queries = [
        QueryProgress("dead-letters-a-source-with-a-long-name", "running", 7, 1_234_567, 98_765.4, 321, 187_295),
        QueryProgress("b", "failed", late_rows=3, unmatched_lines=5, error="ValueError: too much of everything " * 5),
    ]
    text = exposition("p", queries)
    assert 'moldau_pipeline_lag_records{pipeline="p",query="dead-letters-a-source-with-a-long-name"} 187295' in text
    assert 'moldau_pipeline_up{pipeline="p",query="b"} 0' in text
    with served(0, lambda: text) as port:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            assert answer.read().decode() == text
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/")
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(_table(queries, 80))
    lines = console.export_text().splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert "1.2M" in lines[1]
    assert "187.3k" in lines[1]
    console.file.close()
