"""Steps of the model, applied to DataFrames. One function a kind; each does what its name in the file says."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from moldau.spark.pipelines import model
from moldau.spark.pipelines.functions import find
from moldau.spark.pipelines.schema import parse_schema, parse_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COLUMN = re.compile(r"[A-Za-z_]\w*")


class Size(Enum):
    """How much a batch is. Batches are looked at for it, because a row must be in the same task when its batch comes
    again; a table may have grown meanwhile."""

    FEW_ROWS = "few rows"
    MANY_ROWS = "many rows"


def apply(
    spark: SparkSession,
    step: model.Step,
    inputs: Mapping[str, DataFrame],
    folder: str,
    looking_up: Size | None = None,
) -> DataFrame:
    """The rows of a step. `inputs` are what it reads, by name, in the step's order.

    `looking_up` is for joins of a batch of that size with a table.
    """
    if isinstance(step, model.SqlStep):
        return spark.sql(step.sql)
    frames = list(inputs.values())
    rows = frames[0]
    match step:
        case model.PythonStep():
            changed: DataFrame = find(step.python, folder)(rows, **step.options)
            return changed
        case model.FilterStep():
            return rows.where(step.filter)
        case model.SelectStep():
            return rows.selectExpr(*step.select)
        case model.RenameStep():
            return _rename(rows, step.rename)
        case model.CastStep():
            return rows.withColumns(
                {name: f.col(f"`{name}`").try_cast(parse_type(kind)) for name, kind in step.cast.items()}
            )
        case model.AddStep():
            return rows.withColumns({name: f.expr(expression) for name, expression in step.add.items()})
        case model.DropStep():
            return rows.drop(*step.drop)
        case model.WatermarkStep():
            assert step.watermark is not None
            return rows.withWatermark(step.watermark.column, step.watermark.delay)
        case model.AggregateStep():
            return _aggregate(rows, step)
        case model.DedupStep():
            return _dedup(rows, step)
        case model.JoinStep():
            return _join(inputs if looking_up is None else _looked_up(inputs, step, looking_up), step)
        case model.UnionStep():
            for other in frames[1:]:
                rows = rows.unionByName(other)
            return rows
        case model.StatefulStep():
            return _stateful(rows, step, folder)


def _rename(rows: DataFrame, names: Mapping[str, str]) -> DataFrame:
    missing = [name for name in names if name not in rows.columns]
    if missing:
        raise ValueError(f"there is no column {missing[0]!r} to rename; columns are: {', '.join(rows.columns)}")
    return rows.withColumnsRenamed(dict(names))


def _aggregate(rows: DataFrame, step: model.AggregateStep) -> DataFrame:
    groups: list[Any] = [f.expr(each) for each in step.group_by]
    window = step.window
    if window is not None and window.gap:
        groups.append(f.session_window(window.column, window.gap).alias("window"))
    elif window is not None:
        groups.append(f.window(window.column, window.size, window.slide or None).alias("window"))
    grouped = rows.groupBy(*groups).agg(*(f.expr(each).alias(name) for name, each in step.aggregate.items()))
    if window is None:
        return grouped
    others = [f"`{name}`" for name in grouped.columns if name != "window"]
    return grouped.select(f.col("window.start").alias("window_start"), f.col("window.end").alias("window_end"), *others)


def _dedup(rows: DataFrame, step: model.DedupStep) -> DataFrame:
    columns = None if step.dedup == ("*",) else list(step.dedup)
    if step.within_watermark and rows.isStreaming:
        return rows.dropDuplicatesWithinWatermark(columns)
    return rows.dropDuplicates(columns)


_LOOKUPS = ("inner", "left", "left_semi", "left_anti")


def finds_by_columns(step: model.JoinStep) -> bool:
    """Whether rows of the second that have no equal columns in the first do not matter."""
    return step.how in _LOOKUPS and all(_COLUMN.fullmatch(each) for each in step.on)


def _looked_up(inputs: Mapping[str, DataFrame], step: model.JoinStep, size: Size) -> dict[str, DataFrame]:
    """The inputs of a join of a batch with a table, told how.

    Spark would sort and shuffle all of the table. Of few rows every task that has some of the table gets a copy, and
    what it finds goes to the tasks of the batch.
    """
    (left_name, left), (right_name, right) = list(inputs.items())[:2]
    if size is Size.MANY_ROWS or step.how not in _LOOKUPS:
        return {left_name: left, right_name: right.hint("merge")}
    wanted: DataFrame = f.broadcast(left)
    if all(_COLUMN.fullmatch(each) for each in step.on):
        found = right.join(wanted, list(step.on), "left_semi")
    else:
        condition = f.expr(" AND ".join(f"({each})" for each in step.on))
        found = right.alias(right_name).join(wanted.alias(left_name), condition, "left_semi")
    return {left_name: left, right_name: f.broadcast(found)}


def _join(inputs: Mapping[str, DataFrame], step: model.JoinStep) -> DataFrame:
    """By columns both have, which stand once in the result; or by a condition, the sides called by their names."""
    (left_name, left), (right_name, right) = list(inputs.items())[:2]
    if all(_COLUMN.fullmatch(each) for each in step.on):
        return left.join(right, list(step.on), step.how)
    condition = f.expr(" AND ".join(f"({each})" for each in step.on))
    joined = left.alias(left_name).join(right.alias(right_name), condition, step.how)
    if step.how in ("left_semi", "left_anti"):
        return joined
    new = [f.col(f"{right_name}.`{name}`") for name in right.columns if name not in left.columns]
    return joined.select(f"{left_name}.*", *new)


def _stateful(rows: DataFrame, step: model.StatefulStep, folder: str) -> DataFrame:
    found: Any = find(step.stateful, folder)
    grouped = rows.groupBy(*step.key)
    output = parse_schema(step.output)
    if needs_rocksdb(step, folder):
        times = {"none": "None", "processing_time": "ProcessingTime", "event_time": "EventTime"}
        return grouped.transformWithStateInPandas(
            found(), outputStructType=output, outputMode=step.mode.title(), timeMode=times[step.timeout]
        )
    timeouts = {
        "none": "NoTimeout",
        "processing_time": "ProcessingTimeTimeout",
        "event_time": "EventTimeTimeout",
    }
    return grouped.applyInPandasWithState(
        found, output, parse_schema(step.state or "seen boolean"), step.mode, timeouts[step.timeout]
    )


def needs_rocksdb(step: model.Step, folder: str) -> bool:
    """StatefulProcessors keep their state in RocksDB only."""
    return isinstance(step, model.StatefulStep) and inspect.isclass(find(step.stateful, folder))
