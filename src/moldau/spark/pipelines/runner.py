"""Runs a pipeline: starts its queries, watches them, stops them gracefully, tells what failed.

    with moldau.spark.pipelines.start(load("orders.yaml")) as running:
        running.wait()

Stopping is graceful: the batch in work is finished if it can be within a time, so a restart does not repeat it. Killing
is fine too: the checkpoint and the sinks' own notes see to it that nothing is lost, and nothing doubled where a sink is
exactly-once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

from moldau.spark.kinds_of_session import is_ended, leave
from moldau.spark.pipelines import model, sinks, store
from moldau.spark.pipelines.build import build_dead_letters, build_sink
from moldau.spark.pipelines.errors import PipelineError, Problem
from moldau.spark.pipelines.graph import DEAD_LETTERS, Graph
from moldau.spark.pipelines.http_intake import Intake, open_intakes
from moldau.spark.pipelines.lag import LagMeter
from moldau.spark.pipelines.lookups import start_lookup, stream_to_batch
from moldau.spark.pipelines.progress import QueryProgress, QueryWatch, is_in_batch, refusal, write_status
from moldau.spark.pipelines.reach import require_cluster
from moldau.spark.pipelines.secrecy import keeping_secrets, redacted, spark_settings, tells_secrets
from moldau.spark.pipelines.sharing import left_over, shared_reads, start_shared
from moldau.spark.pipelines.template_state import TemplateKeeper, folder_of
from moldau.spark.pipelines.validate import validate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    Begin = Callable[[], StreamingQuery]

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 0.5
_STATUS_SECONDS = 2.0
_SOURCE_SECONDS_MAX = 60.0
_START_ATTEMPTS = 12
_TOO_LATE = "failed to connect back"
_TOLD_TOGETHER_SECONDS = 1.0
_SPARK_ENDS_SECONDS = 5.0
GRACE_SECONDS = 30.0


class PipelineFailed(Exception):
    """A query has ended with an error; the others were stopped. The message names the sink and the reason."""


class Running:
    """A started pipeline."""

    def __init__(
        self,
        pipeline: model.Pipeline,
        spark: SparkSession,
        queries: dict[str, StreamingQuery],
        intakes: Sequence[Intake] = (),
        begins: Mapping[str, Begin] | None = None,
        sessions: Sequence[SparkSession] = (),
    ) -> None:
        self.pipeline = pipeline
        self._sessions = sessions  # that nobody else uses
        self._begins = begins or {}
        self._revivals: dict[str, tuple[int, int]] = {}  # by query: in which batch, and how often in it
        self.intakes = intakes
        self.spark = spark
        self.queries = queries
        meter = LagMeter(pipeline)
        self._keepers = _template_keepers(pipeline)
        self._watches = [QueryWatch(name, query, meter.of_query(name), self._hide) for name, query in queries.items()]
        self._stopping = threading.Event()
        self._status_at = 0.0
        self._told: list[QueryProgress] = []

    def progress(self) -> list[QueryProgress]:
        """One entry a query, as of now; also refreshes the status file."""
        for keeper in self._keepers:
            keeper.collect()
        found = self._told = [self._shown(watch.look(), watch.query) for watch in self._watches]
        running = any(query.isActive for query in self.queries.values())
        if not running or time.monotonic() - self._status_at >= _STATUS_SECONDS:
            self._status_at = time.monotonic()
            write_status(self.pipeline.checkpoint_folder, self.pipeline.name, found, running=running)
        return found

    def _shown(self, found: QueryProgress, query: StreamingQuery) -> QueryProgress:
        lines = sum(keeper.unmatched[str(query.id)] for keeper in self._keepers)
        return replace(found, unmatched_lines=lines)

    def _hide(self, text: str) -> str:
        return redacted(text, self.pipeline)

    @property
    def stopping(self) -> bool:
        """Whether stop was requested."""
        return self._stopping.is_set()

    def request_stop(self) -> None:
        """Make `wait` stop the queries and return; safe to call from a signal handler."""
        self._stopping.set()

    def was_ended_with_spark(self) -> bool:
        """Whether a stop was asked for and Spark is gone, too, as when a service manager tells all processes at once.

        For whoever was told of an error: what queries and Java say then is no failure, and the status says so.
        """
        if not self._stopping.wait(_TOLD_TOGETHER_SECONDS):
            return False
        deadline = time.monotonic() + _SPARK_ENDS_SECONDS
        while not is_ended(self.spark):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)  # Java tells nobody that it has begun to end
        stopped = [replace(each, state="stopped", error="") for each in self._told]
        write_status(self.pipeline.checkpoint_folder, self.pipeline.name, stopped, running=False)
        return True

    def wait(
        self, timeout_s: float | None = None, on_progress: Callable[[list[QueryProgress]], None] | None = None
    ) -> bool:
        """Until all queries have ended, stop was requested, or the time is over: then False. A failure raises."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            found = self.progress()
            if on_progress is not None:
                on_progress(found)
            self._raise_failure(found)
            ended = not any(query.isActive for query in self.queries.values())
            if ended and not self._raise_failure(self.progress()):
                return True
            if deadline is not None and time.monotonic() > deadline:
                return False
            if self._stopping.wait(_LOOK_SECONDS):
                self.stop()
                return True

    def _raise_failure(self, found: list[QueryProgress]) -> bool:
        """Whether queries had failed, and could all be started again."""
        all_failed = [each for each in found if each.state == "failed"]
        failed = next((each for each in all_failed if not self._revive(each)), None)
        if failed is None:
            return bool(all_failed)
        cause = self.queries[failed.name].exception()
        self.stop()
        told = PipelineFailed(self._hide(f"{self.pipeline.name}/{failed.name}: {failed.error}"))
        raise told from None if tells_secrets(cause, self.pipeline.secrets) else cause

    def _revive(self, failed: QueryProgress) -> bool:
        """Start a query again whose Python worker said hello too late for Spark, on a busy machine. Its checkpoint
        knows where it was. The same batch gets so many attempts as a start."""
        name = failed.name
        if self.stopping or name not in self._begins or _TOO_LATE not in str(self.queries[name].exception()):
            return False
        batch, attempts = self._revivals.get(name, (failed.batch_id, 0))
        attempts = attempts + 1 if batch == failed.batch_id else 1
        if attempts >= _START_ATTEMPTS:
            return False
        self._revivals[name] = (failed.batch_id, attempts)
        _log.warning("%s/%s: a Python worker came too late for Spark: beginning again", self.pipeline.name, name)
        query = self.queries[name] = _begun(self._begins[name])
        next(watch for watch in self._watches if watch.name == name).query = query
        return True

    def process_available(self) -> None:
        """Until everything that is there now is processed. For tests; a running stream stays running."""
        for query in self.queries.values():
            query.processAllAvailable()

    def stop(self, grace_s: float = GRACE_SECONDS) -> None:
        """Finish the batches in work, then stop. Stopping twice is fine."""
        deadline = time.monotonic() + grace_s
        intakes, self.intakes = self.intakes, ()
        for intake in intakes:
            intake.close()
        for watch in self._watches:
            query = watch.query
            before = _last_batch(query)
            while (
                query.isActive and is_in_batch(query) and _last_batch(query) == before and time.monotonic() < deadline
            ):
                time.sleep(0.05)  # Spark tells nobody that a batch has ended; it can only be asked
            query.stop()
        self.progress()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop(GRACE_SECONDS if error is None else 0.0)
        finally:
            for session in self._sessions:
                leave(session, is_well=error is None)


def _template_keepers(pipeline: model.Pipeline) -> list[TemplateKeeper]:
    """One for each source whose lines have templates."""
    local = store.local_folder(pipeline.checkpoint_folder)
    found = []
    for name, source in pipeline.sources.items():
        parse = getattr(source, "parse", None)
        if local is not None and isinstance(parse, model.LogParse) and (parse.templates or parse.templates_file):
            found.append(TemplateKeeper(folder_of(local, name), learning=parse.templates == ("learn",)))
    return found


def _last_batch(query: StreamingQuery) -> int:
    last = query.lastProgress
    return -1 if last is None else int(last["batchId"])


@keeping_secrets
def start(
    pipeline: model.Pipeline,
    spark: SparkSession | None = None,
    *,
    once: bool = False,
    master: str | None = None,
    checkpoint: str | None = None,
) -> Running:
    """Validate, then start every query. With `once` they take what is there now and end."""
    graph = validate(pipeline)
    if checkpoint is not None:
        pipeline = replace(pipeline, checkpoint=checkpoint)
    require_cluster(pipeline)
    sessions: list[SparkSession] = []
    try:
        if spark is None:
            from pyspark.sql import SparkSession

            from moldau.spark.session import session

            is_used = SparkSession.getActiveSession() is not None
            spark = session(f"moldau-{pipeline.name}", master=master, config=spark_settings(pipeline))
            sessions += () if is_used else (spark,)
        sessions.insert(0, sinks.prepared(spark, pipeline))
        return _start_in(sessions[0], sessions, pipeline, graph, once=once)
    except BaseException:
        for each in sessions:
            leave(each, is_well=False)
        raise


def _start_in(
    own: SparkSession, sessions: Sequence[SparkSession], pipeline: model.Pipeline, graph: Graph, *, once: bool
) -> Running:
    folder = pipeline.checkpoint_folder
    # Everything is planned before anything starts: a mistake in the last step must not leave half a pipeline running.
    shares = shared_reads(pipeline, graph)
    alone, sources_alone = left_over(graph, shares)
    frames = {name: build_sink(own, pipeline, graph, part) for name, part in graph.sinks.items()}
    letters = build_dead_letters(own, pipeline, graph)
    begins: dict[str, Begin] = {}
    for share in shares:
        begins[share.query] = partial(start_shared, own, pipeline, graph, share, f"{folder}/{share.query}", once=once)
    for name, rows in letters.items():
        if name.removeprefix(DEAD_LETTERS) not in sources_alone:
            continue
        begins[name] = partial(sinks.start_dead_letters, pipeline, name, rows, f"{folder}/{name}", once=once)
    for name, part in graph.sinks.items():
        if name not in alone:
            continue
        assert isinstance(part.item, model.Sink)
        if (stream := stream_to_batch(graph, part)) is not None:
            begins[name] = partial(start_lookup, own, pipeline, graph, name, stream, f"{folder}/{name}", once=once)
            continue
        sink = sinks.beside_tables(part.item) if graph.rests_on_tables(part) else part.item
        begins[name] = partial(_started, pipeline, name, sink, frames[name], f"{folder}/{name}", once=once)
    intakes = [] if once else open_intakes(pipeline)
    queries: dict[str, StreamingQuery] = {}
    try:
        for name, begin in begins.items():
            # A batch may be done before the last query has begun: whoever asks is told.
            found = [QueryProgress(each, "running" if each in queries else "starting") for each in begins]
            write_status(folder, pipeline.name, found, running=True)
            queries[name] = _begun(begin)
    except BaseException:
        for intake in intakes:
            intake.close()
        for query in queries.values():
            query.stop()
        write_status(folder, pipeline.name, [QueryProgress(each, "stopped") for each in begins], running=False)
        raise
    return Running(pipeline, own, queries, intakes, begins, sessions)


def _begun(begin: Begin) -> StreamingQuery:
    """Start a query and wait until its source has answered.

    Each source is a Python process of its own, and Spark gives it ten seconds to say hello, which cannot be changed. So
    queries start one after the other, and one that was too late, on a busy machine, is started again: it has done
    nothing yet.
    """
    from pyspark.errors import PySparkException

    for _ in range(_START_ATTEMPTS - 1):
        try:
            query = begin()
        except (PipelineError, PySparkException) as refusal:  # behind Connect, workers that write batches start here
            if _TOO_LATE not in str(refusal):
                raise
            continue
        deadline = time.monotonic() + _SOURCE_SECONDS_MAX
        while query.isActive and time.monotonic() < deadline:
            status = query.status
            if query.lastProgress is not None or status["isDataAvailable"] or status["message"].startswith("Waiting"):
                return query
            time.sleep(0.01)  # nor that a source has said hello
        error = None if query.isActive else query.exception()
        if error is None or _TOO_LATE not in str(error):
            return query
    return begin()


def _started(
    pipeline: model.Pipeline, name: str, sink: model.Sink, rows: object, checkpoint: str, *, once: bool
) -> StreamingQuery:
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame

    assert isinstance(rows, DataFrame)
    try:
        return sinks.start(pipeline, name, sink, rows, checkpoint, once=once)
    except (PySparkException, ValueError) as error:
        told = f"Spark does not accept sink {name!r}: {refusal(error)}"
        raise PipelineError([Problem(sink.where.mark, told)]) from error
