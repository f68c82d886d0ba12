"""Pipeline files: what is right is read, what is wrong is named with its line and its fix, all before Spark starts."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from moldau.spark.pipelines import PipelineError, load, loads, model, sinks, validate
from moldau.spark.pipelines.graph import resolve, sql_tables

GOOD = """\
name: orders
about: Orders into a table
parameters: {servers: "127.0.0.1:9092", delay: 10 minutes}
kafka:
  bootstrap.servers: ${servers}
  security.protocol: PLAINTEXT
sources:
  orders:
    topic: [orders-eu, orders-us]
    records_per_batch: 10_000
    parse:
      format: json
      schema:
        id: bigint not null
        price: decimal(10,2)
        at: timestamp
      new_columns: evolve
      require:
        price is positive: price > 0
    watermark: {column: at, delay: "${delay}"}
  customers:
    files: customers
    format: csv
    static: true
    options: {header: true}
steps:
  - name: known
    from: orders
    join: customers
    on: id
    how: left
  - dedup: id
  - name: per_hour
    window: {column: at, size: 1 hour}
    group_by: [country]
    aggregate:
      orders: count(*)
      p95: percentile_approx(price, 0.95)
sinks:
  - topic: per-hour
    key: country
  - from: known
    console: 5
"""


def problems_of(text: str) -> list[str]:
    with pytest.raises(PipelineError) as caught:
        validate(loads(text, "p.yaml"))
    return [str(each) for each in caught.value.problems]


def small(source: str = "rate: 1", steps: str = "", sink: str = "console: 1") -> str:
    return (
        f"name: x\nkafka: {{bootstrap.servers: h:1}}\nsources:\n  s:\n    {source}\nsteps:\n{steps}sinks:\n  - {sink}\n"
    )


def test_a_file_becomes_the_same_objects_as_python_makes() -> None:
    pipeline = loads(GOOD, "orders.yaml")
    validate(pipeline)
    orders = pipeline.sources["orders"]
    assert orders == model.TopicSource(
        topic="orders-eu,orders-us",
        records_per_batch=10_000,
        parse=model.JsonParse(
            schema="`id` bigint not null, `price` decimal(10,2), `at` timestamp",
            new_columns="evolve",
            require={"price is positive": "price > 0"},
        ),
        watermark=model.Watermark(column="at", delay="10 minutes"),
    )
    assert pipeline.kafka == {"security.protocol": "PLAINTEXT"}
    assert pipeline.bootstrap_servers == "127.0.0.1:9092"
    assert pipeline.steps[1] == model.DedupStep(dedup=("id",))
    assert pipeline.dead_letter_topic == "orders-dlt"


def test_steps_follow_each_other_unless_they_say_from() -> None:
    graph, problems = resolve(loads(GOOD, "orders.yaml"))
    assert not problems
    assert graph.steps["known"].inputs == ("orders", "customers")
    assert graph.steps["step_2"].inputs == ("known",)
    assert graph.steps["per_hour"].inputs == ("step_2",)
    assert {name: part.inputs for name, part in graph.sinks.items()} == {
        "topic-per_hour": ("per_hour",),
        "console-known": ("known",),
    }


def test_a_repeated_batch_need_not_be_the_same_where_tables_stand_beside_the_stream() -> None:
    graph, _ = resolve(loads(GOOD, "orders.yaml"))
    part = graph.sinks["topic-per_hour"]
    assert graph.rests_on_tables(part)
    assert isinstance(part.item, model.TopicSink)
    assert sinks.beside_tables(part.item) == replace(part.item, options={"checkReplay": "false"})
    told = replace(part.item, options={"checkReplay": "true"})
    assert sinks.beside_tables(told) == told
    careless = replace(part.item, delivery="at-least-once")
    assert sinks.beside_tables(careless) == careless
    alone, _ = resolve(loads(GOOD.replace("static: true", "static: false"), "orders.yaml"))
    assert not alone.rests_on_tables(alone.sinks["topic-per_hour"])


def test_variables_come_from_the_call_the_environment_and_the_file_in_this_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = small(source="topic: ${topic:-none}").replace("name: x", "name: x\nparameters: {topic: of-file}")

    def topic(**variables: str) -> str:
        source = loads(text, "p.yaml", variables).sources["s"]
        assert isinstance(source, model.TopicSource)
        return source.topic

    assert topic() == "of-file"
    monkeypatch.setenv("topic", "of-environment")
    assert topic() == "of-environment"
    assert topic(topic="of-call") == "of-call"


def test_a_variable_without_value_names_its_line_and_how_to_give_one() -> None:
    (problem,) = problems_of(small(source="topic: ${missing_one}"))
    assert problem.startswith("p.yaml:5:12: ${missing_one} has no value; set it with --set missing_one=…")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: x\n\tkafka: y\n", "p.yaml:2:1: this is not YAML"),
        ("- a\n", "p.yaml:1:1: a pipeline is a mapping; start with `name:`"),
        ("name: x\nsinks: []\n", "p.yaml:1:1: the pipeline has no `sources`; add `sources:`"),
        (small() + "sink: 1\n", "p.yaml:9:1: unknown key 'sink'; did you mean 'sinks'?"),
        (small(source="topik: a"), "p.yaml:5:5: this source does not say what it is; did you mean 'topic'?"),
        (small(source="topic: a\n    strat: latest"), "p.yaml:6:5: unknown key 'strat'; did you mean 'start'?"),
        (small(source="topic: a\n    start: middle"), "p.yaml:6:5: 'middle' is not a place to start; write earliest"),
        (small(source="topic: a\n    delta: b"), "p.yaml:6:5: this source is `topic` and `delta` at once"),
        (small(source="rate: fast"), "p.yaml:5:11: `rate` is a whole number of at least 1, not 'fast'"),
        (small(source="topic: a\n    topic: b"), "p.yaml:6:5: 'topic' stands here twice; the first is in line 5"),
        (
            small(source="topic: a\n    parse: {format: jsn}"),
            "p.yaml:6:21: unknown format 'jsn'; did you mean 'json'?",
        ),
        (
            small(source="topic: a\n    parse:\n      format: json\n      schema:\n        id: bigit"),
            "p.yaml:9:13: unknown type 'bigit'; did you mean 'bigint'?",
        ),
        (
            small(source="topic: a\n    parse: {format: regex, pattern: '(?<a>x'}"),
            "p.yaml:6:28: not a regular expression: missing ), unterminated subpattern",
        ),
        (
            small(source="topic: a\n    parse: {format: log, line: '<a><b>'}"),
            "p.yaml:6:26: <a> and <b> touch; something has to stand between",
        ),
        (
            small(source="topic: a\n    parse: {format: json, schema: 'a int', on_error: die}"),
            "p.yaml:6:54: 'die' is not possible for `on_error`; known are: dead_letter, drop, fail",
        ),
        (
            small(source="topic: a\n    parse: {format: json, schema: 'a int', require: {r: b > 1}}"),
            "p.yaml:6:44: rule 'r' names none of the columns: b > 1; columns are: a",
        ),
        (
            small(source="rate: 1\n    watermark: {column: timestmp}"),
            "p.yaml:6:17: there is no column 'timestmp'; did you mean 'timestamp'?",
        ),
        (
            small(source="rate: 1\n    watermark: {column: timestamp, delay: soon}"),
            "p.yaml:6:43: `delay`: 'soon' is not a length of time; write `10 seconds`",
        ),
        (small(steps="  - filter: 'value > (1'\n"), "p.yaml:7:5: filter: a ')' is missing"),
        (small(steps="  - sql: SELECT * FROM t\n"), "p.yaml:7:5: the SQL reads 't', which nothing above is called"),
        (small(steps="  - sql: DROP TABLE s\n"), "p.yaml:7:5: this is not a SELECT; begin with SELECT or WITH"),
        (small(steps="  - {filter: a > 1, from: q}\n"), "p.yaml:7:21: nothing above is called 'q'; known are: s"),
        (
            small(steps="  - {python: no_such_mod:f}\n"),
            "p.yaml:7:6: there is no module 'no_such_mod'; put no_such_mod.py",
        ),
        (small(steps="  - {python: json:lods}\n"), "p.yaml:7:6: module 'json' has no 'lods'; did you mean 'loads'?"),
        (small(steps="  - {cast: {value: number}}\n"), "p.yaml:7:6: unknown type 'number'"),
        (small(steps="  - dedup: value\n"), "p.yaml:7:5: dedup of a stream would remember every key for ever; give"),
        (
            small(steps="  - aggregate: {n: count(*)}\n"),
            "p.yaml:7:5: this aggregate is appended to a sink, so Spark has to know when a group is final; give",
        ),
        (
            small(steps="  - {aggregate: {n: count(*)}, window: {column: timestamp}}\n"),
            "p.yaml:7:40: a window has a `size`, or a `gap` for sessions; give one of them",
        ),
        (small(sink="{console: 1, mode: complete}"), "p.yaml:8:18: mode complete is for aggregates"),
        (small(sink="database: nowhere"), "p.yaml:8:5: not the URL of a database SQLAlchemy knows"),
        (small(sink="{database: 'sqlite://', key: a}"), "p.yaml:8:5: the database sink has no `table`"),
        (small(sink="{iceberg: t, warehouse: w}"), "p.yaml:8:6: 't' is not namespace.table"),
        (small(source="topic: a", sink="topic: a"), "p.yaml:8:5: topic 'a' is also its source: records would go round"),
        (
            small(source="{files: f, static: true, format: csv}"),
            "p.yaml:8:5: nothing streams into this sink (s)",
        ),
        (
            small().replace("sinks:\n  - console", "sinks:\n  console"),
            "p.yaml:8:3: `sinks` is a list; begin each with a",
        ),
        (
            small().replace("h:1", "localhost"),
            "p.yaml:2:1: 'localhost' has no port; write `bootstrap.servers: localhost:9092`",
        ),
        (
            small().replace("bootstrap.servers", "bootstrap_servers"),
            "p.yaml:2:1: no client setting is called 'bootstrap_servers'; write 'bootstrap.servers'",
        ),
        (
            small().replace("kafka: ", "spark: {shuffle.partitions: 4}\nkafka: "),
            "p.yaml:2:1: 'shuffle.partitions' is not a setting of Spark: all begin with `spark.`; write `spark.sql.",
        ),
        (
            small().replace("kafka: ", "spark: {spark.sql.adaptive.enabled: true}\nkafka: "),
            "p.yaml:2:1: spark.sql.adaptive.enabled may give a repeated batch other tasks",
        ),
        (small(source="topic: my orders"), "p.yaml:5:5: 'my orders' cannot be a topic; use at most 249 letters"),
        (
            small(source="topic: a\n    options: {startingoffset: latest}"),
            "p.yaml:6:5: option 'startingoffset' does not exist: did you mean 'startingOffsets'?",
        ),
        (
            small(sink="{topic: b, options: {kafka.transactional.id: x}}"),
            "p.yaml:8:16: option 'kafka.transactional.id' is not supported: the sink makes one",
        ),
        (
            small(source="topic: a\n    parse: {format: json, schema: {at: datetime}}"),
            "p.yaml:6:40: unknown type 'datetime'; write 'timestamp'",
        ),
        (
            small(steps="  - {name: a, from: b, filter: x}\n  - {name: b, filter: x}\n"),
            "p.yaml:7:15: nothing above is called 'b'; 'b' stands below: move it up",
        ),
        (
            small(steps="  - {group_by: vale, aggregate: {n: count(*)}}\n", sink="{console: 1, mode: update}"),
            "p.yaml:7:6: group_by: there is no column 'vale' in 's'; did you mean 'value'?",
        ),
        (
            small(steps="  - select: [value AS v, timestamp]\n", sink="{topic: t, key: value}"),
            "p.yaml:9:16: key: there is no column 'value' in 'step_1'; known are: timestamp, v",
        ),
        (
            small(steps="  - {rename: {value: v}}\n  - {drop: v}\n", sink="{delta: t, partition_by: v}"),
            "p.yaml:10:16: partition_by: there is no column 'v' in 'step_2'; known are: timestamp",
        ),
        (
            small(sink="{database: 'jdbc:postgresql://h/d', table: t}"),
            "p.yaml:8:6: this is Java's kind of URL; write postgresql+psycopg://user@host/name",
        ),
        (
            small(sink="{database: 'mysql://u@h/d', table: t}"),
            "p.yaml:8:6: the database's driver is missing: MySQLdb; write mysql+pymysql://…, and pip install pymysql",
        ),
        ("name: x\nsources: &all {s: *all}\n", "p.yaml:2:10: this goes too deep, or repeats itself without end"),
        (f"name: x\nsources: {'[' * 3000}{']' * 3000}\n", "p.yaml:1:1: this goes too deep, or repeats itself"),
        ("name: x\nabout: a\x07b\n", "p.yaml:2:9: this is not YAML: a text has no character '\\x07'"),
        (
            "name: x\nkafka: {password: ${p}}\n",
            "p.yaml:2:20: this is not YAML: expected ',' or '}', but got '{'; inside",
        ),
        (small(source="rate: " + "9" * 5000), "p.yaml:5:11: `rate` is a whole number of at least 1, with at most 18"),
        (small(sink="{kind: table, table: t}"), "p.yaml:8:12: a sink says what it is by its key; write `table: …`"),
        (
            small(sink="{console: 1, name: dead-letters-s}"),
            "p.yaml:8:18: 'dead-letters-s' is a query for bad records; choose one that does not begin with",
        ),
        (
            small(sink="{console: 1, name: shared-s}") + "share_reads: true\n",
            "p.yaml:8:18: 'shared-s' is a query for several sinks; choose one that does not begin with",
        ),
        (
            small(source="topic: a\n    parse: json") + "dead_letters: a b\n",
            "p.yaml:10:1: 'a b' cannot be a topic",
        ),
        (small(source="topic: .."), "p.yaml:5:5: '..' cannot be a topic"),
        (
            small(source="topic: a\n    parse: {format: registry, message: Order}") + "registry: http://h:1\n",
            "p.yaml:6:31: only Protobuf has messages, and values are avro",
        ),
        (
            small(steps="  - {aggregate: {n: count(*)}, window: {column: timestamp, size: 0 minutes}}\n"),
            "p.yaml:7:60: a window's `size` is more than nothing",
        ),
        (
            small(
                steps="  - {aggregate: {n: count(*)}, window: {column: timestamp, size: 1 minute, slide: 2 minutes}}\n"
            ),
            "p.yaml:7:76: between two windows, 2 minutes apart, rows would be in none; let `slide` be at most 1 minute",
        ),
        (
            small(sink="{table: t}"),
            "p.yaml:8:6: rows of a topic's table say where they stood, and these have no _topic, _partition, _offset",
        ),
        (
            small(sink="{iceberg: a.b, warehouse: w, partition_by: vale}"),
            "p.yaml:8:34: partition_by: there is no column 'vale' in 's'; did you mean 'value'?",
        ),
        (
            small() + "environments: {prod: {topc: a}}\nparameters: {topic: a}\n",
            "p.yaml:9:23: environment 'prod': nothing in the file asks for ${topc}; did you mean 'topic'?",
        ),
        (small() + "environments: [prod]\n", "p.yaml:9:15: `environments` is a mapping; write"),
        (
            small() + "environments: {prod: {a: [b]}}\n",
            "p.yaml:9:26: environment 'prod': `a` is one value, not several",
        ),
        (small() + "about: ${a}\nparameters: {a: '${a}'}\n", "p.yaml:9:8: ${a} leads to itself"),
        (
            small() + "about: ${secret:vault:a}\n",
            "p.yaml:9:8: this is no secret that could be read; write ${secret:env:",
        ),
        (
            small(source="topic: a").replace("kafka: {bootstrap.servers: h:1}", "about: x"),
            "p.yaml:1:1: the pipeline uses topics but does not say where the cluster is; add `kafka:`",
        ),
    ],
)
def test_a_mistake_is_named_with_its_line_and_its_fix(text: str, expected: str) -> None:
    found = problems_of(text)
    assert any(each.startswith(expected) for each in found), found


def test_where_a_name_leads_nowhere_nothing_else_is_said_about_it() -> None:
    assert len(problems_of(small(sink="{console: 1, from: q}"))) == 1


def test_what_is_merged_into_a_mapping_gives_way_to_what_stands_there() -> None:
    text = (
        small(source="topic: a\n    start: latest")
        .replace("  s:\n", "  s: &first\n")
        .replace("steps:", "  t: {<<: *first, topic: b}\nsteps:")
    )
    source = loads(text.replace("console: 1", "{console: 1, from: t}"), "p.yaml").sources["t"]
    assert isinstance(source, model.TopicSource)
    assert (source.topic, source.start) == ("b", "latest")


def test_an_environment_needs_no_secrets_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    text = small().replace("{bootstrap.servers: h:1}", '{bootstrap.servers: h:1, sasl.password: "${pw}"}') + (
        "parameters: {pw: '${secret:env:OF_NOBODY}'}\n"
        "environments: {here: {pw: easy}, prod: {pw: '${secret:env:OF_PROD}'}}\n"
    )
    assert loads(text, "p.yaml", environment="here").kafka["sasl.password"] == "easy"
    assert dict(loads(text, "p.yaml", environment="here").parameters) == {"pw": "easy"}
    with pytest.raises(PipelineError, match="the environment has no OF_PROD"):
        loads(text, "p.yaml", environment="prod")
    monkeypatch.setenv("OF_PROD", "null ")
    prod = loads(text, "p.yaml", environment="prod")
    assert (prod.kafka["sasl.password"], prod.secrets) == ("null ", frozenset({"null "}))  # as it is


def test_a_secret_that_is_empty_is_told_and_its_file_is_looked_for_beside_the_pipeline(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = small() + "about: ${secret:env:EMPTY_ONE}\n"
    monkeypatch.setenv("EMPTY_ONE", "")
    with pytest.raises(PipelineError, match="the secret cannot be read: EMPTY_ONE is empty"):
        loads(text, "p.yaml")
    (tmp_path / "secret.txt").write_text("kept\n")
    (tmp_path / "p.yaml").write_text(small() + "about: ${secret:file:secret.txt}\n")
    assert load(tmp_path / "p.yaml").about == "kept"


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file() -> None:
    text = small(source="rate: fast", steps="  - {filtr: a}\n", sink="{console: 1, mod: append}")
    assert [each.split(": ")[0] for each in problems_of(text)] == ["p.yaml:5:11", "p.yaml:7:5", "p.yaml:9:18"]


def test_a_file_that_is_not_there_is_no_traceback(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="cannot be read: No such file or directory; give the path"):
        load(tmp_path / "none.yaml")


def test_functions_beside_the_file_are_found(tmp_path: Path) -> None:
    (tmp_path / "beside_the_file.py").write_text("def double(rows):\n    return rows\n")
    (tmp_path / "p.yaml").write_text(small(steps="  - python: beside_the_file:double\n"))
    validate(load(tmp_path / "p.yaml"))


def test_a_stateful_processor_needs_a_package_that_spark_does_not_bring(monkeypatch: pytest.MonkeyPatch) -> None:
    text = small(steps="  - {stateful: 'json:JSONDecoder', key: value, output: v long}\n")
    monkeypatch.setitem(sys.modules, "google.protobuf.descriptor", None)
    (problem,) = problems_of(text)
    assert problem.startswith("p.yaml:7:6: Spark's StatefulProcessor needs the package protobuf; pip install protobuf")


@pytest.mark.parametrize(
    "steps",
    [
        "  - {add: {v: value + 1}}\n  - {group_by: [V, 'value % 2 AS odd'], aggregate: {n: max(v)}}\n  - select: odd\n",
        "  - {name: j, from: s, join: s, on: s.value = 3}\n  - {dedup: '*', within_watermark: false}\n",
        "  - sql: SELECT 1 AS anything FROM s\n  - {cast: {anything: int}}\n  - {rename: {whatever: x}}\n",
        "  - {select: ['`value`', timestamp.x, current_date]}\n",
    ],
)
def test_columns_that_may_be_there_are_not_called_wrong(steps: str) -> None:
    validate(loads(small(steps=steps, sink="{console: 1, mode: update}"), "p.yaml"))


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("SELECT * FROM a", ["a"]),
        ("select x from a, b where a.x = b.x", ["a", "b"]),
        ("SELECT * FROM a JOIN b USING (x) LEFT JOIN `c` ON a.x = c.x", ["a", "b", "c"]),
        ("WITH q AS (SELECT * FROM a), r AS (SELECT * FROM q) SELECT * FROM r, b", ["a", "b"]),
        ("SELECT * FROM (SELECT x, y FROM a) WHERE x IN (SELECT x FROM b)", ["a", "b"]),
        ("SELECT extract(year FROM at), trim(both FROM n) FROM a", ["a"]),
        ("SELECT x IS DISTINCT FROM y FROM a -- FROM b", ["a"]),
        ("SELECT 'x FROM z', count(*), max(y) FROM a GROUP BY 1, 2", ["a"]),
        ("SELECT * FROM range(3)", []),
        ("SELECT * FROM a LATERAL VIEW explode(xs) t AS x", ["a"]),
        ("FROM a SELECT x, y", ["a"]),
        ("SELECT * FROM a UNION ALL SELECT * FROM b", ["a", "b"]),
    ],
)
def test_the_tables_of_a_select_are_found(sql: str, tables: list[str]) -> None:
    assert sql_tables(sql) == tables
