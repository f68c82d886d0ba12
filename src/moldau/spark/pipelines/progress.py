"""How the queries of a pipeline are doing: rows, rates, lag, batch time, state. From Spark's own progress reports.

The same numbers go to the terminal (live) and into `status.json` beside the checkpoint, which `moldau pipeline status`
reads: no port, no server, and it is still there when the pipeline is not.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from moldau.metrics.whereabouts import whereabouts
from moldau.spark.pipelines import store

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

STATUS_FILE = "status.json"
LagOf = Callable[[Mapping[str, Any]], int | None]  # from a report to records behind, now
# The last line of a Python traceback, `package.Class: message`; Java's exceptions look alike.
_PYTHON_ERROR = re.compile(
    r"(?!org\.|java\.|javax\.|scala\.|py4j\.|io\.)(?:(?:[a-z_]\w*\.)+[A-Z]\w+|[A-Z]\w*Error): \S"
)
_TRACEBACK = "Traceback (most recent call last)"


@dataclass(slots=True, frozen=True)
class QueryProgress:
    """One query; `state` is starting, running, waiting, stopped or failed."""

    name: str
    state: str
    batch_id: int = -1
    rows_total: int = 0
    rows_per_second: float = 0.0
    batch_ms: int = 0
    lag_records: int | None = None
    state_rows: int = 0
    state_bytes: int = 0
    late_rows: int = 0
    unmatched_lines: int = 0  # of logs: those that fitted no template
    watermark: str = ""
    error: str = ""


class QueryWatch:
    """Adds up a query's reports; each batch counts once, however often it is looked at."""

    def __init__(self, name: str, query: StreamingQuery, lag: LagOf, hide: Callable[[str], str] = str) -> None:
        """`hide` takes out of an error's text what nobody should see, before any of it is cut off."""
        self.name = name
        self.query = query
        self._lag = lag
        self._hide = hide
        self._counted = -1
        self._rows = 0
        self._late = 0
        self._last: Mapping[str, Any] = {}
        self._last_busy: Mapping[str, Any] = {}

    def look(self) -> QueryProgress:
        for report in self.query.recentProgress:
            batch = _plain(report)
            number = int(batch["batchId"])
            if number > self._counted and not _is_idle(batch):
                self._counted = number
                self._rows += int(batch["numInputRows"])
                self._late += sum(int(each.get("numRowsDroppedByWatermark", 0)) for each in batch["stateOperators"])
            if batch["numInputRows"]:
                self._last_busy = batch
            self._last = batch
        return self._summary()

    def _summary(self) -> QueryProgress:
        error = self.query.exception() if not self.query.isActive else None
        state = "failed" if error else "stopped"
        if self.query.isActive:
            state = "running" if is_in_batch(self.query) else "waiting"
        operators = self._last.get("stateOperators", [])
        return QueryProgress(
            name=self.name,
            state=state,
            batch_id=self._counted,
            rows_total=self._rows,
            rows_per_second=float(self._last_busy.get("processedRowsPerSecond") or 0.0),
            batch_ms=int(self._last_busy.get("durationMs", {}).get("triggerExecution", 0)),
            lag_records=self._lag(self._last),
            state_rows=sum(int(each.get("numRowsTotal", 0)) for each in operators),
            state_bytes=sum(int(each.get("memoryUsedBytes", 0)) for each in operators),
            late_rows=self._late,
            watermark=str(self._last.get("eventTime", {}).get("watermark", "")),
            error=first_reason(self._hide(str(error))) if error else "",
        )


# What Spark says while it looks for news; sources may take their time for that, and the trigger counts as active.
_LOOKING = ("Getting offsets", "Waiting")


def is_in_batch(query: StreamingQuery) -> bool:
    """Whether a batch is in work, as far as Spark tells."""
    status = query.status
    return bool(status.get("isTriggerActive")) and not str(status.get("message", "")).startswith(_LOOKING)


def first_reason(message: str) -> str:
    """The sentence that says what happened, out of Spark's many: a Python worker's own error if there is one."""
    lines = [line for line in message.splitlines() if line.strip()]
    own = [line for line in lines if _PYTHON_ERROR.match(line)] or [
        line for line in lines if ("Error: " in line or "Exception: " in line) and not line.lstrip().startswith("at ")
    ]
    return (own[-1] if own else lines[0] if lines else "").strip()[:500]


def refusal(error: Exception) -> str:
    """What Spark says against a plan, in one line; of a source that refused, what the source says."""
    text = str(error).strip()  # some begin with an empty line
    if _TRACEBACK in text:
        return first_reason(text)
    return " ".join(text.split(";\n")[0].split("\n")[0].split())


def _is_idle(report: Mapping[str, Any]) -> bool:
    """Whether no batch was made: a query that waits reports so now and then, under the number of the batch to come."""
    return not report["numInputRows"] and "addBatch" not in report.get("durationMs", {})


def _plain(report: Any) -> Mapping[str, Any]:
    found: dict[str, Any] = json.loads(report.json if hasattr(report, "json") else json.dumps(report))
    for name in ("numInputRows", "processedRowsPerSecond"):
        if name not in found:  # Spark Connect leaves it to the reader to add up the sources
            found[name] = sum(each.get(name) or 0 for each in found["sources"])
    return found


def write_status(checkpoint: str, pipeline: str, queries: list[QueryProgress], *, running: bool) -> None:
    content = {
        "pipeline": pipeline,
        "running": running,
        **whereabouts(),
        "time": time.time(),
        "queries": [asdict(each) for each in queries],
    }
    store.write_json(checkpoint, STATUS_FILE, content)


def read_status(checkpoint: str) -> dict[str, Any] | None:
    """What was last written; None if the pipeline never ran here. Raises OSError, and ValueError if it is none."""
    found = store.read_json(checkpoint, STATUS_FILE)
    if found is None:
        return None
    if not isinstance(found, dict) or not {"running", "pid", "time", "queries"} <= found.keys():
        raise ValueError("this is not the status of a pipeline")
    return found


def query_progress(told: Mapping[str, Any]) -> QueryProgress:
    """One of its queries; another version may tell more, or less."""
    return QueryProgress(**{each.name: told[each.name] for each in fields(QueryProgress) if each.name in told})
