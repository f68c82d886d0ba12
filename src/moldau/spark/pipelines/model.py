"""The pipeline: sources, steps, sinks. A YAML file is read into these objects; Python code makes them directly.

Every field says what it is for and how it is written in a file (`fields.py`). The first field of a source, a step or a
sink names its kind: `topic: orders` makes a topic source, `sql: SELECT …` a SQL step.

Invariant: the model is data. It holds no Spark object, so a pipeline can be read, checked and explained without Java.
"""

# ruff: noqa: RUF009 - the calls in these defaults make dataclass fields
from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import get_args

from moldau.spark.pipelines.errors import Where
from moldau.spark.pipelines.fields import (
    choice,
    duration,
    flag,
    function,
    number,
    pairs,
    part,
    schema,
    text,
    where,
    words,
)

# ---- parse ----------------------------------------------------------------------------------------------------------

ON_ERROR = ("dead_letter", "drop", "fail")
VALUES = ("avro", "json", "protobuf")
NEW_COLUMNS = ("ignore", "reject", "evolve")
_ON_ERROR_ABOUT = "what happens to a record that cannot be parsed or breaks a rule under `require`"
_REQUIRE_ABOUT = "rules a record has to keep: a name for each, and a SQL condition"
_SIZE_ABOUT = "values with more bytes are not looked at: they are records that cannot be parsed"
_TYPES_ABOUT = "types of columns that are not text, for example {bytes: bigint}"


@dataclass(slots=True, frozen=True, kw_only=True)
class JsonParse:
    schema: str = schema("columns and types, or `sample` to find them in the first records", "sample")
    sample_records: int = number("how many records `schema: sample` looks at", 1000)
    new_columns: str = choice(
        "a field the schema does not have: ignore it, reject the record, or evolve (tables gain a column)",
        "ignore",
        *NEW_COLUMNS,
    )
    strict: bool = flag("one object a value, no key twice, nothing but JSON: as Spark reads it, if false", True)
    require: Mapping[str, str] = pairs(_REQUIRE_ABOUT)
    on_error: str = choice(_ON_ERROR_ABOUT, "dead_letter", *ON_ERROR)
    options: Mapping[str, str] = pairs("Spark's JSON options, for example timestampFormat")
    where: Where = where()
    FORMAT = "json"


@dataclass(slots=True, frozen=True, kw_only=True)
class CsvParse:
    schema: str = schema("columns and types, in the order of the line")
    require: Mapping[str, str] = pairs(_REQUIRE_ABOUT)
    on_error: str = choice(_ON_ERROR_ABOUT, "dead_letter", *ON_ERROR)
    options: Mapping[str, str] = pairs("Spark's CSV options, for example sep")
    where: Where = where()
    FORMAT = "csv"


@dataclass(slots=True, frozen=True, kw_only=True)
class AvroParse:
    schema: str = text("path of the .avsc file with the reader's schema, or the schema itself")
    confluent_header: bool = flag("values begin with a zero byte and a schema id, as Confluent's serializers write")
    writer_schemas: Mapping[str, str] = pairs("other schemas records were written with: {id: path of an .avsc file}")
    require: Mapping[str, str] = pairs(_REQUIRE_ABOUT)
    on_error: str = choice(_ON_ERROR_ABOUT, "dead_letter", *ON_ERROR)
    where: Where = where()
    FORMAT = "avro"


@dataclass(slots=True, frozen=True, kw_only=True)
class RegistryParse:
    values: str = choice("what the values are: avro, json or protobuf, each with the id of its schema", "avro", *VALUES)
    subject: str = text("the subject whose newest schema gives the columns; without it, TOPIC-value")
    message: str = text("of Protobuf: the message that values are, with or without its package; without it, the first")
    require: Mapping[str, str] = pairs(_REQUIRE_ABOUT)
    on_error: str = choice(_ON_ERROR_ABOUT, "dead_letter", *ON_ERROR)
    where: Where = where()
    FORMAT = "registry"


@dataclass(slots=True, frozen=True, kw_only=True)
class RegexParse:
    pattern: str = text("a regular expression with named groups: each (?<name>…) is a column")
    types: Mapping[str, str] = pairs(_TYPES_ABOUT)
    max_bytes: int = number(_SIZE_ABOUT, 1 << 20)
    time_limit: str = duration(
        "how long one value may take, where the pattern looks around or goes back to a group; others need no limit",
        "1 second",
    )
    require: Mapping[str, str] = pairs(_REQUIRE_ABOUT)
    on_error: str = choice(_ON_ERROR_ABOUT, "dead_letter", *ON_ERROR)
    where: Where = where()
    FORMAT = "regex"


@dataclass(slots=True, frozen=True, kw_only=True)
class LogParse:
    line: str = text("how a line looks, for example '<date> <time> <level> <component>: <content>'")
    templates: tuple[str, ...] = words(
        "the known messages, with <*> where they vary; or `learn` to find them in the first records, and go on learning"
    )
    templates_file: str = text("a file with one template a line, instead of `templates`")
    of: str = text("the column the templates are matched against", "content")
    sample_records: int = number("how many records `templates: learn` looks at before it starts", 5000)
    types: Mapping[str, str] = pairs(_TYPES_ABOUT)
    max_bytes: int = number(_SIZE_ABOUT, 1 << 20)
    require: Mapping[str, str] = pairs(_REQUIRE_ABOUT)
    on_error: str = choice(_ON_ERROR_ABOUT, "dead_letter", *ON_ERROR)
    where: Where = where()
    FORMAT = "log"


@dataclass(slots=True, frozen=True, kw_only=True)
class TextParse:
    column: str = text("the column the value goes to", "value")
    require: Mapping[str, str] = pairs(_REQUIRE_ABOUT)
    on_error: str = choice(_ON_ERROR_ABOUT, "dead_letter", *ON_ERROR)
    where: Where = where()
    FORMAT = "text"


Parse = JsonParse | CsvParse | AvroParse | RegistryParse | RegexParse | LogParse | TextParse
PARSES: tuple[type, ...] = (JsonParse, CsvParse, AvroParse, RegistryParse, RegexParse, LogParse, TextParse)


@dataclass(slots=True, frozen=True, kw_only=True)
class Watermark:
    column: str = text("the column with the time of the event")
    delay: str = duration("how late data may be", "10 seconds")
    where: Where = where()


# ---- sources --------------------------------------------------------------------------------------------------------

METADATA = ("key", "topic", "partition", "offset", "timestamp", "headers")
_PARSE_ABOUT = "how a value becomes columns; without it the columns are the record's own"
_WATERMARK_ABOUT = "how late data may be, by which column"
_OUTAGE_ABOUT = "how long a database that has answered may be away before the query ends"


@dataclass(slots=True, frozen=True, kw_only=True)
class TopicSource:
    topic: str = text("one topic, or several with commas between")
    start: str = text("where a new query begins: earliest, latest, or a time such as 2026-11-15T12:00:00Z", "earliest")
    until: str = text("records of this time and later are left out: for runs that end", "")
    records_per_batch: int | None = number("at most so many records in a batch")
    as_table: bool = flag("not a stream: the newest record of each key, as a compacted topic means it, for joins")
    http: str = text("PORT or HOST:PORT where events are taken by POST and written to the topic before the answer")
    http_token: str = text("what callers send as `Authorization: Bearer …`; use ${secret:…}")
    metadata: tuple[str, ...] = words("columns of the record to keep, as _key, _topic, _partition, _offset, _timestamp")
    parse: Parse | None = part(_PARSE_ABOUT, *PARSES, key="format")
    watermark: Watermark | None = part(_WATERMARK_ABOUT, Watermark)
    options: Mapping[str, str] = pairs("options of the source, for example failOnDataLoss or kafka.* client settings")
    where: Where = where()


@dataclass(slots=True, frozen=True, kw_only=True)
class PatternSource:
    topic_pattern: str = text("a regular expression: every topic it matches, those to come included")
    start: str = text("where a new query begins: earliest, latest, or a time such as 2026-11-15T12:00:00Z", "earliest")
    until: str = text("records of this time and later are left out: for runs that end", "")
    records_per_batch: int | None = number("at most so many records in a batch")
    metadata: tuple[str, ...] = words("columns of the record to keep, as _key, _topic, _partition, _offset, _timestamp")
    parse: Parse | None = part(_PARSE_ABOUT, *PARSES, key="format")
    watermark: Watermark | None = part(_WATERMARK_ABOUT, Watermark)
    options: Mapping[str, str] = pairs("options of the source, for example failOnDataLoss or kafka.* client settings")
    where: Where = where()


FILE_FORMATS = ("csv", "json", "parquet", "text", "orc")


@dataclass(slots=True, frozen=True, kw_only=True)
class FileSource:
    files: str = text("a folder or a pattern of files")
    format: str = choice("how the files are written", "parquet", *FILE_FORMATS)
    schema: str = schema("columns and types; a stream of files needs it")
    static: bool = flag("not a stream: all files as they are, for joins")
    watermark: Watermark | None = part(_WATERMARK_ABOUT, Watermark)
    options: Mapping[str, str] = pairs("Spark's options for the format, for example header")
    where: Where = where()


@dataclass(slots=True, frozen=True, kw_only=True)
class RateSource:
    rate: int = number("rows a second, columns `timestamp` and `value`: for trying things out", 1)
    watermark: Watermark | None = part(_WATERMARK_ABOUT, Watermark)
    options: Mapping[str, str] = pairs("options of Spark's rate source")
    where: Where = where()


@dataclass(slots=True, frozen=True, kw_only=True)
class DatabaseSource:
    database: str = text("URL of the database, as SQLAlchemy writes it: postgresql+psycopg://user@host/name")
    table: str = text("the table to read; or use `query`")
    query: str = text("a SELECT to read instead of a whole table")
    cursor: str = text(
        "a column that only grows (an identity, a sequence): new rows become a stream; without it, static"
    )
    settle: str = duration("how long to wait for transactions that took a smaller cursor but commit later", "2 seconds")
    outage: str = duration(_OUTAGE_ABOUT, "2 minutes")
    rows_per_batch: int = number("at most so many rows in a batch", 10_000)
    schema: str = schema("columns and types; without it, asked of the database")
    where: Where = where()


@dataclass(slots=True, frozen=True, kw_only=True)
class DeltaSource:
    delta: str = text("folder of a Delta table, read as it is when the pipeline starts")
    changes: bool = flag("not the table but its change feed, as a stream; the table has delta.enableChangeDataFeed")
    start: str = text("of changes: the first version to read, or latest", "0")
    commits_per_batch: int = number("of changes: at most so many commits in a batch", 100)
    watermark: Watermark | None = part(_WATERMARK_ABOUT, Watermark)
    where: Where = where()


@dataclass(slots=True, frozen=True, kw_only=True)
class PythonSource:
    python: str = function("module:function that is given the SparkSession and returns a DataFrame")
    watermark: Watermark | None = part(_WATERMARK_ABOUT, Watermark)
    where: Where = where()


Source = TopicSource | PatternSource | FileSource | RateSource | DatabaseSource | DeltaSource | PythonSource
SOURCES: tuple[type, ...] = get_args(Source)


# ---- steps ----------------------------------------------------------------------------------------------------------

_NAME_ABOUT = "what later steps and sinks call the result"
_FROM_ABOUT = "the source or step to work on; without it, the one before"


@dataclass(slots=True, frozen=True, kw_only=True)
class SqlStep:
    sql: str = text("a SELECT; sources and earlier steps are its tables")
    name: str = text(_NAME_ABOUT)
    where: Where = where()


@dataclass(slots=True, frozen=True, kw_only=True)
class PythonStep:
    python: str = function("module:function that is given the DataFrame and returns one")
    options: Mapping[str, str] = pairs("keyword arguments for the function")
    name: str = text(_NAME_ABOUT)
    from_: str = text(_FROM_ABOUT)
    where: Where = where()


@dataclass(slots=True, frozen=True, kw_only=True)
class FilterStep:
    filter: str = text("a SQL condition; rows for which it holds stay")
    name: str = text(_NAME_ABOUT)
    from_: str = text(_FROM_ABOUT)
    where: Where = where()


@dataclass(slots=True, frozen=True, kw_only=True)
class SelectStep:
    select: tuple[str, ...] = words("SQL expressions, for example `price * amount AS total`")
    name: str = text(_NAME_ABOUT)
    from_: str = text(_FROM_ABOUT)
    where: Where = where()


@dataclass(slots=True, frozen=True, kw_only=True)
class RenameStep:
    rename: Mapping[str, str] = pairs("{old: new}")
    name: str = text(_NAME_ABOUT)
    from_: str = text(_FROM_ABOUT)
    where: Where = where()


@dataclass(slots=True, frozen=True, kw_only=True)
class CastStep:
    cast: Mapping[str, str] = pairs("{column: type}; a value that does not fit becomes null")
    name: str = text(_NAME_ABOUT)
    from_: str = text(_FROM_ABOUT)
    where: Where = where()


@dataclass(slots=True, frozen=True, kw_only=True)
class AddStep:
    add: Mapping[str, str] = pairs("{column: SQL expression}, added or replaced")
    name: str = text(_NAME_ABOUT)
    from_: str = text(_FROM_ABOUT)
    where: Where = where()


@dataclass(slots=True, frozen=True, kw_only=True)
class DropStep:
    drop: tuple[str, ...] = words("columns to leave out")
    name: str = text(_NAME_ABOUT)
    from_: str = text(_FROM_ABOUT)
    where: Where = where()


@dataclass(slots=True, frozen=True, kw_only=True)
class WatermarkStep:
    watermark: Watermark | None = part(_WATERMARK_ABOUT, Watermark)
    name: str = text(_NAME_ABOUT)
    from_: str = text(_FROM_ABOUT)
    where: Where = where()


@dataclass(slots=True, frozen=True, kw_only=True)
class Window:
    column: str = text("the column with the time of the event")
    size: str = duration("length of a window")
    slide: str = duration("a new window starts so often; without it, windows follow each other")
    gap: str = duration("instead of `size`: a session ends when nothing came for so long")
    where: Where = where()


@dataclass(slots=True, frozen=True, kw_only=True)
class AggregateStep:
    aggregate: Mapping[str, str] = pairs("{column: SQL aggregate}, for example {count: count(*), p95: …}")
    window: Window | None = part("windows of time; gives the columns window_start and window_end", Window)
    group_by: tuple[str, ...] = words("columns or SQL expressions to group by")
    name: str = text(_NAME_ABOUT)
    from_: str = text(_FROM_ABOUT)
    where: Where = where()


@dataclass(slots=True, frozen=True, kw_only=True)
class DedupStep:
    dedup: tuple[str, ...] = words("columns that tell duplicates; `*` for all")
    within_watermark: bool = flag("forget keys once the watermark has passed: bounded state", True)
    name: str = text(_NAME_ABOUT)
    from_: str = text(_FROM_ABOUT)
    where: Where = where()


JOINS = ("inner", "left", "right", "full", "left_semi", "left_anti")


@dataclass(slots=True, frozen=True, kw_only=True)
class JoinStep:
    join: str = text("the other source or step")
    on: tuple[str, ...] = words("columns both sides have, or one SQL condition (the sides are called by their names)")
    how: str = choice("which rows stay", "inner", *JOINS)
    name: str = text(_NAME_ABOUT)
    from_: str = text(_FROM_ABOUT)
    where: Where = where()


@dataclass(slots=True, frozen=True, kw_only=True)
class UnionStep:
    union: tuple[str, ...] = words("sources or steps with the same columns")
    name: str = text(_NAME_ABOUT)
    where: Where = where()


@dataclass(slots=True, frozen=True, kw_only=True)
class StatefulStep:
    stateful: str = function(
        "module:function for applyInPandasWithState (key, frames, state), or module:Class, a StatefulProcessor"
    )
    key: tuple[str, ...] = words("the columns state is kept by")
    output: str = schema("columns and types of what comes out")
    state: str = schema("columns and types of the state; not for a StatefulProcessor")
    mode: str = choice("what the function gives out", "append", "append", "update")
    timeout: str = choice("when an idle key is visited again", "none", "none", "processing_time", "event_time")
    name: str = text(_NAME_ABOUT)
    from_: str = text(_FROM_ABOUT)
    where: Where = where()


Step = (
    SqlStep
    | PythonStep
    | FilterStep
    | SelectStep
    | RenameStep
    | CastStep
    | AddStep
    | DropStep
    | WatermarkStep
    | AggregateStep
    | DedupStep
    | JoinStep
    | UnionStep
    | StatefulStep
)
STEPS: tuple[type, ...] = (
    SqlStep,
    PythonStep,
    FilterStep,
    SelectStep,
    RenameStep,
    CastStep,
    AddStep,
    DropStep,
    WatermarkStep,
    AggregateStep,
    DedupStep,
    JoinStep,
    UnionStep,
    StatefulStep,
)


# ---- sinks ----------------------------------------------------------------------------------------------------------

MODES = ("append", "update", "complete")
_SINK_FROM_ABOUT = "the source or step to write; without it, the last"
_MODE_ABOUT = "append new rows, update changed ones, or write the complete result each time"
_SINK_NAME_ABOUT = "names the query, and its folder in the checkpoint; keep it, or the query begins anew"
_EVERY_ABOUT = "how often a batch starts; without it, as soon as the one before is done"
_PARTITION_ABOUT = "columns to make folders by"


@dataclass(slots=True, frozen=True, kw_only=True)
class TopicSink:
    topic: str = text("the topic to write to")
    key: str = text("the column (or SQL expression) that is the record's key")
    value: str = text("`json`: all columns as JSON; else a column or SQL expression", "json")
    schema: str = choice("all columns as avro, json or protobuf under a schema, registered as TOPIC-value", "", *VALUES)
    headers: Mapping[str, str] = pairs("{header: column or SQL expression}")
    delivery: str = choice(
        "exactly-once by transactions, or at-least-once", "exactly-once", "exactly-once", "at-least-once"
    )
    options: Mapping[str, str] = pairs("options of the sink, for example kafka.* client settings")
    mode: str = choice(_MODE_ABOUT, "append", *MODES)
    every: str = duration(_EVERY_ABOUT)
    name: str = text(_SINK_NAME_ABOUT)
    from_: str = text(_SINK_FROM_ABOUT)
    where: Where = where()


@dataclass(slots=True, frozen=True, kw_only=True)
class ParquetSink:
    parquet: str = text("folder to write to")
    partition_by: tuple[str, ...] = words(_PARTITION_ABOUT)
    every: str = duration(_EVERY_ABOUT)
    name: str = text(_SINK_NAME_ABOUT)
    from_: str = text(_SINK_FROM_ABOUT)
    where: Where = where()


@dataclass(slots=True, frozen=True, kw_only=True)
class DeltaSink:
    delta: str = text("folder of the Delta table; made if it is not there")
    partition_by: tuple[str, ...] = words(_PARTITION_ABOUT)
    compact_every: int = number("join small files every so many batches; 0 never", 0, 0)
    mode: str = choice("append new rows, or write the complete result each time", "append", "append", "complete")
    options: Mapping[str, str] = pairs("storage options, as deltalake has them")
    every: str = duration(_EVERY_ABOUT)
    name: str = text(_SINK_NAME_ABOUT)
    from_: str = text(_SINK_FROM_ABOUT)
    where: Where = where()


@dataclass(slots=True, frozen=True, kw_only=True)
class IcebergSink:
    iceberg: str = text("namespace.table; made if it is not there")
    warehouse: str = text("folder of the tables")
    catalog: Mapping[str, str] = pairs("catalog settings, as pyiceberg has them; without, SQLite in the warehouse")
    partition_by: tuple[str, ...] = words(_PARTITION_ABOUT)
    compact_every: int = number("join small files every so many batches; 0 never", 0, 0)
    mode: str = choice("append new rows, or write the complete result each time", "append", "append", "complete")
    every: str = duration(_EVERY_ABOUT)
    name: str = text(_SINK_NAME_ABOUT)
    from_: str = text(_SINK_FROM_ABOUT)
    where: Where = where()


TABLES = ("delta", "iceberg")


@dataclass(slots=True, frozen=True, kw_only=True)
class TableSink:
    table: str = text("a topic as a table: folder of a Delta table, or namespace.table of an Iceberg one")
    format: str = choice("how the table is kept", "delta", *TABLES)
    warehouse: str = text("folder of Iceberg tables")
    catalog: Mapping[str, str] = pairs(
        "Iceberg catalog settings, as pyiceberg has them; without, SQLite in the warehouse"
    )
    partition_by: tuple[str, ...] = words(_PARTITION_ABOUT)
    compact_every: int = number("join small files every so many batches; 0 never", 20, 0)
    options: Mapping[str, str] = pairs("storage options, as deltalake has them")
    mode: str = choice("rows are appended", "append", "append")
    every: str = duration(_EVERY_ABOUT, "1 minute")
    name: str = text(_SINK_NAME_ABOUT)
    from_: str = text(_SINK_FROM_ABOUT)
    where: Where = where()


@dataclass(slots=True, frozen=True, kw_only=True)
class DatabaseSink:
    database: str = text("URL of the database, as SQLAlchemy writes it: postgresql+psycopg://user@host/name")
    table: str = text("the table; made if it is not there")
    key: tuple[str, ...] = words("columns that tell a row: a row that is there is updated; without, rows are inserted")
    delete_when: str = text("a SQL condition; rows for which it holds are deleted by their key")
    outage: str = duration(_OUTAGE_ABOUT, "2 minutes")
    mode: str = choice(_MODE_ABOUT, "append", *MODES)
    every: str = duration(_EVERY_ABOUT)
    name: str = text(_SINK_NAME_ABOUT)
    from_: str = text(_SINK_FROM_ABOUT)
    where: Where = where()


@dataclass(slots=True, frozen=True, kw_only=True)
class ConsoleSink:
    console: int = number("print so many rows of each batch", 20)
    mode: str = choice(_MODE_ABOUT, "append", *MODES)
    every: str = duration(_EVERY_ABOUT)
    name: str = text(_SINK_NAME_ABOUT)
    from_: str = text(_SINK_FROM_ABOUT)
    where: Where = where()


@dataclass(slots=True, frozen=True, kw_only=True)
class MemorySink:
    memory: str = text("name of a table in the session: for tests")
    mode: str = choice(_MODE_ABOUT, "append", "append", "complete")
    every: str = duration(_EVERY_ABOUT)
    name: str = text(_SINK_NAME_ABOUT)
    from_: str = text(_SINK_FROM_ABOUT)
    where: Where = where()


@dataclass(slots=True, frozen=True, kw_only=True)
class PythonSink:
    python: str = function("module:function that is given each batch as a DataFrame, and its number")
    mode: str = choice(_MODE_ABOUT, "append", *MODES)
    every: str = duration(_EVERY_ABOUT)
    name: str = text(_SINK_NAME_ABOUT)
    from_: str = text(_SINK_FROM_ABOUT)
    where: Where = where()


Sink = (
    TopicSink | ParquetSink | TableSink | DeltaSink | IcebergSink | DatabaseSink | ConsoleSink | MemorySink | PythonSink
)
SINKS: tuple[type, ...] = (
    TopicSink,
    ParquetSink,
    TableSink,
    DeltaSink,
    IcebergSink,
    DatabaseSink,
    ConsoleSink,
    MemorySink,
    PythonSink,
)


# ---- the whole ------------------------------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True, kw_only=True)
class Pipeline:
    name: str
    sources: Mapping[str, Source]
    sinks: tuple[Sink, ...]
    steps: tuple[Step, ...] = ()
    about: str = ""
    bootstrap_servers: str = ""
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    registry: Mapping[str, str] = field(default_factory=dict, repr=False)
    dead_letters: str = ""
    outage: str = "5 minutes"
    share_reads: bool = False
    checkpoint: str = ""
    spark: Mapping[str, str] = field(default_factory=dict)
    generator: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    folder: str = "."
    secrets: frozenset[str] = field(default_factory=frozenset, repr=False)  # never to be shown
    where: Where = field(default=Where(), compare=False, repr=False)

    @property
    def dead_letter_topic(self) -> str:
        return self.dead_letters or f"{self.name}-dlt"

    @property
    def checkpoint_folder(self) -> str:
        """Relative folders start at the pipeline file, so it does not matter where it is run from."""
        chosen = self.checkpoint or f"moldau-pipelines/{self.name}"
        return chosen if "://" in chosen else os.path.join(os.path.abspath(self.folder), chosen)


def kind_of(part_of_pipeline: object) -> str:
    """The key that names the kind: `topic`, `sql`, `database`…"""
    return str(next(iter(type(part_of_pipeline).__dataclass_fields__)))  # type: ignore[attr-defined]  # all are dataclasses
