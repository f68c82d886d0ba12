"""Bad records as dead letters: the bytes as they came, their headers, and headers that say where from and why.

Header names and encodings are those that tools already read: Spring's `kafka_dlt-*` (numbers as big-endian bytes),
Connect's `__connect.errors.*` (numbers as text), and `x-original-topic`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from moldau.spark.pipelines.parse import ERROR

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ERROR_CLASS = "moldau.spark.pipelines.BadRecord"


def dead_letters(bad: DataFrame, topic: str, query: str) -> DataFrame:
    """Rows for the sink. `bad` has the source's columns, headers included, and `_error`."""
    text = f.encode(f.col(ERROR), "UTF-8")
    offset, partition = f.col("offset"), f.col("partition")
    when_ms = f.unix_millis("timestamp")
    added = {
        "kafka_dlt-original-topic": _utf8(f.col("topic")),
        "kafka_dlt-original-partition": _big_endian(partition, 4),
        "kafka_dlt-original-offset": _big_endian(offset, 8),
        "kafka_dlt-original-timestamp": _big_endian(when_ms, 8),
        "kafka_dlt-original-timestamp-type": _utf8(
            f.when(f.col("timestampType") == 1, f.lit("LogAppendTime")).otherwise(f.lit("CreateTime"))
        ),
        "kafka_dlt-exception-fqcn": _utf8(f.lit(ERROR_CLASS)),
        "kafka_dlt-exception-message": text,
        "__connect.errors.topic": _utf8(f.col("topic")),
        "__connect.errors.partition": _utf8(partition.cast("string")),
        "__connect.errors.offset": _utf8(offset.cast("string")),
        "__connect.errors.connector.name": _utf8(f.lit(query)),
        "__connect.errors.stage": _utf8(f.lit("VALUE_CONVERTER")),
        "__connect.errors.exception.class.name": _utf8(f.lit(ERROR_CLASS)),
        "__connect.errors.exception.message": text,
        "x-original-topic": _utf8(f.col("topic")),
    }
    headers = f.array(*(f.struct(f.lit(name).alias("key"), value.alias("value")) for name, value in added.items()))
    before = f.coalesce(f.col("headers"), f.array().cast(bad.schema["headers"].dataType))
    return bad.select("key", "value", f.concat(before, headers).alias("headers"), f.lit(topic).alias("topic"))


def _utf8(text: Column) -> Column:
    return f.encode(text, "UTF-8")


def _big_endian(number: Column, size: int) -> Column:
    return f.unhex(f.lpad(f.hex(number.cast("bigint")), 2 * size, "0"))
