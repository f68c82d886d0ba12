"""Fields that the schema does not have (`new_columns: evolve`), as columns of the table that records are written to.

Records are not ours: whoever writes them chooses the names, and how many there are. So names that differ in case only
are one column, as they are to most who read tables; and what cannot be a column (names without end, of nothing, or with
characters that no table takes; more columns than a table bears) is kept as JSON in one of its own, together with what
has no place in the column of its name: a record's second spelling, a text where there are numbers.

Invariant: no field of a record stops a pipeline, is lost, or takes the place of another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as f
from pyspark.sql import types as t

from moldau.spark.pipelines import model
from moldau.spark.pipelines.parse import EXTRA

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MORE = "_more"
DELETE = "_moldau_delete"  # what the database's sink marks rows with
_REST = "_moldau_rest"
COLUMNS_MAX = 1_000
NAME_BYTES_MAX = 255
_KEYS_MAX = 10_000
_OURS = frozenset((*(f"_{name}" for name in model.METADATA), EXTRA, MORE, DELETE, _REST))
_UNUSABLE = re.compile(r"[\x00-\x1f\x7f`.]")  # a name with a point PySpark takes for a field of a struct
_TAKE_NO_TEXT = (t.StructType, t.ArrayType, t.MapType, t.NullType)
_TEXT = "string"
_TEXTS = "array<string>"


def evolved(rows: DataFrame, known: Mapping[str, str | None], name_bytes_max: int = NAME_BYTES_MAX) -> DataFrame:
    """What `_extra` holds in this batch, as columns: text, or of the type that the table's column has (`known`: by
    name; None is nested, where no text fits)."""
    if EXTRA not in rows.columns:
        return rows
    own = {folded(name): name for name in rows.columns}
    there = {folded(name): name for name in known}
    left = COLUMNS_MAX - len((own.keys() | there.keys()) - {EXTRA, MORE})
    kinds = {each.name: _cast_to(each.dataType) for each in rows.schema.fields}
    columns: dict[str, Column] = {}
    taken: list[str] = []  # these always fit
    used: list[Column] = []  # of others, the name under which a record's value was taken
    keys = _keys(rows, name_bytes_max)
    for name, spelled in _by_name(keys).items():
        if name in _OURS or not _is_usable(name, name_bytes_max):
            continue
        if name in own:  # the record may spell it otherwise than the schema
            column, kind = own[name], kinds[own[name]]
        elif name in there or left > 0:
            left -= name not in there
            column = there.get(name, spelled[0])
            kind = known.get(column, _TEXT)
        else:
            continue
        if kind is None:
            continue
        as_named = sorted(spelled, key=column.__ne__)
        values = [f.col(EXTRA)[each].try_cast(kind) for each in as_named]
        first = [f.col(f"`{column}`")] if name in own else []
        columns[column] = f.coalesce(*first, *values)
        if len(spelled) == 1 and not first and kind == _TEXT:
            taken += spelled
            continue
        which = f.coalesce(*(f.when(value.isNotNull(), each) for each, value in zip(as_named, values, strict=True)))
        used.append(f.when(first[0].isNull(), which) if first else which)
        # A null is none the worse for not being kept.
        used += [f.when(f.col(EXTRA)[each].isNull(), each) for each in spelled]
    rest = _rest(taken, used)
    is_complete = len(keys) < _KEYS_MAX and len(taken) == len(keys)
    if MORE in there or not (is_complete or rows.where(f.size(rest) > 0).limit(1).isEmpty()):
        # First, of the columns as they were: within one step, Spark may look at those that are just made.
        rows = rows.withColumn(_REST, f.when(f.size(rest) > 0, f.to_json(rest)))
        columns[there.get(MORE, MORE)] = f.col(_REST)
    return (rows.withColumns(columns) if columns else rows).drop(EXTRA, _REST)


def _keys(rows: DataFrame, bytes_max: int) -> list[str]:
    """How fields are called in this batch. All that are too long count as one without a name: nobody bears thousands of
    those in memory."""
    key = f.explode(f.map_keys(EXTRA)).alias("key")
    short = f.when(f.octet_length("key") <= bytes_max, f.col("key")).otherwise("").alias("key")
    return [row.key for row in rows.select(key).select(short).distinct().orderBy("key").limit(_KEYS_MAX).collect()]


def _cast_to(kind: t.DataType) -> str | None:
    return None if isinstance(kind, _TAKE_NO_TEXT) else kind.simpleString()


def _rest(taken: Iterable[str], used: Iterable[Column]) -> Column:
    """A record's fields that are in no column."""
    names = f.array(*map(f.lit, taken)).cast(_TEXTS)
    own = f.array_compact(f.array(*used).cast(_TEXTS))
    return f.map_filter(EXTRA, lambda key, _: ~f.array_contains(names, key) & ~f.array_contains(own, key))


def folded(name: str) -> str:
    """The same for names that Spark takes for one, which compares as Java does: letter by letter, the large ones, made
    small. So İ, ı and i are one."""
    return "".join(map(_folded_letter, name))


def _folded_letter(letter: str) -> str:
    large = letter.upper()
    return (large if len(large) == 1 else letter).lower()[:1]


def _by_name(keys: Iterable[str]) -> dict[str, list[str]]:
    """How each name is spelled."""
    found: dict[str, list[str]] = {}
    for key in keys:
        found.setdefault(folded(key), []).append(key)
    return found


def _is_usable(name: str, bytes_max: int) -> bool:
    return 0 < len(name.encode(errors="replace")) <= bytes_max and _UNUSABLE.search(name) is None
