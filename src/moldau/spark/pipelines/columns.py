"""Which columns there are at each point of a pipeline, as far as the file alone tells, and names that are none of them.

Only plain names are looked at (`group_by: [customer]`, `key: id`): what an expression means is Spark's business, whose
own words about it get the step's line when the queries are built.

Invariant: a name is called wrong only where all columns are known. SQL, Python and samples make them unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from moldau.spark.avro_types import SchemaError
from moldau.spark.pipelines import model
from moldau.spark.pipelines.errors import Mark, Problem
from moldau.spark.pipelines.graph import Graph, Part
from moldau.spark.pipelines.patterns import PatternError, group_names, line_pattern
from moldau.spark.pipelines.schema import parse_schema
from moldau.spark.suggestions import did_you_mean

Columns = frozenset[str]
PLACES = ("_topic", "_partition", "_offset")  # what rows of a topic's table have
KEEP_PLACES = "give the source `metadata: [topic, partition, offset]`, and keep the columns in the steps"
_NAME = re.compile(r"`([^`]+)`|([A-Za-z_]\w*)")
_ALIAS = re.compile(r".*\sas\s+(?:`([^`]+)`|([A-Za-z_]\w*))", re.I | re.S)
# Words that stand for a value by themselves.
_VALUES = frozenset({"true", "false", "null", "current_date", "current_timestamp"})


def problems(graph: Graph) -> Iterator[Problem]:
    """Names of columns that are not there."""
    known: dict[str, Columns | None] = {
        name: of_source(part.item) for name, part in graph.sources.items() if isinstance(part.item, model.Source)
    }
    for name, part in graph.steps.items():
        before = [known[each] for each in part.inputs]
        yield from _unknown(part, before)
        known[name] = _after(part, before)
    for part in graph.sinks.values():
        before = [known[each] for each in part.inputs]
        yield from _unknown(part, before)
        if isinstance(part.item, model.TableSink) and before[0] is not None:
            missing = [each for each in PLACES if each not in before[0]]
            if missing:
                message = f"rows of a topic's table say where they stood, and these have no {', '.join(missing)}"
                yield Problem(part.item.where.of("table"), message, KEEP_PLACES)


def of_source(source: model.Source) -> Columns | None:
    match source:
        case model.TopicSource() | model.PatternSource():
            if source.parse is None:
                headers = ("headers",) if str(source.options.get("includeHeaders", "")).lower() == "true" else ()
                own = [each for each in model.METADATA if each != "headers"]
                return frozenset({*own, *headers, "value", "timestampType"})
            columns = of_parse(source.parse)
            return None if columns is None else columns | {f"_{each}" for each in source.metadata}
        case model.RateSource():
            return frozenset({"timestamp", "value"})
        case model.FileSource() | model.DatabaseSource() if source.schema:
            return _of_schema(source.schema)
        case _:
            return None


def of_parse(parse: model.Parse) -> Columns | None:
    try:
        match parse:
            case model.JsonParse() | model.CsvParse() if parse.schema not in ("", "sample"):
                return _of_schema(parse.schema)
            case model.RegexParse():
                return frozenset(group_names(parse.pattern))
            case model.LogParse():
                found = frozenset(group_names(line_pattern(parse.line)))
                matched = parse.templates or parse.templates_file
                return found | ({"template", "template_id", "parameters"} if matched else set())
            case model.TextParse():
                return frozenset({parse.column})
            case _:
                return None
    except PatternError:
        return None


def _of_schema(text: str) -> Columns | None:
    try:
        return frozenset(parse_schema(text).names)
    except SchemaError:
        return None


def _after(part: Part, before: list[Columns | None]) -> Columns | None:
    step = part.item
    if isinstance(step, model.StatefulStep):
        return _of_schema(step.output)
    if not before or before[0] is None:
        return None
    columns = before[0]
    match step:
        case model.FilterStep() | model.WatermarkStep() | model.DedupStep() | model.CastStep() | model.UnionStep():
            return columns
        case model.AddStep():
            return columns | set(step.add)
        case model.DropStep():
            gone = {each.lower() for each in step.drop}
            return frozenset(each for each in columns if each.lower() not in gone)
        case model.RenameStep():
            return frozenset(step.rename.get(each, each) for each in columns)
        case model.SelectStep():
            return _named(step.select)
        case model.AggregateStep():
            groups = _named(step.group_by)
            window = {"window_start", "window_end"} if step.window is not None else set()
            return None if groups is None else groups | window | set(step.aggregate)
        case model.JoinStep():
            other = before[1] if len(before) > 1 else None
            return columns if step.how in ("left_semi", "left_anti") else None if other is None else columns | other
        case _:
            return None


def _named(expressions: Iterable[str]) -> Columns | None:
    """What a list of expressions calls its columns; None if one has no name that could be told."""
    found = set()
    for each in expressions:
        match = _NAME.fullmatch(each.strip()) or _ALIAS.fullmatch(each.strip())
        if match is None:
            return None
        found.add(match[1] or match[2])
    return frozenset(found)


def _unknown(part: Part, before: list[Columns | None]) -> Iterator[Problem]:
    item = part.item
    for index, columns in enumerate(before):
        if columns is None:
            continue
        there = {each.lower() for each in columns}
        for key, mark, name in _mentioned(item, index):
            match = _NAME.fullmatch(name.strip())
            if match is None or name.lower() in _VALUES or (match[1] or match[2]).lower() in there:
                continue
            yield Problem(mark, f"{key}: there is no column {name!r} in {part.inputs[index]!r}", _hint(name, columns))


def _hint(name: str, columns: Columns) -> str:
    return did_you_mean(name, columns)


def _mentioned(item: object, index: int) -> Iterator[tuple[str, Mark, str]]:
    """(key, place, name) of what a part says about the columns of its input; only joins ask the second one."""
    if isinstance(item, model.JoinStep):
        if all(_NAME.fullmatch(each) for each in item.on):
            for name in item.on:
                yield "on", item.where.of("on"), name
        return
    if index:
        return
    found: list[tuple[str, Iterable[str]]] = []
    match item:
        case model.SelectStep():
            found = [("select", item.select)]
        case model.RenameStep():
            found = [("rename", item.rename)]
        case model.CastStep():
            found = [("cast", item.cast)]
        case model.DedupStep() if item.dedup != ("*",):
            found = [("dedup", item.dedup)]
        case model.AggregateStep():
            found = [("group_by", item.group_by), ("window", [item.window.column] if item.window else [])]
        case model.WatermarkStep() if item.watermark is not None:
            found = [("watermark", [item.watermark.column])]
        case model.StatefulStep() | model.DatabaseSink():
            found = [("key", item.key)]
        case model.TopicSink():
            found = [("key", [item.key]), ("value", [item.value] if item.value != "json" else [])]
            found.append(("headers", item.headers.values()))
        case model.DeltaSink() | model.ParquetSink() | model.IcebergSink() | model.TableSink():
            found = [("partition_by", item.partition_by)]
        case _:
            pass
    where = getattr(item, "where", None)
    for key, names in found:
        for name in names:
            if name and where is not None:
                yield key, where.of(key), name
