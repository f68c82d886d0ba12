"""Everything that can be known about a pipeline before Spark starts.

Names lead somewhere, functions can be imported, patterns compile, schemas have the columns that watermarks name,
windows that append have a watermark, optional packages are installed, databases' URLs are URLs. What only Spark knows
(the columns of a SELECT) is checked when the queries are built; those errors get the step's line too.

Invariant: no connection is made and no JVM starts.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import os
import re
from collections.abc import Iterator
from dataclasses import fields

from moldau.spark.avro_types import SchemaError, spark_type_of_avro
from moldau.spark.pipelines import columns as column_names
from moldau.spark.pipelines import model, spark_settings, stretch
from moldau.spark.pipelines.avro_records import schema_text
from moldau.spark.pipelines.columns import Columns, of_parse, of_source
from moldau.spark.pipelines.durations import seconds_of
from moldau.spark.pipelines.errors import Mark, PipelineError, Problem
from moldau.spark.pipelines.functions import FunctionError, find
from moldau.spark.pipelines.graph import SHARED, Graph, resolve, sql_tokens
from moldau.spark.pipelines.patterns import PatternError, group_names, line_pattern
from moldau.spark.pipelines.schema import parse_type
from moldau.spark.pipelines.secrecy import keeping_secrets
from moldau.spark.pipelines.streaming import streaming_problems, topics_of
from moldau.spark.suggestions import did_you_mean
from moldau.spark.topic_patterns import PatternRefused, topic_pattern

Problems = Iterator[Problem]


@keeping_secrets
def validate(pipeline: model.Pipeline) -> Graph:
    """The graph of a pipeline that is sound; else `PipelineError` with everything that is wrong."""
    graph, problems = resolve(pipeline)
    problems += _whole(pipeline)
    for name, source in pipeline.sources.items():
        problems += _source(pipeline, name, source)
    for step in pipeline.steps:
        problems += _step(step)
    for sink in pipeline.sinks:
        problems += _sink(pipeline, sink)
    problems += _functions(pipeline)
    if not problems:
        problems += [*streaming_problems(graph), *column_names.problems(graph)]
    if problems:
        raise PipelineError(problems)
    return graph


def _whole(pipeline: model.Pipeline) -> Problems:
    topics = [
        source for source in pipeline.sources.values() if isinstance(source, model.TopicSource | model.PatternSource)
    ]
    if (topics or any(isinstance(sink, model.TopicSink) for sink in pipeline.sinks)) and not pipeline.bootstrap_servers:
        yield Problem(
            pipeline.where.of("kafka"),
            "the pipeline uses topics but does not say where the cluster is",
            "add `kafka:` with `bootstrap.servers: HOST:PORT`",
        )
    yield from _cluster(pipeline)
    if not pipeline.sources:
        yield Problem(pipeline.where.of("sources"), "the pipeline has no source")
    if not pipeline.sinks:
        yield Problem(pipeline.where.of("sinks"), "the pipeline has no sink")
    for sink in pipeline.sinks:
        if pipeline.share_reads and sink.name.startswith(SHARED):
            fix = f"choose one that does not begin with {SHARED!r}"
            yield Problem(sink.where.of("name"), f"{sink.name!r} is a query for several sinks", fix)
    has_letters = any(source.parse is not None and source.parse.on_error == "dead_letter" for source in topics)
    if has_letters:
        yield from _topic_name(pipeline.dead_letter_topic, pipeline.where.of("dead_letters"))
    read = {topic for source in topics if isinstance(source, model.TopicSource) for topic in topics_of(source)}
    if pipeline.dead_letter_topic in read:
        yield Problem(
            pipeline.where.of("dead_letters"),
            f"dead letters go to {pipeline.dead_letter_topic!r}, which is also a source: they would go round",
            "choose another topic",
        )


def _cluster(pipeline: model.Pipeline) -> Problems:
    mark = pipeline.where.of("kafka")
    for address in filter(None, map(str.strip, pipeline.bootstrap_servers.split(","))):
        if not re.fullmatch(r".+:\d{1,5}", address):
            yield Problem(mark, f"{address!r} has no port", f"write `bootstrap.servers: {address}:9092`, for example")
            break
    else:
        yield from _client_settings(pipeline)
    for name in pipeline.kafka:
        if "_" in name:
            yield Problem(mark, f"no client setting is called {name!r}", f"write {name.replace('_', '.')!r}")
    yield from spark_settings.problems(pipeline)


def _client_settings(pipeline: model.Pipeline) -> Problems:
    from moldau.spark.connecting import client_settings
    from moldau.spark.options import OptionError

    try:
        client_settings({"bootstrap.servers": pipeline.bootstrap_servers, **pipeline.kafka})
    except OptionError as error:
        yield Problem(pipeline.where.of("kafka"), str(error).replace("option 'kafka.", "setting '", 1))


def _topic_options(
    pipeline: model.Pipeline, item: model.TopicSource | model.PatternSource | model.TopicSink
) -> Problems:
    """What the source or the sink itself says about its options."""
    from moldau.spark import options, sink_options
    from moldau.spark.pipelines import sinks, sources

    if not pipeline.bootstrap_servers:
        return  # is said elsewhere
    try:
        match item:
            case model.TopicSink():
                sink_options.sink_options(sinks.topic_options(pipeline, item))
            case model.TopicSource(as_table=True):
                given = sources.topic_options(pipeline, item, headers=False)
                options.parse_batch_options(given)
                if item.parse is not None and item.parse.on_error == "dead_letter":
                    options.parse_stream_options(given)  # the dead letters of a table are a stream
            case _:
                options.parse_stream_options(sources.topic_options(pipeline, item, headers=False))
    except options.OptionError as error:
        yield Problem(item.where.of("options"), str(error))


def _topic_name(topic: str, mark: Mark) -> Problems:
    if topic in (".", "..") or not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", topic):
        yield Problem(mark, f"{topic!r} cannot be a topic", "use at most 249 letters, digits, '.', '_', '-'")


# ---- sources --------------------------------------------------------------------------------------------------------


def _source(pipeline: model.Pipeline, name: str, source: model.Source) -> Problems:
    match source:
        case model.TopicSource() | model.PatternSource():
            yield from _topic_source(pipeline, source)
        case model.FileSource():
            if not source.static and not source.schema and source.format != "text":
                fix = "add `schema:`, or `static: true` for files that do not change"
                yield Problem(source.where.mark, f"a stream of files needs a schema ({name})", fix)
        case model.DatabaseSource():
            yield from _database_url(source.database, source.where.of("database"))
            if bool(source.table) == bool(source.query):
                yield Problem(source.where.mark, "a database source reads a `table` or a `query`", "give one of them")
        case model.DeltaSource():
            yield from _needs("deltalake", "delta", source.where.of("delta"))
            if source.start != "latest" and not source.start.isdecimal():
                message = f"{source.start!r} is no version of a table"
                yield Problem(source.where.of("start"), message, "give a number, or latest")
            if source.watermark is not None and not source.changes:
                yield Problem(
                    source.where.of("watermark"), "a table has no watermark", "leave it out, or read `changes`"
                )
        case _:
            pass
    columns = of_source(source)
    watermark = None if isinstance(source, model.DatabaseSource) else source.watermark
    if watermark is not None:
        yield from _watermark(watermark, columns)


def _topic_source(pipeline: model.Pipeline, source: model.TopicSource | model.PatternSource) -> Problems:
    for each in source.metadata:
        if each not in model.METADATA:
            yield Problem(source.where.of("metadata"), f"a record has no {each!r}", did_you_mean(each, model.METADATA))
    yield from stretch.problems(source)
    if isinstance(source, model.PatternSource):
        try:
            topic_pattern(source.topic_pattern)
        except PatternRefused as error:
            yield Problem(source.where.of("topic_pattern"), f"the pattern {error}")
    elif not topics_of(source):
        yield Problem(source.where.of("topic"), "`topic` is empty", "name a topic")
    else:
        for topic in topics_of(source):
            yield from _topic_name(topic, source.where.of("topic"))
    if isinstance(source, model.PatternSource) or topics_of(source):
        yield from _topic_options(pipeline, source)
    if isinstance(source, model.TopicSource) and source.http:
        yield from _http(source)
    if source.parse is not None:
        yield from _parse(pipeline, source.parse)


def _http(source: model.TopicSource) -> Problems:
    from moldau.spark.pipelines.http_intake import is_only_here

    mark = source.where.of("http")
    try:
        is_open = not is_only_here(source.http)
    except ValueError:
        yield Problem(mark, f"{source.http!r} is not an address", "write a port, or host:port")
        return
    if is_open and not source.http_token:
        fix = "add `http_token: ${secret:…}`, or take a port of this machine alone, such as `http: 8080`"
        yield Problem(mark, f"everybody could write to the topic through {source.http}", fix)
    if len(topics_of(source)) != 1:
        yield Problem(mark, "events by HTTP go to one topic", "name one in `topic:`")


def _parse(pipeline: model.Pipeline, parse: model.Parse) -> Problems:
    match parse:
        case model.CsvParse():
            if not parse.schema:
                yield Problem(parse.where.mark, "CSV needs a schema", "add `schema:` with the columns in their order")
        case model.AvroParse():
            yield from _avro(pipeline, parse)
        case model.RegistryParse():
            yield from _registry(pipeline, parse.where.mark)
            if parse.message and parse.values != "protobuf":
                yield Problem(parse.where.of("message"), f"only Protobuf has messages, and values are {parse.values}")
            for package, extra in _OF_VALUES[parse.values]:
                yield from _needs(package, extra, parse.where.mark)
        case model.RegexParse():
            yield from _pattern(parse.pattern, parse.types, parse, "pattern")
        case model.LogParse():
            yield from _log(pipeline, parse)
        case _:
            pass
    columns = of_parse(parse)
    for rule, condition in parse.require.items():
        yield from _expression(condition, parse.where.of("require"), f"rule {rule!r}")
        words = [word for word in sql_tokens(condition) if re.fullmatch(r"[a-z_]\w*", word)]
        if columns is not None and words and not columns.intersection(words):
            yield Problem(
                parse.where.of("require"),
                f"rule {rule!r} names none of the columns: {condition}",
                f"columns are: {', '.join(sorted(columns))}",
            )


_OF_VALUES = {
    "avro": (("fastavro", "registry"),),
    "json": (("jsonschema", "registry"),),
    "protobuf": (("google.protobuf", "spark"),),
}


def _registry(pipeline: model.Pipeline, mark: Mark) -> Problems:
    if not pipeline.registry:
        yield Problem(
            mark, "the pipeline does not say where the schema registry is", "add `registry: http://host:8081`"
        )


def _avro(pipeline: model.Pipeline, parse: model.AvroParse) -> Problems:
    yield from _needs("fastavro", "avro", parse.where.of("schema"))
    if not parse.schema:
        yield Problem(parse.where.mark, "Avro needs a schema", "add `schema:` with the path of an .avsc file")
        return
    for key, text in [("schema", parse.schema), *(("writer_schemas", path) for path in parse.writer_schemas.values())]:
        try:
            spark_type_of_avro(json.loads(schema_text(text, pipeline.folder)))
        except OSError as error:
            yield Problem(parse.where.of(key), f"{text}: {error.strerror}", "give the path of an .avsc file")
        except json.JSONDecodeError as error:
            yield Problem(parse.where.of(key), f"{text}: not JSON in line {error.lineno}: {error.msg}")
        except SchemaError as error:
            yield Problem(parse.where.of(key), str(error))
    for number in parse.writer_schemas:
        if not number.isdecimal():
            yield Problem(parse.where.of("writer_schemas"), f"{number!r} is not a schema id", "ids are whole numbers")


def _log(pipeline: model.Pipeline, parse: model.LogParse) -> Problems:
    if not parse.line:
        yield Problem(
            parse.where.mark, "a log needs `line:`", "for example '<date> <time> <level> <component>: <content>'"
        )
        return
    try:
        pattern = line_pattern(parse.line)
    except PatternError as error:
        yield Problem(parse.where.of("line"), str(error))
        return
    yield from _pattern(pattern, parse.types, parse, "line")
    names = group_names(pattern)
    wanted = bool(parse.templates or parse.templates_file)
    if wanted and parse.of not in names:
        yield Problem(
            parse.where.of("of"),
            f"the line has no <{parse.of}> to match templates against",
            did_you_mean(parse.of, names),
        )
    if parse.templates and parse.templates_file:
        yield Problem(
            parse.where.of("templates_file"), "there are `templates` and `templates_file`", "give one of them"
        )
    if parse.templates_file and not os.path.isfile(os.path.join(pipeline.folder, parse.templates_file)):
        yield Problem(
            parse.where.of("templates_file"),
            f"there is no file {parse.templates_file!r}",
            "paths start at the pipeline file",
        )


def _pattern(pattern: str, types: object, parse: model.RegexParse | model.LogParse, key: str) -> Problems:
    if not pattern:
        yield Problem(parse.where.mark, f"`{key}` is missing")
        return
    try:
        names = group_names(pattern)
    except PatternError as error:
        yield Problem(parse.where.of(key), str(error))
        return
    if not names:
        yield Problem(
            parse.where.of(key), "the pattern has no named group", "write (?<column>…) around what is a column"
        )
    for column, kind in parse.types.items():
        if column not in names:
            yield Problem(parse.where.of("types"), f"the pattern has no column {column!r}", did_you_mean(column, names))
        yield from _type(kind, parse.where.of("types"))


def _type(text: str, mark: Mark) -> Problems:
    try:
        parse_type(text)
    except SchemaError as error:
        yield Problem(mark, str(error))


def _watermark(watermark: model.Watermark, columns: Columns | None) -> Problems:
    if not watermark.column:
        yield Problem(
            watermark.where.mark, "the watermark has no `column`", "name the column with the time of the event"
        )
    elif columns is not None and watermark.column not in columns:
        yield Problem(
            watermark.where.of("column"),
            f"there is no column {watermark.column!r}",
            did_you_mean(watermark.column, columns),
        )


# ---- steps ----------------------------------------------------------------------------------------------------------


def _step(step: model.Step) -> Problems:
    match step:
        case model.SqlStep():
            yield from _sql(step.sql, step.where.of("sql"))
        case model.FilterStep():
            yield from _expression(step.filter, step.where.of("filter"), "filter")
        case model.SelectStep():
            for each in step.select:
                yield from _expression(each, step.where.of("select"), each)
        case model.AddStep():
            for column, expression in step.add.items():
                yield from _expression(expression, step.where.of("add"), column)
        case model.CastStep():
            for kind in step.cast.values():
                yield from _type(kind, step.where.of("cast"))
        case model.WatermarkStep():
            if step.watermark is not None:
                yield from _watermark(step.watermark, None)
        case model.AggregateStep():
            yield from _aggregate(step)
        case model.JoinStep():
            if not step.on:
                yield Problem(
                    step.where.mark, "the join has no `on`", "name the columns both sides have, or a condition"
                )
        case model.StatefulStep():
            yield from _stateful(step)
        case _:
            pass


def _aggregate(step: model.AggregateStep) -> Problems:
    if not step.aggregate:
        yield Problem(step.where.of("aggregate"), "nothing to aggregate", "write {count: count(*)}, for example")
    for column, expression in step.aggregate.items():
        yield from _expression(expression, step.where.of("aggregate"), column)
    window = step.window
    if window is None:
        return
    if not window.column:
        yield Problem(window.where.mark, "the window has no `column`", "name the column with the time of the event")
    if bool(window.size) == bool(window.gap):
        yield Problem(window.where.mark, "a window has a `size`, or a `gap` for sessions", "give one of them")
    if window.slide and window.gap:
        yield Problem(window.where.of("slide"), "sessions do not slide", "leave out `slide`")
    for key in ("size", "slide", "gap"):
        if getattr(window, key) and not seconds_of(getattr(window, key)):
            yield Problem(window.where.of(key), f"a window's `{key}` is more than nothing", "write `1 minute`")
    if window.size and seconds_of(window.slide) > seconds_of(window.size):
        message = f"between two windows, {window.slide} apart, rows would be in none"
        yield Problem(window.where.of("slide"), message, f"let `slide` be at most {window.size}")


def _stateful(step: model.StatefulStep) -> Problems:
    for key in ("key", "output"):
        if not getattr(step, key):
            yield Problem(step.where.mark, f"the stateful step has no `{key}`")


_OPENING = {"(": ")", "[": "]"}


def _sql(sql: str, mark: Mark) -> Problems:
    tokens = sql_tokens(sql)
    if not tokens or tokens[0].lower() not in ("select", "with", "from", "(", "values"):
        yield Problem(mark, "this is not a SELECT", "begin with SELECT or WITH; the result is the step's rows")
    elif ";" in tokens:
        yield Problem(mark, "one statement a step", "leave out the semicolon, and make more steps of more statements")
    yield from _expression(sql, mark, "sql")


def _expression(sql: str, mark: Mark, what: str) -> Problems:
    expected: list[str] = []
    for token in sql_tokens(sql):
        if token in _OPENING:
            expected.append(_OPENING[token])
        elif token in (")", "]") and (not expected or expected.pop() != token):
            yield Problem(mark, f"{what}: there is a {token!r} too many")
            return
    if expected:
        yield Problem(mark, f"{what}: a {expected[-1]!r} is missing")
    without = re.sub(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|--[^\n]*", "", sql)
    if "'" in without:
        yield Problem(mark, f"{what}: a quote ' is not closed")
    if not sql.strip():
        yield Problem(mark, f"{what} is empty")


# ---- sinks ----------------------------------------------------------------------------------------------------------


def _sink(pipeline: model.Pipeline, sink: model.Sink) -> Problems:
    match sink:
        case model.TopicSink():
            yield from _topic_name(sink.topic, sink.where.of("topic"))
            if sink.schema:
                yield from _registry(pipeline, sink.where.of("schema"))
            if pipeline.registry or not sink.schema:
                yield from _topic_options(pipeline, sink)
        case model.DeltaSink():
            yield from _needs("deltalake", "delta", sink.where.of("delta"))
        case model.TableSink(format="delta"):
            yield from _needs("deltalake", "delta", sink.where.of("table"))
        case model.TableSink():
            yield from _iceberg(sink.table, "table", sink)
        case model.IcebergSink():
            yield from _iceberg(sink.iceberg, "iceberg", sink)
        case model.DatabaseSink():
            yield from _database_url(sink.database, sink.where.of("database"))
            if not sink.table:
                yield Problem(sink.where.mark, "the database sink has no `table`")
            if sink.mode == "update" and not sink.key:
                yield Problem(sink.where.of("mode"), "mode update needs a `key`", "name the columns that tell a row")
            if sink.delete_when and not sink.key:
                yield Problem(
                    sink.where.of("delete_when"), "rows to delete need a `key`", "name the columns that tell a row"
                )
        case _:
            pass


def _iceberg(table: str, key: str, sink: model.IcebergSink | model.TableSink) -> Problems:
    yield from _needs("pyiceberg", "iceberg", sink.where.of(key))
    if not re.fullmatch(r"\w+(\.\w+)+", table):
        fix = "write `events.clicks`, for example"
        yield Problem(sink.where.of(key), f"{table!r} is not namespace.table", fix)
    if not sink.warehouse and not sink.catalog:
        fix = "give a folder, or `catalog:` settings"
        yield Problem(sink.where.mark, "the Iceberg sink has no `warehouse`", fix)


_DRIVERS = {
    "MySQLdb": "write mysql+pymysql://…, and pip install pymysql",
    "psycopg2": "write postgresql+psycopg://…, and pip install 'psycopg[binary]'",
    "psycopg": "pip install 'psycopg[binary]'",
}


def _database_url(url: str, mark: Mark) -> Problems:
    missing = list(_needs("sqlalchemy", "sql", mark))
    if missing:
        yield from missing
        return
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import SQLAlchemyError

    try:
        make_url(url).get_dialect().import_dbapi()
    except (SQLAlchemyError, ValueError):
        yield Problem(
            mark,
            "this is Java's kind of URL" if url.startswith("jdbc:") else "not the URL of a database SQLAlchemy knows",
            "write postgresql+psycopg://user@host/name, mysql+pymysql://user@host/name or sqlite:///file.db",
        )
    except ImportError as error:
        fix = _DRIVERS.get(error.name or "", f"pip install {error.name}")
        yield Problem(mark, f"the database's driver is missing: {error.name}", fix)


def _needs(package: str, extra: str, mark: Mark) -> Problems:
    if importlib.util.find_spec(package) is None:
        yield Problem(mark, f"this needs the package {package}", f"pip install 'moldau[{extra}]'")


def _functions(pipeline: model.Pipeline) -> Problems:
    for item in (*pipeline.sources.values(), *pipeline.steps, *pipeline.sinks):
        for field in fields(item):
            name = getattr(item, field.name)
            if field.metadata["kind"] != "function" or not name:
                continue
            try:
                found = find(name, pipeline.folder)
            except FunctionError as error:
                yield Problem(item.where.of(field.name), str(error))
            else:
                if isinstance(item, model.StatefulStep) and inspect.isclass(found) and not _has_protobuf():
                    fix = "pip install protobuf; or write a function for applyInPandasWithState"
                    yield Problem(
                        item.where.of(field.name), "Spark's StatefulProcessor needs the package protobuf", fix
                    )
                if not callable(found):
                    yield Problem(item.where.of(field.name), f"{name} is not a function")


def _has_protobuf() -> bool:
    try:
        importlib.import_module("google.protobuf.descriptor")
    except ImportError:
        return False
    return True
