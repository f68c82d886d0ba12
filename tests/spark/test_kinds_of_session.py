"""What pipelines need behind Spark Connect: functions that can be pickled, and the query's id from its checkpoint."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyspark import cloudpickle

from moldau.spark.kinds_of_session import Notes, is_remote, query_id
from moldau.spark.pipelines import PipelineError, loads, model, runner, sinks
from moldau.spark.pipelines.errors import Problem, Where

FILE = """
name: p
kafka: {bootstrap.servers: "h:1"}
registry: http://h:2
sources:
  a: {topic: a, metadata: [topic, partition, offset], parse: {format: json, schema: "n bigint"}}
sinks:
  - {table: lake/a}
  - {table: shop.a, format: iceberg, warehouse: lake}
  - {delta: lake/b, compact_every: 3}
  - {iceberg: shop.b, warehouse: lake}
  - {database: "sqlite:///x.db", table: t}
  - {console: 3}
"""


def test_every_function_for_batches_can_be_sent_to_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pipeline = loads(FILE, "p.yaml", folder=str(tmp_path))
    for sink in pipeline.sinks:
        write = sinks._batch_writer(pipeline, sink, Notes("/state/q", "s"))
        assert callable(_sent(write)), model.kind_of(sink)
    shared = sinks.shared_writer(pipeline, Notes("/state/q", "s"), model.TopicSink(topic="t"))
    assert callable(_sent(shared))


def _sent(function: Any) -> Any:
    pickles: Any = cloudpickle  # it has no types
    return pickles.loads(pickles.dumps(function))


class _Frame:
    def __init__(self, session: Any) -> None:
        self.sparkSession = session


def _remote_session() -> Any:
    module = ModuleType("pyspark.sql.connect.session")
    return type("SparkSession", (), {"__module__": module.__name__})()


def test_the_checkpoint_tells_which_query_it_is(tmp_path: Path) -> None:
    rows: Any = _Frame(_remote_session())
    assert is_remote(rows.sparkSession)
    with pytest.raises(RuntimeError, match="name it"):
        query_id(rows, "")
    with pytest.raises(RuntimeError, match="which says which query this is, cannot be read"):
        query_id(rows, str(tmp_path))
    (tmp_path / "metadata").write_text(json.dumps({"id": "1-2-3"}))
    for checkpoint in (str(tmp_path), tmp_path.as_uri()):
        assert query_id(rows, checkpoint) == "1-2-3"
    assert Notes(str(tmp_path), "out").app_id(rows) == "1-2-3-out"
    assert Notes(str(tmp_path)).app_id(rows) == "1-2-3"


def test_a_worker_that_came_too_late_is_started_again() -> None:
    """Behind Connect the start itself fails; elsewhere, the query that was started."""
    told = ["Spark does not accept sink 'x': Python worker failed to connect back.", "no such column"]

    def begin() -> Any:
        raise PipelineError([Problem(Where().mark, told[0])])

    answers: list[Callable[[], Any]] = [begin, lambda: _Query("failed to connect back"), lambda: _Query("")]
    assert runner._begun(lambda: answers.pop(0)()).isActive
    told.pop(0)
    with pytest.raises(PipelineError, match="no such column"):
        runner._begun(begin)


def test_a_running_query_whose_worker_came_too_late_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checkpoint knows where it was. A query that fails otherwise, or again and again in one batch, ends all."""
    monkeypatch.chdir(tmp_path)
    pipeline = loads(FILE, "p.yaml", folder=str(tmp_path))
    session: Any = _remote_session()

    def running(begin: Callable[[], Any], error: str) -> runner.Running:
        queries: dict[str, Any] = {"q": _Query(error)}
        return runner.Running(pipeline, session, queries, begins={"q": begin})

    later = [_Query("Python worker failed to connect back."), _Query("")]
    going_on = running(lambda: later.pop(0), "Python worker failed to connect back.")
    assert not going_on.wait(timeout_s=0)
    assert going_on.queries["q"].isActive
    assert not later
    begun = []
    with pytest.raises(runner.PipelineFailed, match="no such column"):
        running(lambda: begun.append(1), "no such column").wait()
    assert not begun
    with pytest.raises(runner.PipelineFailed, match="connect back"):
        running(lambda: _Query("Python worker failed to connect back."), "failed to connect back").wait()


@pytest.mark.parametrize("fails", [False, True])
def test_sessions_of_connect_end_with_the_pipeline(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left to the end of the process, gRPC waits there for ever. A server that may be away is not told."""
    monkeypatch.chdir(tmp_path)
    ended: list[bool] = []
    session: Any = _remote_session()
    session.stop = lambda: ended.append(session.release_session_on_close)
    queries: dict[str, Any] = {"q": _Query("no such column" if fails else "")}
    queries["q"].isActive = False
    running = runner.Running(loads(FILE, "p.yaml", folder=str(tmp_path)), session, queries, sessions=[session])
    with pytest.raises(runner.PipelineFailed) if fails else nullcontext(), running:
        running.wait()
    assert ended == [not fails]


def test_a_session_of_connect_ends_if_a_pipeline_cannot_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ended: list[bool] = []
    session: Any = _remote_session()
    session.stop = lambda: ended.append(session.release_session_on_close)
    for each in ("require_cluster", "validate"):
        monkeypatch.setattr(runner, each, lambda _: None)
    monkeypatch.setattr("moldau.spark.pipelines.sinks.prepared", lambda *_: session)

    def refuse(*_: object, **__: object) -> None:
        raise PipelineError([Problem(Where().mark, "no such column")])

    monkeypatch.setattr(runner, "_start_in", refuse)
    with pytest.raises(PipelineError, match="no such column"):
        runner.start(loads(FILE, "p.yaml", folder=str(tmp_path)), session)
    assert ended == [False]


class _Query:
    def __init__(self, error: str) -> None:
        self.lastProgress = None
        self.id = "1"
        self.recentProgress: list[Any] = []
        self._error = error
        self.isActive = not error
        self.status = {"isDataAvailable": False, "message": "Waiting for data to arrive"}

    def exception(self) -> Exception | None:
        return RuntimeError(self._error) if self._error else None

    def stop(self) -> None:
        self.isActive = False
