"""Sources of the model into DataFrames: a stream or a table of good rows and, for topics, a stream of bad records.

What has to be found out first (a schema or templates from a sample) is kept beside the checkpoint, so that a restart
parses as the first run did even if the topic's head is long gone.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f
from pyspark.sql import types as t

from moldau.spark.pipelines import model, parse, store, topic_table
from moldau.spark.pipelines.durations import seconds_of
from moldau.spark.pipelines.errors import PipelineError, Problem, Where
from moldau.spark.pipelines.functions import find
from moldau.spark.pipelines.reach import newest_schema
from moldau.spark.pipelines.schema import parse_schema
from moldau.spark.pipelines.template_state import begin, folder_of
from moldau.spark.pipelines.templates import Learner
from moldau.spark.read_limits import HAS_LIMITS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


_log = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True)
class Opened:
    rows: DataFrame
    bad: DataFrame | None = None


def open_source(spark: SparkSession, pipeline: model.Pipeline, name: str, source: model.Source, query: str) -> Opened:
    """`query` names the consumer group that shows the progress: each query reads for itself."""
    opened = _open(spark, pipeline, name, source, f"{pipeline.name}-{query}")
    watermark = None if isinstance(source, model.DatabaseSource) else source.watermark
    if watermark is None:
        return opened
    return Opened(opened.rows.withWatermark(watermark.column, watermark.delay), opened.bad)


def _open(spark: SparkSession, pipeline: model.Pipeline, name: str, source: model.Source, group: str) -> Opened:
    match source:
        case model.TopicSource() | model.PatternSource():
            return _topic(spark, pipeline, name, source, group)
        case model.FileSource():
            return Opened(_files(spark, pipeline, source))
        case model.RateSource():
            rate = spark.readStream.format("rate").option("rowsPerSecond", source.rate).options(**source.options)
            return Opened(rate.load())
        case model.DatabaseSource():
            return Opened(_database(spark, source))
        case model.DeltaSource():
            return Opened(_delta(spark, pipeline, source))
        case model.PythonSource():
            rows: DataFrame = find(source.python, pipeline.folder)(spark)
            return Opened(rows)


def _path(pipeline: model.Pipeline, path: str) -> str:
    """Relative paths start at the pipeline file; URIs stay as they are."""
    return path if "://" in path else os.path.join(pipeline.folder, path)


# ---- topics ---------------------------------------------------------------------------------------------------------


def kafka_options(pipeline: model.Pipeline) -> dict[str, str]:
    own = {f"kafka.{key}": value for key, value in pipeline.kafka.items()}
    outage = {"outage": f"{round(seconds_of(pipeline.outage) * 1000)}ms"}
    return {"kafka.bootstrap.servers": pipeline.bootstrap_servers, **outage, **own}


def topic_options(
    pipeline: model.Pipeline, source: model.TopicSource | model.PatternSource, *, headers: bool
) -> dict[str, str]:
    options = kafka_options(pipeline)
    # Exactly-once sinks write in transactions; what was aborted must not come in.
    options["kafka.isolation.level"] = "read_committed"
    if isinstance(source, model.PatternSource):
        options["subscribePattern"] = source.topic_pattern
    else:
        options["subscribe"] = ",".join(topic.strip() for topic in source.topic.split(","))
    if headers:
        options["includeHeaders"] = "true"
    return options | dict(source.options)


def _start_options(source: model.TopicSource | model.PatternSource) -> dict[str, str]:
    options: dict[str, str] = {}
    if source.start in ("earliest", "latest"):
        options["startingOffsets"] = source.start
    else:
        options["startingTimestamp"] = str(round(datetime.fromisoformat(source.start).timestamp() * 1000))
        options["startingOffsetsByTimestampStrategy"] = "latest"
    if source.records_per_batch is not None:
        options["maxOffsetsPerTrigger"] = str(source.records_per_batch)
    return options


def open_shared(
    spark: SparkSession,
    pipeline: model.Pipeline,
    name: str,
    source: model.TopicSource | model.PatternSource,
    group: str,
) -> tuple[DataFrame, parse.Given]:
    """The stream for those who share it: good rows, and, if there are to be dead letters, bad ones with them; without
    `parse`, the records."""
    how = source.parse
    letters = how is not None and how.on_error == "dead_letter"
    options = topic_options(pipeline, source, headers=letters or "headers" in source.metadata)
    options["kafka.group.id"] = group
    records = spark.readStream.format("moldau").options(**_start_options(source) | options).load()
    if source.until:
        records = records.where(f.col("timestamp") < moment(source.until))
    if how is None:
        return records, parse.Given()
    given = given_for(spark, pipeline, name, source, how)
    frame = parse.parsed(records, how, given)
    if how.on_error == "fail":
        frame = parse.failing(frame, how, given)
    return (parse.together if letters else parse.good)(frame, source.metadata), given


def moment(text: str) -> Column:
    """A time of the file; without a zone, it is this machine's."""
    return f.timestamp_millis(f.lit(round(datetime.fromisoformat(text).timestamp() * 1000)))


def _topic(
    spark: SparkSession,
    pipeline: model.Pipeline,
    name: str,
    source: model.TopicSource | model.PatternSource,
    group: str,
) -> Opened:
    headers = "headers" in source.metadata
    options = topic_options(pipeline, source, headers=headers)
    as_table = isinstance(source, model.TopicSource) and source.as_table
    if as_table:
        records = spark.read.format(topic_table.FORMAT).options(**options).load()
    else:
        options["kafka.group.id"] = group
        records = spark.readStream.format("moldau").options(**_start_options(source) | options).load()
    if source.until:
        records = records.where(f.col("timestamp") < moment(source.until))
    how = source.parse
    if how is None:
        return Opened(records)
    given = given_for(spark, pipeline, name, source, how)
    frame = parse.parsed(records, how, given)
    if how.on_error == "fail":
        return Opened(parse.good(parse.failing(frame, how, given), source.metadata))
    rows = parse.good(frame, source.metadata)
    if how.on_error == "drop":
        return Opened(rows)
    # Of a table's topic too, the bad records are told as they come: each once, not with every reading of the table.
    options = topic_options(pipeline, source, headers=True)
    options["kafka.group.id"] = group
    again = spark.readStream.format("moldau").options(**_start_options(source) | options).load()
    if source.until:
        again = again.where(f.col("timestamp") < moment(source.until))
    return Opened(rows, parse.bad(parse.parsed(again, how, given), how, given))


def given_for(
    spark: SparkSession,
    pipeline: model.Pipeline,
    name: str,
    source: model.TopicSource | model.PatternSource,
    how: model.Parse,
) -> parse.Given:
    match how:
        case model.JsonParse() if how.schema == "sample":
            found = _sampled(spark, pipeline, name, source, how.sample_records, schema_of_sample)
            return parse.Given(schema=t.StructType.fromJson(found))
        case model.LogParse() if how.templates == ("learn",):

            def learned(values: list[bytes | None]) -> Any:
                return templates_of_sample(values, how)

            found = _sampled(spark, pipeline, name, source, how.sample_records, learned)
            folder = _template_folder(pipeline, name)
            if not folder:
                _log.warning("templates of %s are not learnt on: the checkpoint is no local folder", name)
                return parse.Given(templates=Learner.from_json(found).templates())
            return parse.Given(templates=begin(folder, Learner.from_json(found)), template_folder=folder)
        case model.LogParse():
            templates = parse.read_templates(how, pipeline.folder)
            return parse.Given(templates=templates, template_folder=_template_folder(pipeline, name))
        case model.AvroParse():
            from moldau.spark.pipelines.avro_records import schema_text

            writers = {int(number): schema_text(path, pipeline.folder) for number, path in how.writer_schemas.items()}
            return parse.Given(avro_schema=schema_text(how.schema, pipeline.folder), avro_writers=writers)
        case model.RegistryParse():
            return parse.Given(reader=newest_schema(pipeline, source, how))
        case _:
            return parse.Given()


def _template_folder(pipeline: model.Pipeline, name: str) -> str:
    local = store.local_folder(pipeline.checkpoint_folder)
    return "" if local is None else folder_of(local, name)


def _sampled(
    spark: SparkSession,
    pipeline: model.Pipeline,
    name: str,
    source: model.TopicSource | model.PatternSource,
    count: int,
    found_in: Any,
) -> Any:
    """What the first records tell, found once and kept."""
    # Named anew for templates: what version 0.1 kept was a list of texts, from which nothing can be learnt on.
    file = f"sample-{name}.json" if isinstance(source.parse, model.JsonParse) else f"learnt-{name}.json"
    kept = store.read_json(pipeline.checkpoint_folder, file)
    if kept is not None:
        return kept
    options = topic_options(pipeline, source, headers=False)
    sample = spark.read.format("moldau").options(**options).load().select("value").limit(count).collect()
    found = found_in([None if row.value is None else bytes(row.value) for row in sample])
    if not found:
        problem = Problem(
            source.where.of("parse"),
            f"source {name!r}: {len(sample)} records to sample, and none that can be used",
            "produce some first, or write the `schema:` (or `templates:`) into the file",
        )
        raise PipelineError([problem])
    store.write_json(pipeline.checkpoint_folder, file, found)
    return found


def schema_of_sample(values: list[bytes | None]) -> Any:
    from moldau.spark.pipelines.json_text import infer_schema, without_nulls

    found = infer_schema(values)
    return None if found is None else without_nulls(found).jsonValue()


def templates_of_sample(values: list[bytes | None], how: model.LogParse) -> list[Any]:
    from moldau.spark.pipelines.patterns import compiled, line_pattern

    learner = Learner()
    pattern = compiled(line_pattern(how.line))
    looked_at = (value for value in values if value is not None and len(value) <= how.max_bytes)
    lines = (pattern.match(value.decode(errors="replace")) for value in looked_at)
    for line in lines:
        if line is not None:
            learner.learn(line[how.of])
    learner.rank()
    return learner.to_json()


# ---- files and databases --------------------------------------------------------------------------------------------


def _files(spark: SparkSession, pipeline: model.Pipeline, source: model.FileSource) -> DataFrame:
    path = _path(pipeline, source.files)
    reader: Any = spark.read if source.static else spark.readStream
    reader = reader.format(source.format).options(**source.options)
    if source.schema:
        reader = reader.schema(parse_schema(source.schema))
    rows: DataFrame = reader.load(path)
    return rows


def _require_starts(where: Where, what: str) -> None:
    """Where a batch begins is what these streams stand on: rows may go, and a cursor with them."""
    if not HAS_LIMITS:
        told = f"{what} needs Spark 4.2 or newer: Spark 4.1 does not tell Python sources where a batch begins"
        raise PipelineError([Problem(where.mark, told)])


def _delta(spark: SparkSession, pipeline: model.Pipeline, source: model.DeltaSource) -> DataFrame:
    path = _path(pipeline, source.delta)
    if not source.changes:
        from deltalake import DeltaTable

        return spark.read.parquet(*DeltaTable(path).file_uris())
    _require_starts(source.where, "a change feed")
    from moldau.spark.pipelines.delta_changes import FORMAT, schema_of

    options = {"path": path, "start": source.start, "commits": str(source.commits_per_batch)}
    return spark.readStream.format(FORMAT).options(**options).schema(schema_of(path)).load()


def _database(spark: SparkSession, source: model.DatabaseSource) -> DataFrame:
    from moldau.spark.pipelines.database_source import FORMAT

    if source.cursor:
        _require_starts(source.where, "a database with a cursor")
    options = {
        "url": source.database,
        "query": source.query or f"SELECT * FROM {source.table}",  # noqa: S608 - the user's own table
        "table": source.table,
        "cursor": source.cursor,
        "settle": str(seconds_of(source.settle)),
        "outage": str(seconds_of(source.outage)),
        "rows": str(source.rows_per_batch),
    }
    reader: Any = spark.readStream if source.cursor else spark.read
    reader = reader.format(FORMAT).options(**options)
    if source.schema:
        reader = reader.schema(parse_schema(source.schema))
    rows: DataFrame = reader.load()
    return rows
