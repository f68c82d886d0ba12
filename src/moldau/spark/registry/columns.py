"""Decoded values as a column of the source, and a column of structs as values of the sink."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from moldau.spark.arrow_rows import decoded
from moldau.spark.arrow_types import arrow_type_of
from moldau.spark.registry.client import RegistrySettings
from moldau.spark.registry.formats import Decoder, ReaderSchema, encoder_of_tasks


class BadValue(ValueError):
    """A value that cannot be decoded; says which record it is, and how to go on."""


def with_values(rows: Iterator[Any], reader: ReaderSchema, *, fails: bool) -> Iterator[Any]:
    """The source's rows with their values decoded."""
    decoder = Decoder(reader)
    kind = arrow_type_of(reader.spark_type())
    for batch in rows:
        place = batch.schema.get_field_index("value")
        record, errors = decoded(batch.column(place), decoder.decode, kind).flatten()
        if fails and errors.null_count < len(errors):
            at = next(index for index, error in enumerate(errors.to_pylist()) if error is not None)
            where = "{topic}-{partition} offset {offset}".format(
                **{name: batch.column(name)[at].as_py() for name in ("topic", "partition", "offset")}
            )
            raise BadValue(f"the value at {where}: {errors[at].as_py()}. For null instead, set valueMode=PERMISSIVE")
        yield batch.set_column(place, pa.field("value", kind), record)


def with_bytes(
    batches: Iterator[Any], format_: str, settings: RegistrySettings, subject: str, schema: StructType
) -> Iterator[Any]:
    """The sink's rows with their values encoded under a registered schema."""
    encoder = encoder_of_tasks(format_, settings, subject, schema.json())
    for batch in batches:
        place = batch.schema.get_field_index("value")
        values = [None if each is None else encoder.encode(each) for each in batch.column(place).to_pylist()]
        yield batch.set_column(place, pa.field("value", pa.binary()), pa.array(values, pa.binary()))
