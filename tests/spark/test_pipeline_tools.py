"""What is done to a pipeline beside running it: environments, secrets, shadows, dead letters sent back, metrics."""

import json
import os
import time
import traceback
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer
from rich.console import Console
from typer.testing import CliRunner

from moldau.cli.pipeline import _table
from moldau.cli.pipelines import app
from moldau.spark.pipelines import PipelineError, load, loads, model, validate
from moldau.spark.pipelines.errors import Mark, Problem
from moldau.spark.pipelines.explain import explained
from moldau.spark.pipelines.json_text import infer_schema, without_nulls
from moldau.spark.pipelines.metrics import exposition, served
from moldau.spark.pipelines.progress import QueryProgress
from moldau.spark.pipelines.redrive import is_allowed, redrive
from moldau.spark.pipelines.scaffold import pipeline_text
from moldau.spark.pipelines.schema import parse_schema
from moldau.spark.pipelines.secrecy import keeping_secrets, redacted
from moldau.spark.pipelines.shadow import shadow_of
from moldau.spark.pipelines.stretch import keep_to, time_of
from moldau.toolkit import dead_letters
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
    for command in ("validate", "explain", "status", "test", "run", "redrive"):
        told = CliRunner().invoke(app, [command, str(file), "--env", "prd"])
        assert "there is no environment 'prd'" in told.output, command


@pytest.mark.parametrize(
    ("change", "command"),
    [
        ("outage: 'SECRET'", "validate"),
        ("share_reads: 'SECRET'", "validate"),
        ("kafka: {bootstrap.servers: 'SECRET'}", "validate"),
        ("kafka: {bootstrap.servers: '127.0.0.1:1', security.protocol: 'SECRET'}", "validate"),
        ("kafka: {bootstrap.servers: '127.0.0.1:1', security.protocol: 'SECRET'}", "redrive"),
        ("kafka: {bootstrap.servers: 'SECRET:1'}", "run"),
        ("sources: {a: {topic: a, start: 'SECRET'}}", "validate"),
        ("sources: {a: {topic: a, parse: {format: json, schema: 'SECRET'}}}", "validate"),
        ("sources: {a: {topic: a, options: {failOnDataLoss: 'SECRET'}}}", "run"),
        ("checkpoint: 'SECRET'", "explain"),
        ("sinks: [{topic: 'a b SECRET', from: a}]", "validate"),
    ],
)
def test_a_secret_in_a_wrong_place_is_not_told_by_what_complains_about_it(
    change: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "Tr0ub\"4 dor\n'second line"
    monkeypatch.setenv("A_SECRET", secret)
    parts = {
        "name": "name: p",
        "kafka": "kafka: {bootstrap.servers: '127.0.0.1:1'}",
        "sources": "sources: {a: {topic: a}}",
        "sinks": "sinks: [{console: 1, from: a}]",
    }
    parts[change.split(":", maxsplit=1)[0]] = change.replace("SECRET", "${secret:env:A_SECRET}")
    file = tmp_path / "p.yaml"
    file.write_text("\n".join(parts.values()))
    told = CliRunner().invoke(app, [command, str(file)])
    shown = (told.output + str(told.exception or "")).lower()
    assert "***" in shown
    assert "p.yaml:" in shown or command in ("explain", "redrive")
    for word in ("tr0ub", "second line"):
        assert word not in shown


def test_a_secret_is_found_however_it_is_written() -> None:
    pipeline = replace(load_text("x"), secrets=frozenset({"pä ss/w'o\\rd"}))
    for form in (
        "pä ss/w'o\\rd",
        "PÄ SS/W'O\\RD",
        repr("pä ss/w'o\\rd"),
        json.dumps("pä ss/w'o\\rd"),
        "p%C3%A4%20ss%2Fw%27o%5Crd",
    ):
        assert redacted(f"<{form}>", pipeline).strip("<>\"'") == "***"
    assert (
        redacted("mysql+pymysql://amy:p@ss/w@host/x and redis://:pw@h")
        == "mysql+pymysql://amy:***@host/x and redis://:***@h"
    )


def load_text(name: str) -> model.Pipeline:
    return loads(f"name: {name}\nsources: {{a: {{rate: 1}}}}\nsinks: [console: 1]", "x.yaml")


def test_an_error_that_tells_a_secret_is_replaced_and_leads_nowhere() -> None:
    pipeline = replace(load_text("x"), secrets=frozenset({"tr0ub4dor"}))

    @keeping_secrets
    def work(_: model.Pipeline, error: Exception) -> None:
        try:
            raise ValueError("login amy/tr0ub4dor")
        except ValueError as cause:
            raise error from cause

    for error in (KeyError("no more"), PipelineError([Problem(Mark("f", 1, 1), "bad tr0ub4dor")], concerns="login")):
        with pytest.raises(PipelineError) as told:
            work(pipeline, error)
        assert "tr0ub4dor" not in "".join(traceback.format_exception(told.value))
    assert told.value.concerns == "login"


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


def test_a_shadow_keeps_to_the_stretch_it_was_begun_with(file: Path, tmp_path: Path) -> None:
    """Its checkpoint goes on at the end of the first stretch: the second would be empty, and say that all went well."""
    real = replace(load(file), checkpoint=str(tmp_path / "checkpoint"))
    shadow = shadow_of(real, "backfill", start="2026-11-15", until="2026-11-16")
    assert not keep_to(shadow, "2026-11-15", "2026-11-16")
    assert keep_to(shadow, "2026-11-15", "2026-11-16"), "a run that was killed goes on"
    for start, until in (("2026-11-14", "2026-11-16"), ("2026-11-15", "2026-11-17"), ("2026-11-15", "")):
        with pytest.raises(PipelineError, match="was begun from 2026-11-15 until 2026-11-16, and can only"):
            keep_to(shadow, start, until)
    assert not keep_to(shadow_of(real, "again"), "2026-11-14", "")


def test_another_stretch_into_the_same_shadow_is_refused(bootstrap: str, tmp_path: Path) -> None:
    topic = create_topic(bootstrap)
    path = tmp_path / "p.yaml"
    kafka = f"kafka: {{bootstrap.servers: '{bootstrap}'}}"
    text = f"name: p\n{kafka}\nsources: {{a: {{topic: '{topic}'}}}}\nsinks: [{{topic: out}}]\n"
    path.write_text(f"{text}checkpoint: {tmp_path / 'c'}\n")
    keep_to(shadow_of(load(path), "backfill"), "2026-11-15", "2026-11-16")
    command = ["backfill", str(path), "--from", "2026-11-16", "--until", "2026-11-17"]
    told = CliRunner().invoke(app, command)
    assert told.exit_code == 2
    assert "choose another name by `--into`" in told.output


@pytest.mark.parametrize("text", ["2026-13-01", "2026-02-30T12:00:00Z", "2026-11-15T25:00", "0001-01-01", "1969-01-01"])
def test_a_time_that_is_none_is_told_before_spark_starts(file: Path, text: str) -> None:
    assert time_of(text) is None
    with pytest.raises(PipelineError, match="is not a place to start"):
        validate(shadow_of(load(file), "x", start=text))
    with pytest.raises(PipelineError, match="is not a time"):
        validate(shadow_of(load(file), "x", until=text))


def test_a_stretch_that_ends_before_it_begins_is_refused(file: Path) -> None:
    for until in ("2026-11-15T12:00:00Z", "2026-11-15T13:30:00+02:00"):
        with pytest.raises(PipelineError, match="there is nothing from"):
            validate(shadow_of(load(file), "x", start="2026-11-15T12:00:00Z", until=until))


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


def test_what_one_redrive_leaves_out_the_next_one_sends(bootstrap: str) -> None:
    """By another reason, to a topic that was not allowed, and never what `moldau dlq redrive` has sent already."""
    origin, elsewhere, letters = create_topic(bootstrap), create_topic(bootstrap), create_topic(bootstrap)
    pipeline = loads(
        f"name: p\nkafka: {{bootstrap.servers: '{bootstrap}'}}\ndead_letters: {letters}\n"
        f"sources: {{a: {{topic: {origin}}}}}\nsinks: [console: 1]",
        "p.yaml",
    )
    producer = Producer(quiet(bootstrap))
    for number in range(9):
        topic = elsewhere if number % 3 == 2 else origin
        headers: list[tuple[str, str | bytes | None]] = [
            ("x-original-topic", topic.encode()),
            ("kafka_dlt-original-topic", topic.encode()),
            ("kafka_dlt-original-partition", b"\0\0\0\0"),
            ("kafka_dlt-original-offset", number.to_bytes(8, "big")),
            ("__connect.errors.connector.name", b"p-dead-letters-a"),
            ("kafka_dlt-exception-message", b"rule" if number % 3 == 1 else b"not JSON"),
        ]
        producer.produce(letters, b"v%d" % number, headers=headers)
    assert producer.flush(30) == 0
    by_hand = dead_letters.redrive(quiet(bootstrap), letters, lambda letter: letter.offset == 3)
    assert by_hand.sent == 1
    first = redrive(pipeline, reason="not JSON")
    assert (first.sent, first.refused, first.before, first.left_out) == ({origin: 2}, {elsewhere: 3}, 1, 3)
    second = redrive(pipeline, reason="rule", limit=2)
    assert second.sent == {origin: 2}
    assert redrive(pipeline, also=[elsewhere]).sent == {origin: 1, elsewhere: 3}
    assert redrive(pipeline, also=[elsewhere]).sent == {}
    assert dead_letters.redrive(quiet(bootstrap), letters).sent == 0
    values = [message.value() for topic in (origin, elsewhere) for message in read_all(bootstrap, topic)]
    assert values == [b"v3", b"v0", b"v6", b"v1", b"v4", b"v7", b"v2", b"v5", b"v8"]


def test_a_redrive_where_nobody_answers_is_told_within_seconds(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("name: p\nkafka: {bootstrap.servers: '127.0.0.1:1'}\nsources: {a: {topic: a}}\nsinks: [console: 1]")
    began = time.monotonic()
    told = CliRunner().invoke(app, ["redrive", str(file)])
    assert "no broker answers at 127.0.0.1:1" in told.output
    assert told.exit_code == 3
    assert time.monotonic() - began < 15


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
    assert 'query="dead-letters-a-source-with-a-long-name"} 1234567\n' in text, "a counter keeps all its digits"
    assert "} 98765.4\n" in text
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


def test_a_view_of_80_columns_uses_them_and_takes_no_text_for_markup() -> None:
    queries = [
        QueryProgress("dead-letters-orders-of-today", "running", 7, 94_000, 9_000.0, 8_000, 0, state_rows=1),
        QueryProgress("dead-letters-orders-of-yesterday", "running", 7, 94_000, 9_000.0, 8_000, 0),
        QueryProgress("c[bold]", "failed", error="ValueError: no [customer] in [/tmp/x]\x1b[2J"),
    ]
    with Path(os.devnull).open("w") as nowhere:
        console = Console(width=80, record=True, file=nowhere)
        console.print(_table(queries, 80))
    text = console.export_text()
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "dead-letters-orders-of-t" in text
    assert "dead-letters-orders-of-y" in text
    assert "c[bold]" in text
    assert "ValueError: no [customer] in [/tmp/x]\\u001b[2J" in text


def test_what_is_wrong_with_a_file_is_listed_as_it_is(tmp_path: Path) -> None:
    text = "name: p\nabout: '[red]one[/b]'\nsources: {a: {rate: 1}}\nsinks: [console: 1]\n"
    (tmp_path / "a.yaml").write_text(text)
    (tmp_path / "b.yaml").write_text(text.replace("sources: {a", "sources: {'[/b]'").replace("rate: 1", "rat: 1"))
    shown = CliRunner().invoke(app, ["list", str(tmp_path)], env={"COLUMNS": "200"})
    assert shown.exit_code == 0, shown.output
    assert "[red]one[/b]" in shown.output
    assert "[/b]" in shown.output.split("not valid:")[1]


@pytest.mark.parametrize(
    ("name", "topic", "value"),
    [
        ("p", "null", b'{"a": 1}'),
        ("null", "t", b'{"a": 1}'),
        ("p", "1e5", b'{"a": {"b c": 1, "x:y": 2, "d,e>": 3, "1": 4}}'),
        ("p", "t", b'{"a": [{"x`y": {"z": 1}}], "b": {"not": null}}'),
        ("p", "t", b'{"a`b": 1, "c": 2}'),
    ],
)
def test_a_new_file_can_be_read_whatever_topics_and_fields_are_called(name: str, topic: str, value: bytes) -> None:
    found = loads(pipeline_text(name, {"bootstrap.servers": "h:1"}, topic, [value], {}), "p.yaml")
    validate(found)
    (source,) = found.sources.values()
    assert isinstance(source, model.TopicSource)
    assert (found.name, source.topic) == (name, topic)
    assert isinstance(source.parse, model.JsonParse)
    wanted = infer_schema([value])
    assert wanted is not None
    told = [each for each in without_nulls(wanted).fields if "`" not in each.name]
    assert parse_schema(source.parse.schema).fields == told
