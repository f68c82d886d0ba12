"""Records into columns. Good ones go on; bad ones keep their bytes and get a reason.

Every format gives the same shape: the parsed columns, `_raw` (the record as it came) and `_error` (null, or why not).
JSON, CSV and patterns are parsed in the JVM, which is fast but does not say what is wrong; the reason is found by
Python for the bad ones alone, in the query that writes dead letters.

Invariant: a record is in exactly one of `good` and `bad`, or is a tombstone (null value), which has nothing to parse.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f
from pyspark.sql import types as t

from moldau.spark.pipelines import json_limits, model
from moldau.spark.pipelines.durations import seconds_of
from moldau.spark.pipelines.patterns import group_names, java_pattern, line_pattern
from moldau.spark.pipelines.schema import parse_schema, parse_type

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from moldau.spark.registry.formats import ReaderSchema

RAW, ERROR, EXTRA = "_raw", "_error", "_extra"
_CORRUPT, _PARSED, _FENCE = "_corrupt", "_parsed", "_fence"
# Reasons Spark cannot give: Python looks at the value.
_UNEXPLAINED_JSON, _UNEXPLAINED_CSV = "?json", "?csv"
_SHOWN_CHARACTERS_MAX = 100


@dataclass(slots=True, frozen=True)
class Given:
    """What was found out before parsing starts: by sampling, or by reading files beside the pipeline."""

    schema: t.StructType | None = None
    templates: Mapping[str, str] = dataclasses.field(default_factory=dict)  # template to id
    template_folder: str = ""  # where tasks find and leave what is learnt on
    avro_schema: str = ""
    avro_writers: dict[int, str] | None = None
    reader: ReaderSchema | None = None


def parsed(records: DataFrame, parse: model.Parse, given: Given) -> DataFrame:
    """Parsed columns, `_raw` and `_error`. `records` has the columns of the source."""
    packed = records.where("value IS NOT NULL").select(f.struct("*").alias(RAW))
    match parse:
        case model.JsonParse():
            frame = _json(packed, parse, given)
        case model.CsvParse():
            frame = _csv(packed, parse)
        case model.AvroParse():
            frame = _avro(packed, parse, given)
        case model.RegistryParse():
            frame = _registered(packed, given)
        case model.RegexParse():
            frame = _regex(packed, parse)
        case model.LogParse():
            frame = _log(packed, parse, given)
        case model.TextParse():
            frame = packed.select(_text().alias(parse.column), RAW, _text_error().alias(ERROR))
    return _required(frame, parse)


def good(frame: DataFrame, metadata: Sequence[str], key_as: str = "") -> DataFrame:
    """The parsed columns of records without error, and what of the record itself is wanted."""
    columns = [name for name in frame.columns if name not in (RAW, ERROR)]
    own = [f.col(f"{RAW}.{name}").alias(f"_{name}") for name in metadata]
    if key_as:
        own.append(f.col(f"{RAW}.key").alias(key_as))
    return frame.where(f.col(ERROR).isNull()).select(*map(_quoted, columns), *own)


def together(frame: DataFrame, metadata: Sequence[str]) -> DataFrame:
    """Good and bad rows in one, for those who keep them: records as they came are kept of bad ones only."""
    columns = [name for name in frame.columns if name not in (RAW, ERROR)]
    own = [f.col(f"{RAW}.{name}").alias(f"_{name}") for name in metadata]
    raw = f.when(f.col(ERROR).isNotNull(), f.col(RAW)).alias(RAW)
    return frame.select(*map(_quoted, columns), *own, raw, ERROR)


def good_of(both: DataFrame) -> DataFrame:
    """The good rows of what `together` gave."""
    return both.where(f.col(ERROR).isNull()).drop(RAW, ERROR)


def bad(frame: DataFrame, parse: model.Parse, given: Given) -> DataFrame:
    """Records with an error: their own columns, and `_error` in words."""
    kept = frame.where(f.col(ERROR).isNotNull()).select(f"{RAW}.*", ERROR)
    if isinstance(parse, model.JsonParse | model.CsvParse):
        return kept.withColumn(ERROR, _explained(parse, given))
    return kept


def failing(frame: DataFrame, parse: model.Parse, given: Given) -> DataFrame:
    """For `on_error: fail`: the first bad record stops the query, and says which it was, and why."""
    if isinstance(parse, model.JsonParse | model.CsvParse):
        bad = f.struct(_value().alias("value"), f.col(ERROR).alias("error"))
        frame = frame.withColumn(ERROR, _explained_of_few(parse, given)(f.when(f.col(ERROR).isNotNull(), bad)))
    message = f.concat(
        f.lit("record "),
        f.col(f"{RAW}.topic"),
        f.lit("-"),
        f.col(f"{RAW}.partition").cast("string"),
        f.lit("@"),
        f.col(f"{RAW}.offset").cast("string"),
        f.lit(": "),
        f.col(ERROR),
    )
    checked = f.when(f.col(ERROR).isNull(), f.lit(None).cast("string")).otherwise(f.raise_error(message).cast("string"))
    return frame.withColumn(ERROR, checked)


def _quoted(name: str) -> str:
    return f"`{name}`"


def _value() -> Column:
    return f.col(f"{RAW}.value")


def _text() -> Column:
    return _value().cast("string")


def _text_error() -> Column:
    return f.when(~f.is_valid_utf8(_value()), f.lit("not UTF-8 text"))


def _parsed_once(packed: DataFrame, value: Column) -> DataFrame:
    """`_raw` and `_parsed`, and beside them something that is not deterministic: Spark moves no filter below that.

    Otherwise the filter on `_error`, and every filter of the user's, would take a copy of the parser with it for each
    column it asks about, and a value would be parsed several times.
    """
    return packed.select(RAW, value.alias(_PARSED), f.spark_partition_id().alias(_FENCE))


def _fenced(error: Column) -> Column:
    """The error as it is. It mentions the fence, which would be removed if nobody asked for it."""
    return f.when(f.col(_FENCE) >= 0, error)


# ---- JSON and CSV ---------------------------------------------------------------------------------------------------


def schema_of(parse: model.JsonParse | model.CsvParse, given: Given) -> t.StructType:
    return given.schema if given.schema is not None else parse_schema(parse.schema)


def _nullable(schema: t.StructType, *more: t.StructField) -> t.StructType:
    return t.StructType([t.StructField(field.name, field.dataType) for field in schema.fields] + list(more))


def _with_corrupt(schema: t.StructType) -> t.StructType:
    return _nullable(schema, t.StructField(_CORRUPT, t.StringType()))


def _missing(schema: t.StructType, parsed: str = _PARSED) -> Column:
    """The first NOT NULL column that is null."""
    column = f.lit(None).cast("string")
    for field in reversed(schema.fields):
        if not field.nullable:
            reason = f.lit(f"field {field.name}: missing or null, but the schema says NOT NULL")
            column = f.when(f.col(f"{parsed}.`{field.name}`").isNull(), reason).otherwise(column)
    return column


def _json(packed: DataFrame, parse: model.JsonParse, given: Given) -> DataFrame:
    """Spark's reader stops after the first object, lets the last of two equal keys win, and takes quotes of both kinds.

    So the value is read inside of an object of ours, where nothing but a comma or a brace can follow it, and once more
    inside of an array, where nothing but a comma or a bracket can, by the reader of variants, which refuses equal keys.
    Nothing but blanks can follow in both. What Spark's reader lets run over silently is `json_limits`' business.
    """
    schema = schema_of(parse, given)
    strictly = {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false"} if parse.strict else {}
    options = {**strictly, **parse.options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    roomy = json_limits.roomy(_nullable(schema)) if parse.strict else _nullable(schema)
    wrapper = t.StructType([t.StructField("v", roomy), t.StructField(_CORRUPT, t.StringType())])
    read = f.from_json(f.concat(f.lit('{"v":'), _text(), f.lit("}")), wrapper, options)
    whole = f.try_parse_json(f.concat(f.lit("["), _text(), f.lit("]"))).isNotNull() if parse.strict else f.lit(True)
    frame = _parsed_once(packed, f.struct(read.alias("read"), whole.alias("whole")))
    inner = f"{_PARSED}.read.v"
    known = f.array(*(f.lit(name) for name in schema.names))
    is_bad = (
        f.col(inner).isNull()
        | f.col(f"{_PARSED}.read.{_CORRUPT}").isNotNull()
        | ~f.col(f"{_PARSED}.whole")
        | (json_limits.beyond(f.col(inner), schema, _text()) if parse.strict else f.lit(False))
    )
    error = f.when(is_bad, f.lit(_UNEXPLAINED_JSON)).otherwise(_missing(schema, inner))
    kinds = json_limits.nullable(schema).fields
    columns = [f.col(f"{inner}.`{each.name}`").try_cast(each.dataType).alias(each.name) for each in kinds]
    if parse.new_columns == "reject":
        new = f.array_except(f.coalesce(f.json_object_keys(_text()), f.array().cast("array<string>")), known)
        reason = f.concat(f.lit("fields the schema does not have: "), f.array_join(new, ", "))
        error = f.coalesce(error, f.when(f.size(new) > 0, reason))
    if parse.new_columns == "evolve":
        every = f.from_json(_text(), t.MapType(t.StringType(), t.StringType()))
        columns.append(f.map_filter(every, lambda key, _: ~f.array_contains(known, key)).alias(EXTRA))
    return frame.select(*columns, RAW, _fenced(f.coalesce(_text_error(), error)).alias(ERROR))


def _csv(packed: DataFrame, parse: model.CsvParse) -> DataFrame:
    schema = parse_schema(parse.schema)
    options = {**parse.options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    ddl = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in _with_corrupt(schema).fields)
    frame = _parsed_once(packed, f.from_csv(_text(), ddl, options))
    bad_line = f.col(_PARSED).isNull() | f.col(f"{_PARSED}.{_CORRUPT}").isNotNull()
    error = f.when(bad_line, f.lit(_UNEXPLAINED_CSV)).otherwise(_missing(schema))
    columns = [f.col(f"{_PARSED}.`{name}`").alias(name) for name in schema.names]
    return frame.select(*columns, RAW, _fenced(f.coalesce(_text_error(), error)).alias(ERROR))


def _explained(parse: model.JsonParse | model.CsvParse, given: Given) -> Column:
    """Reasons in words. The function runs for the bad records only, so it may be slow."""
    return f.udf(_reason(parse, given), t.StringType(), useArrow=True)(f.col("value"), f.col(ERROR))


def _explained_of_few(parse: model.JsonParse | model.CsvParse, given: Given) -> Any:
    """The same for a column of `value` and `error` that is null for good records: Spark asks about all of them."""
    reason = _reason(parse, given)

    def explain(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            if batch.null_count == len(batch):
                yield pa.nulls(len(batch), pa.string())
            else:
                told = [None if each is None else reason(each["value"], each["error"]) for each in batch.to_pylist()]
                yield pa.array(told, pa.string())

    return _arrow_udf(explain, t.StringType())


def _reason(parse: model.JsonParse | model.CsvParse, given: Given) -> Callable[[bytes | None, str], str]:
    schema = schema_of(parse, given)
    is_json = isinstance(parse, model.JsonParse)
    strict = isinstance(parse, model.JsonParse) and parse.strict
    separator = "," if is_json else parse.options.get("sep", parse.options.get("delimiter", ","))

    def reason(value: bytes | None, known: str) -> str:
        if known not in (_UNEXPLAINED_JSON, _UNEXPLAINED_CSV):
            return known
        from moldau.spark.pipelines import csv_text, json_text

        if is_json:
            return json_text.explain(None if value is None else bytes(value), schema, strict=strict)
        return csv_text.explain(None if value is None else bytes(value), schema, separator)

    return reason


# ---- patterns and logs ----------------------------------------------------------------------------------------------


def _regex(packed: DataFrame, parse: model.RegexParse) -> DataFrame:
    """Groups are found in Python workers by an engine that cannot run away (`linear_groups`)."""
    from moldau.spark.pipelines.linear_groups import finder

    names = group_names(parse.pattern)
    found = t.StructType([t.StructField(name, t.StringType()) for name in names])
    returns = t.StructType([t.StructField("found", found), t.StructField("error", t.StringType())])
    frame = _parsed_once(
        packed, _arrow_udf(finder(parse.pattern, seconds_of(parse.time_limit)), returns)(_sized(parse.max_bytes))
    )
    texts = {name: f.nullif(f.col(f"{_PARSED}.found.`{name}`"), f.lit("")) for name in names}
    error = f.coalesce(_too_large(parse.max_bytes), f.col(f"{_PARSED}.error"))
    return _typed(frame, texts, parse.types, error, _fenced)


def _line(packed: DataFrame, parse: model.LogParse) -> DataFrame:
    """Lines of logs are matched in the JVM: their patterns are ours, and linear."""
    java, groups = java_pattern(line_pattern(parse.line))
    text = _sized(parse.max_bytes)
    unlike = f.when(~text.rlike(java), f.lit("the value does not match the pattern"))
    texts = {name: f.nullif(f.regexp_extract(text, java, number), f.lit("")) for name, number in groups.items()}
    return _typed(packed, texts, parse.types, f.coalesce(_too_large(parse.max_bytes), unlike), lambda error: error)


def _sized(bytes_max: int) -> Column:
    """The text; null, which no engine looks at, if there is too much of it."""
    return f.when(f.octet_length(_value()) <= bytes_max, _text())


def _too_large(bytes_max: int) -> Column:
    size = f.octet_length(_value())
    words = f.concat(f.lit("the value has "), size.cast("string"), f.lit(f" bytes, more than max_bytes: {bytes_max}"))
    return f.when(size > bytes_max, words)


def _typed(
    frame: DataFrame,
    texts: Mapping[str, Column],
    types: Mapping[str, str],
    error: Column,
    fenced: Callable[[Column], Column],
) -> DataFrame:
    """The columns, each of its type; a text that is not of its type is an error."""
    columns = []
    for name, text in texts.items():
        if name not in types:
            columns.append(text.alias(name))
            continue
        kind = parse_type(types[name]).simpleString()
        typed = text.try_cast(kind)
        reason = f.concat(f.lit(f"field {name}: expected {kind}, found "), f.substring(text, 1, _SHOWN_CHARACTERS_MAX))
        error = f.coalesce(error, f.when(text.isNotNull() & typed.isNull(), reason))
        columns.append(typed.alias(name))
    return frame.select(*columns, RAW, fenced(f.coalesce(_text_error(), error)).alias(ERROR))


_TEMPLATE_TYPE = t.StructType(
    [
        t.StructField("template", t.StringType()),
        t.StructField("template_id", t.StringType()),
        t.StructField("parameters", t.ArrayType(t.StringType())),
    ]
)


def _log(packed: DataFrame, parse: model.LogParse, given: Given) -> DataFrame:
    frame = _line(packed, parse)
    if not given.templates:
        return frame
    templates, folder, learning = dict(given.templates), given.template_folder, parse.templates == ("learn",)

    def match(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        from moldau.spark.pipelines.template_state import TaskMatcher

        matcher = TaskMatcher(folder, templates, learning=learning)
        types = pa.struct(
            [("template", pa.string()), ("template_id", pa.string()), ("parameters", pa.list_(pa.string()))]
        )
        for batch in batches:
            rows: list[dict[str, Any] | None] = []
            for message in batch.to_pylist():
                found = None if message is None else matcher.match(message)
                rows.append(
                    {"template": None, "template_id": None, "parameters": None}
                    if found is None
                    else {"template": found.template, "template_id": found.template_id, "parameters": found.parameters}
                )
            yield pa.array(rows, types)
        matcher.finish()

    udf = _arrow_udf(match, _TEMPLATE_TYPE)
    columns = [_quoted(name) for name in frame.columns if name not in (RAW, ERROR)]
    return frame.withColumn("_match", udf(f.col(parse.of))).select(*columns, "_match.*", RAW, ERROR)


def _arrow_udf(function: Any, returns: t.DataType) -> Any:
    """A UDF over an iterator of Arrow arrays: what is set up once serves all batches of a task."""
    import pyarrow as pa
    from pyspark.sql.pandas.functions import arrow_udf

    # Spark tells the kind of function by its hints, which must be the types themselves and not their names.
    function.__annotations__ = {"batches": Iterator[pa.Array], "return": Iterator[pa.Array]}
    make: Any = arrow_udf  # its overloads know of no struct types, which it returns very well
    return make(function, returns)


# ---- Avro -----------------------------------------------------------------------------------------------------------


def _avro(packed: DataFrame, parse: model.AvroParse, given: Given) -> DataFrame:
    from moldau.spark.arrow_values import plain
    from moldau.spark.avro_types import record_schema
    from moldau.spark.pipelines.avro_records import Decoder

    reader, writers, header = given.avro_schema, given.avro_writers or {}, parse.confluent_header

    def make() -> Callable[[bytes], Any]:
        decoder = Decoder(reader, writers, header)
        return lambda value: plain(decoder.decode(value))

    return _decoded(packed, record_schema(given.avro_schema), make)


def _registered(packed: DataFrame, given: Given) -> DataFrame:
    from moldau.spark.registry.formats import Decoder

    reader = given.reader
    assert reader is not None, "the source has asked the registry"
    return _decoded(packed, reader.spark_type(), lambda: Decoder(reader).decode)


def _decoded(packed: DataFrame, schema: t.StructType, make: Callable[[], Callable[[bytes], Any]]) -> DataFrame:
    """The columns that a decoder gives; a value it refuses, or whose fields do not fit, is an error of its own."""
    inner = _nullable(schema)
    returns = t.StructType([t.StructField("record", inner), t.StructField("error", t.StringType())])

    def decode(batches: Iterator[Any]) -> Iterator[Any]:
        from moldau.spark.arrow_rows import decoded
        from moldau.spark.arrow_types import arrow_type_of

        decoder = make()
        record_type = arrow_type_of(inner)
        for batch in batches:
            yield decoded(batch, decoder, record_type)

    frame = _parsed_once(packed, _arrow_udf(decode, returns)(_value()))
    columns = [f.col(f"{_PARSED}.record.`{name}`").alias(name) for name in schema.names]
    return frame.select(*columns, RAW, _fenced(f.col(f"{_PARSED}.error")).alias(ERROR))


# ---- rules ----------------------------------------------------------------------------------------------------------


def _required(frame: DataFrame, parse: model.Parse) -> DataFrame:
    """A rule has to be true; null is not."""
    error: Column = f.col(ERROR)
    for name, condition in parse.require.items():
        broken = ~f.coalesce(f.expr(condition).cast("boolean"), f.lit(False))
        error = f.coalesce(error, f.when(broken, f.lit(f"rule {name!r} is broken: {condition}")))
    return frame.withColumn(ERROR, error) if parse.require else frame


def read_templates(parse: model.LogParse, folder: str) -> dict[str, str]:
    """The templates a pipeline names itself, with their ids; empty if there are none, or if they are to be learned."""
    if parse.templates_file:
        with open(os.path.join(folder, parse.templates_file), encoding="utf-8") as file:
            named = [line.rstrip("\n") for line in file if line.strip()]
    else:
        named = [] if parse.templates == ("learn",) else list(parse.templates)
    return {template: f"T{number}" for number, template in enumerate(dict.fromkeys(named), 1)}
