"""What a pipeline's file may set of Spark (`spark:`)."""

from __future__ import annotations

from collections.abc import Iterator

from moldau.spark.kinds_of_session import ADAPTIVE_STREAMING
from moldau.spark.pipelines import model
from moldau.spark.pipelines.errors import Problem

_ADAPTIVE = "spark.sql.adaptive.enabled"


def problems(pipeline: model.Pipeline) -> Iterator[Problem]:
    mark = pipeline.where.of("spark")
    for name, value in pipeline.spark.items():
        if not name.startswith("spark."):
            yield Problem(
                mark,
                f"{name!r} is not a setting of Spark: all begin with `spark.`",
                f"write `spark.sql.{name.removeprefix('sql.')}`, for example",
            )
        if name in (ADAPTIVE_STREAMING, _ADAPTIVE) and str(value).strip().lower() != "false":
            yield Problem(
                mark,
                f"{name} may give a repeated batch other tasks than it had: rows would be lost or doubled",
                "leave it out: it is off here",
            )
