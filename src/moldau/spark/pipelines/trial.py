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

A row is as expected if the columns that are named have these values; there must be as many rows as are expected. A time
without a zone is one of the session's (UTC unless `spark:` says otherwise), wherever the trial runs.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import yaml

from moldau.spark.pipelines import model, parse
from moldau.spark.pipelines.build import build_sink
from moldau.spark.pipelines.document import composed, mark_of, repeated_keys
from moldau.spark.pipelines.errors import Mark, PipelineError, Problem
from moldau.spark.pipelines.graph import DEAD_LETTERS, Graph, Part
from moldau.spark.pipelines.schema import parse_schema
from moldau.spark.pipelines.validate import validate
from moldau.spark.suggestions import did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_RECORD = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int, "
    "headers array<struct<key: string, value: binary>>"
)
_SHOWN_MAX = 20
_KEYS = {"name", "given", "expect"}


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

    def wrong(message: str, fix: str = "", node: Any = None) -> PipelineError:
        return PipelineError(
            [Problem(Mark(str(file), 1, 1) if node is None else mark_of(str(file), node), message, fix)]
        )

    content, nodes = _content(file, wrong)
    results = {*graph.sinks, *graph.steps, *graph.sources, *(f"{DEAD_LETTERS}{name}" for name in graph.sources)}
    found = []
    for number, (each, node) in enumerate(zip(content, nodes, strict=True), 1):
        name = str(each.get("name", f"trial {number}"))
        for unknown in sorted(set(map(str, each)) - _KEYS):
            raise wrong(f"{name}: {unknown!r} is no part of a trial", did_you_mean(unknown, _KEYS), node)
        given, expect = each.get("given"), each.get("expect")
        for key, part, known in (("given", given, set(graph.sources)), ("expect", expect, results)):
            if not isinstance(part, dict) or not all(isinstance(rows, list) for rows in part.values()):
                raise wrong(f"{name}: `{key}` is a mapping of names to lists of rows", node=node)
            for unknown in sorted(map(str, set(part) - known)):
                fix = did_you_mean(unknown, known)
                raise wrong(f"{name}: `{key}` names {unknown!r}, which is not there", fix, node)
        for result, rows in expect.items():
            if not result.startswith(DEAD_LETTERS) and not all(isinstance(row, dict) for row in rows):
                raise wrong(f"{name}: a row of {result!r} is a mapping of columns to values", node=node)
        found.append(Trial(name, given, expect))
    return found


def _content(file: Path, wrong: Callable[..., PipelineError]) -> tuple[list[Any], list[Any]]:
    """The trials as they are written, and where each stands."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise wrong(f"cannot be read: {error.strerror}", "put the trials of x.yaml into x.test.yaml") from None
    except UnicodeDecodeError:
        raise wrong("cannot be read: it is not UTF-8 text") from None
    root = composed(text, str(file))
    problems = list(repeated_keys(root, str(file)))
    if problems:
        raise PipelineError(problems)
    if not isinstance(root, yaml.SequenceNode) or not all(isinstance(each, yaml.MappingNode) for each in root.value):
        raise wrong("a file of trials is a list", "begin each with `- name:`, then `given:` and `expect:`")
    content = []
    for node in root.value:
        try:
            content.append(yaml.SafeLoader("").construct_document(node))
        except yaml.MarkedYAMLError as error:
            raise wrong(f"this means nothing here: {error.problem}", node=node) from None
        except ValueError as error:  # a date that does not exist
            raise wrong(f"a value is none ({error})", "put it in quotes", node) from None
    if not content:
        raise wrong("a file of trials is a list", "begin each with `- name:`, then `given:` and `expect:`")
    return content, root.value


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
            letters[f"{DEAD_LETTERS}{name}"] = bad
    differences: list[str] = []
    for name, expected in trial.expect.items():
        if name in letters or name.startswith(DEAD_LETTERS):
            reasons = [row["_error"] for row in letters[name].collect()] if name in letters else []
            differences += _unlike_reasons(name, [str(each) for each in expected], reasons)
            continue
        part = graph.sinks.get(name) or Part(name, graph.part(name).item, (name,))
        frame = build_sink(spark, pipeline, graph, part, rows)
        unknown = {key: None for row in expected for key in row if key not in frame.columns}
        if unknown:
            differences += [f"{name}: there is no column {key!r}{_hint(str(key), frame.columns)}" for key in unknown]
            continue
        found = [_plain(row.asDict(recursive=True), frame.schema) for row in frame.collect()]
        zone = _zone(spark.conf.get("spark.sql.session.timeZone") or "UTC")
        differences += _unlike(name, expected, found, zone)
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


def _hint(name: str, columns: Sequence[str]) -> str:
    hint = did_you_mean(name, set(columns))
    return f" ({hint})" if hint else ""


def _zone(name: str) -> datetime.tzinfo:
    """A time zone as Spark names it."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError):
        return datetime.datetime.strptime(name.removeprefix("GMT").removeprefix("UTC"), "%z").tzinfo or datetime.UTC


def _plain(value: Any, kind: Any = None) -> Any:
    """As YAML would have it. Of a row's value the type is given: Spark hands out moments as this machine's clock shows
    them, without a zone, and only the type tells them from times that have none."""
    from pyspark.sql import types as t

    match value:
        case dict():
            return {key: _plain(each, _within(kind, key)) for key, each in value.items()}
        case list() | tuple():
            return [_plain(each, getattr(kind, "elementType", None)) for each in value]
        case Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case datetime.datetime():
            moment = value.astimezone(datetime.UTC) if isinstance(kind, t.TimestampType) else value
            return moment.isoformat(sep=" ")
        case datetime.date():
            return value.isoformat()
        case bytes() | bytearray():
            return bytes(value).decode(errors="replace")
        case _:
            return value


def _within(kind: Any, key: Any) -> Any:
    """The type of a field, or of a map's values."""
    from pyspark.sql import types as t

    if isinstance(kind, t.StructType):
        return kind[key].dataType
    return getattr(kind, "valueType", None)


def _same(expected: Any, found: Any, zone: datetime.tzinfo) -> bool:
    expected = _plain(expected)
    if isinstance(expected, dict) and isinstance(found, dict):
        return all(key in found and _same(each, found[key], zone) for key, each in expected.items())
    if isinstance(expected, list) and isinstance(found, list):
        same = (_same(*pair, zone) for pair in zip(expected, found, strict=False))
        return len(expected) == len(found) and all(same)
    if isinstance(expected, bool) or isinstance(found, bool):
        return expected is found  # to Python, true is 1
    if isinstance(expected, float) and isinstance(found, int | float):
        return expected == found or abs(expected - found) <= 1e-9 * max(1.0, abs(expected))
    if isinstance(expected, str) and isinstance(found, str) and expected != found:
        return (moment := _moment(expected, zone)) is not None and moment == _moment(found, zone)
    return bool(expected == found)


def _moment(text: str, zone: datetime.tzinfo) -> datetime.datetime | None:
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=zone)


def _unlike(name: str, expected: list[Any], found: list[Any], zone: datetime.tzinfo = datetime.UTC) -> list[str]:
    missing, left = _unpaired(expected, found, lambda row, each: _same(row, each, zone))
    return _told(f"{name}: missing ", [_shown(row, zone) for row in missing]) + _told(
        f"{name}: not expected ", [_shown(row, zone) for row in left]
    )


def _unlike_reasons(name: str, expected: list[str], found: list[str]) -> list[str]:
    missing, left = _unpaired(expected, found, lambda part, reason: part in reason)
    return _told(f"{name}: missing a reason with ", [repr(part) for part in missing]) + _told(
        f"{name}: not expected ", [repr(reason) for reason in left]
    )


def _told(begin: str, things: list[str]) -> list[str]:
    more = len(things) - _SHOWN_MAX
    return [begin + each for each in things[:_SHOWN_MAX]] + ([f"{begin}{more:,} more"] if more > 0 else [])


def _unpaired(
    expected: Sequence[Any], found: Sequence[Any], like: Callable[[Any, Any], bool]
) -> tuple[list[Any], list[Any]]:
    """What is left when as many as can be are paired: what is expected loosely leaves to others what only fits them."""
    fits = [[number for number, each in enumerate(found) if like(wanted, each)] for wanted in expected]
    taken: dict[int, int] = {}  # what was found, by number: who has it
    missing = []
    for number, wanted in enumerate(expected):
        came_from: dict[int, int] = {}  # a found one that was reached: who asked for it
        asking, free = [number], None
        while asking and free is None:
            asker = asking.pop()
            for each in fits[asker]:
                if each in came_from:
                    continue
                came_from[each] = asker
                if each not in taken:
                    free = each
                    break
                asking.append(taken[each])
        if free is None:
            missing.append(wanted)
            continue
        while True:  # everybody on the way hands on what they had
            asker = came_from[free]
            before = next((each for each, holder in taken.items() if holder == asker), None)
            taken[free] = asker
            if asker == number:
                break
            assert before is not None  # only who holds something is asked to give it up
            free = before
    return missing, [each for number, each in enumerate(found) if number not in taken]


def _shown(row: Any, zone: datetime.tzinfo) -> str:
    return json.dumps(_told_in(_plain(row), zone), default=str, ensure_ascii=False)


def _told_in(value: Any, zone: datetime.tzinfo) -> Any:
    """Times as people of the zone write them."""
    match value:
        case dict():
            return {str(key): _told_in(each, zone) for key, each in value.items()}
        case list():
            return [_told_in(each, zone) for each in value]
        case str() if (moment := _moment(value, zone)) is not None and value.endswith("+00:00"):
            return moment.astimezone(zone).replace(tzinfo=None).isoformat(sep=" ")
        case _:
            return value
