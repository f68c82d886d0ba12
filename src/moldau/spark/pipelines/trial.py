"""A pipeline tried on a few rows: what is given to its sources, and what is expected of its sinks, in a file beside it.

    # orders.test.yaml
    - name: totals of a customer
      given:
        orders:
          - {order_id: 1, customer: amy, amount: 2.5, at: "2026-11-15T12:00:00Z"}   # a mapping is a JSON value
          - "{nonsense"                                                             # a text is the value itself
      expect:
        per_minute: [{customer: amy, orders: 1}]      # by the name of a sink, or of a step
        dead-letters-orders: ["not JSON"]             # a part of the reason

No broker and no checkpoint: the rows are a table, and steps treat it as one. So all windows are there at once, nothing
is late, and stateful functions, which need a stream, cannot be tried.

A row is as expected if the columns that are named have these values; there must be as many rows as are expected.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from moldau.spark.pipelines import model, parse
from moldau.spark.pipelines.build import build_sink
from moldau.spark.pipelines.errors import Mark, PipelineError, Problem
from moldau.spark.pipelines.graph import Graph, Part
from moldau.spark.pipelines.schema import parse_schema
from moldau.spark.pipelines.validate import validate
from moldau.spark.suggestions import did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_RECORD = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int, "
    "headers array<struct<key: string, value: binary>>"
)
_LETTERS = "dead-letters-"
_SHOWN_MAX = 20


@dataclass(slots=True, frozen=True)
class Trial:
    name: str
    given: Mapping[str, list[Any]]
    expect: Mapping[str, list[Any]]


@dataclass(slots=True, frozen=True)
class Outcome:
    """How a trial went; no differences means that it went as expected."""

    name: str
    differences: tuple[str, ...]


def file_of(pipeline_file: str) -> Path:
    """Where the trials of a pipeline file are looked for."""
    path = Path(pipeline_file)
    return path.with_name(f"{path.stem}.test.yaml")


def read_trials(file: Path, pipeline: model.Pipeline, graph: Graph) -> list[Trial]:
    """The trials of a file; raises PipelineError."""

    def wrong(message: str, fix: str = "") -> PipelineError:
        return PipelineError([Problem(Mark(str(file), 1, 1), message, fix)])

    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise wrong(f"cannot be read: {error.strerror}", "put the trials of x.yaml into x.test.yaml") from None
    except yaml.YAMLError as error:
        raise wrong(f"this is not YAML: {error}") from None
    if not isinstance(content, list) or not all(isinstance(each, dict) for each in content):
        raise wrong("a file of trials is a list", "begin each with `- name:`, then `given:` and `expect:`")
    results = {*graph.sinks, *graph.steps, *graph.sources, *(f"{_LETTERS}{name}" for name in graph.sources)}
    found = []
    for number, each in enumerate(content, 1):
        name = str(each.get("name", f"trial {number}"))
        given, expect = each.get("given"), each.get("expect")
        for key, part, known in (("given", given, set(graph.sources)), ("expect", expect, results)):
            if not isinstance(part, dict) or not all(isinstance(rows, list) for rows in part.values()):
                raise wrong(f"{name}: `{key}` is a mapping of names to lists of rows")
            for unknown in sorted(set(part) - known):
                raise wrong(f"{name}: `{key}` names {unknown!r}, which is not there", did_you_mean(unknown, known))
        found.append(Trial(name, given, expect))
    return found


def run_trials(spark: SparkSession, pipeline: model.Pipeline, trials: list[Trial]) -> list[Outcome]:
    """Try them one after the other."""
    graph = validate(pipeline)
    for step in pipeline.steps:
        if isinstance(step, model.StatefulStep):
            problem = Problem(step.where.mark, "a stateful step needs a stream: it cannot be tried on a table")
            raise PipelineError([problem])
    return [_run(spark, pipeline, graph, trial) for trial in trials]


def _run(spark: SparkSession, pipeline: model.Pipeline, graph: Graph, trial: Trial) -> Outcome:
    rows: dict[str, DataFrame] = {}
    letters: dict[str, DataFrame] = {}
    for name, source in pipeline.sources.items():
        rows[name], bad = _given_rows(spark, pipeline, name, source, trial.given.get(name, []))
        if bad is not None:
            letters[f"{_LETTERS}{name}"] = bad
    differences: list[str] = []
    for name, expected in trial.expect.items():
        if name in letters or name.startswith(_LETTERS):
            reasons = [row["_error"] for row in letters[name].collect()] if name in letters else []
            differences += _unlike_reasons(name, [str(each) for each in expected], reasons)
            continue
        part = graph.sinks.get(name) or Part(name, graph.part(name).item, (name,))
        found = build_sink(spark, pipeline, graph, part, rows).collect()
        differences += _unlike(name, expected, [_plain(row.asDict(recursive=True)) for row in found])
    return Outcome(trial.name, tuple(differences))


def _given_rows(
    spark: SparkSession, pipeline: model.Pipeline, name: str, source: model.Source, rows: list[Any]
) -> tuple[DataFrame, DataFrame | None]:
    if not isinstance(source, model.TopicSource | model.PatternSource):
        return _table(spark, name, source, rows), None
    topic = source.topic.split(",")[0] if isinstance(source, model.TopicSource) else name
    moment = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    values = [_bytes_of(each) for each in rows]
    records = spark.createDataFrame(
        [(None, value, topic, 0, offset, moment, 0, None) for offset, value in enumerate(values)], _RECORD
    )
    how = source.parse
    if how is None:
        return records, None
    frame = parse.parsed(records, how, _given(pipeline, source, how, values))
    given = _given(pipeline, source, how, values)
    bad = parse.bad(frame, how, given) if how.on_error == "dead_letter" else None
    return parse.good(frame, source.metadata), bad


def _bytes_of(row: Any) -> bytes:
    return row.encode() if isinstance(row, str) else json.dumps(row, default=str).encode()


def _given(
    pipeline: model.Pipeline,
    source: model.TopicSource | model.PatternSource,
    how: model.Parse,
    values: list[bytes],
) -> parse.Given:
    """What a run would find out by sampling is found in the rows that are given."""
    from moldau.spark.pipelines import sources
    from moldau.spark.pipelines.templates import Learner

    match how:
        case model.JsonParse() if how.schema == "sample":
            from pyspark.sql.types import StructType

            found = sources.schema_of_sample(list(values))
            return parse.Given(schema=StructType.fromJson(found or {"type": "struct", "fields": []}))
        case model.LogParse() if how.templates == ("learn",):
            learner = Learner.from_json(sources.templates_of_sample(list(values), how))
            return parse.Given(templates=learner.templates())
        case model.LogParse():
            return parse.Given(templates=parse.read_templates(how, pipeline.folder))
        case model.AvroParse() | model.RegistryParse():
            raise PipelineError([Problem(source.where.of("parse"), f"values of {how.FORMAT} cannot be given as text")])
        case _:
            return parse.Given()


def _table(spark: SparkSession, name: str, source: model.Source, rows: list[Any]) -> DataFrame:
    schema = getattr(source, "schema", "")
    if isinstance(source, model.RateSource):
        schema = "timestamp timestamp, value bigint"
    if schema:
        kinds = parse_schema(schema)
        # As JSON, so that times and decimals may be written as people write them.
        texts = spark.createDataFrame([(json.dumps(each, default=str),) for each in rows], "value string")
        from pyspark.sql import functions as f

        return texts.select(f.from_json("value", kinds).alias("row")).select("row.*")
    if not rows:
        raise PipelineError([Problem(source.where.mark, f"{name!r} has no schema: give it at least one row")])
    return spark.createDataFrame(rows)


# ---- comparing ------------------------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {key: _plain(each) for key, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case datetime.datetime():
            return value.replace(tzinfo=None).isoformat(sep=" ")
        case datetime.date():
            return value.isoformat()
        case bytes() | bytearray():
            return bytes(value).decode(errors="replace")
        case _:
            return value


def _same(expected: Any, found: Any) -> bool:
    expected = _plain(expected)
    if isinstance(expected, dict) and isinstance(found, dict):
        return all(key in found and _same(each, found[key]) for key, each in expected.items())
    if isinstance(expected, float) and isinstance(found, int | float):
        return abs(expected - found) <= 1e-9 * max(1.0, abs(expected))
    if isinstance(expected, str) and isinstance(found, str) and expected != found:
        return _moment(expected) is not None and _moment(expected) == _moment(found)
    return bool(expected == found)


def _moment(text: str) -> datetime.datetime | None:
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return found.astimezone(datetime.UTC).replace(tzinfo=None) if found.tzinfo else found


def _unlike(name: str, expected: list[Any], found: list[Any]) -> list[str]:
    """Each expected row takes one that is like it."""
    left = list(found)
    missing = []
    for row in expected:
        like = next((index for index, each in enumerate(left) if _same(row, each)), None)
        if like is None:
            missing.append(row)
        else:
            del left[like]
    shown = [f"{name}: missing {_shown(row)}" for row in missing[:_SHOWN_MAX]]
    return shown + [f"{name}: not expected {_shown(row)}" for row in left[:_SHOWN_MAX]]


def _unlike_reasons(name: str, expected: list[str], found: list[str]) -> list[str]:
    left = list(found)
    differences = []
    for part in expected:
        like = next((each for each in left if part in each), None)
        if like is None:
            differences.append(f"{name}: missing a reason with {part!r}")
        else:
            left.remove(like)
    return differences + [f"{name}: not expected {each!r}" for each in left[:_SHOWN_MAX]]


def _shown(row: Any) -> str:
    return json.dumps(row, default=str, ensure_ascii=False)
