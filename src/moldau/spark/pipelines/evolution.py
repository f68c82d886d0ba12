"""Fields that the schema does not have (`new_columns: evolve`), as columns of the table that records are written to.

Records are not ours: whoever writes them chooses the names, and how many there are. So names that differ in case only
are one column, as they are to most who read tables; and what cannot be a column (names without end, of nothing, or with
characters that no table takes; more columns than a table bears) is kept as JSON in one of its own.

Invariant: no field of a record stops a pipeline, or is lost because of its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from moldau.spark.pipelines import model
from moldau.spark.pipelines.parse import EXTRA

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MORE = "_more"
COLUMNS_MAX = 1_000
NAME_BYTES_MAX = 255
_KEYS_MAX = 10_000
_METADATA = frozenset(f"_{name}" for name in model.METADATA)
_UNUSABLE = re.compile(r"[\x00-\x1f\x7f`.]")  # a name with a point PySpark takes for a field of a struct


def evolved(rows: DataFrame, known: Mapping[str, Any], name_bytes_max: int = NAME_BYTES_MAX) -> DataFrame:
    """What `_extra` holds in this batch, as columns: text, or of the type that the table's column has (`known`: by
    name; None is text)."""
    if EXTRA not in rows.columns:
        return rows
    keys = [
        row.key
        for row in rows.select(f.explode(f.map_keys(EXTRA)).alias("key"))
        .distinct()
        .orderBy("key")
        .limit(_KEYS_MAX)
        .collect()
    ]
    own = {name.lower(): name for name in rows.columns}
    there = {name.lower(): name for name in known}
    left = COLUMNS_MAX - len((own.keys() | there.keys()) - {EXTRA, MORE})
    kinds = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
    columns: dict[str, Column] = {}
    taken: list[str] = []
    for name, spelled in _by_name(keys).items():
        if name in _METADATA or not _is_usable(name, name_bytes_max):
            continue
        if name in own:  # the record may spell it otherwise than the schema
            column = own[name]
            values = [f.col(EXTRA)[each].try_cast(kinds[column]) for each in spelled]
            columns[column] = f.coalesce(f.col(f"`{column}`"), *values)
        elif name in there or left > 0:
            left -= name not in there
            column = there.get(name, spelled[0])
            text = f.coalesce(*(f.col(EXTRA)[each] for each in sorted(spelled, key=lambda each: each != column)))
            columns[column] = text if known.get(column) is None else text.try_cast(known[column])
        else:
            continue
        taken += spelled
    if len(taken) < len(keys) or len(keys) == _KEYS_MAX or MORE in there:
        rest = f.map_filter(EXTRA, lambda key, _: ~f.array_contains(f.array(*map(f.lit, taken)).cast(_TEXTS), key))
        columns[MORE] = f.when(f.size(rest) > 0, f.to_json(rest))
    return (rows.withColumns(columns) if columns else rows).drop(EXTRA)


_TEXTS = "array<string>"


def _by_name(keys: Iterable[str]) -> dict[str, list[str]]:
    """How each name is spelled."""
    found: dict[str, list[str]] = {}
    for key in keys:
        found.setdefault(key.lower(), []).append(key)
    return found


def _is_usable(name: str, bytes_max: int) -> bool:
    return 0 < len(name.encode(errors="replace")) <= bytes_max and _UNUSABLE.search(name) is None
