"""Pipelines: topics → parse → SQL and Python → windows, joins, state → topics, tables, databases. In YAML or Python.

    from moldau.spark import pipelines

    pipeline = pipelines.load("orders.yaml")        # every mistake with its line, before Spark starts
    with pipelines.start(pipeline) as running:
        running.wait()

The engine is plain Structured Streaming, not Spark Declarative Pipelines (SDP). SDP in Spark 4.3.0 exits with an error
after success, fails on the second run with the catalog that needs no installation, validates only once a Spark Connect
server is up, and manages tables only: no batch number for idempotent sinks, no dead letters, no per-query progress, no
graceful stop. What SDP adds, a graph of named datasets, is what this package reads from the file itself (`graph.py`).

Start reading with `model` (what a pipeline is), then `load` and `validate` (from file to model), `build` (from model to
DataFrames), `sinks` (how each sink counts a batch once) and `runner`.
"""

from typing import Any

from moldau.spark.pipelines.errors import Mark, PipelineError, Problem
from moldau.spark.pipelines.load import load, loads
from moldau.spark.pipelines.model import Pipeline
from moldau.spark.pipelines.validate import validate

__all__ = ["Mark", "Pipeline", "PipelineError", "Problem", "load", "loads", "start", "validate"]


def __getattr__(name: str) -> Any:
    if name == "start":  # the only one that needs a running Spark
        from moldau.spark.pipelines.runner import start

        return start
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
