"""Pipelines on Spark, as they report themselves: the `status.json` beside each checkpoint that `moldau pipeline status`
reads too. Looked for in the folders the console was started with, and nowhere else.
"""

from __future__ import annotations

import json
import time
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moldau.metrics.whereabouts import is_running

_STATUS = "status.json"
_FOUND_MAX = 500
_BYTES_MAX = 1 << 20


@dataclass(slots=True, frozen=True)
class Query:
    name: str
    state: str
    batch: int
    rows: int
    rate: float
    batch_ms: int
    lag: int | None
    state_rows: int
    state_bytes: int
    late_rows: int
    watermark: str
    error: str


@dataclass(slots=True, frozen=True)
class PipelineStatus:
    name: str
    folder: str
    is_running: bool
    was_killed: bool
    at_ms: int
    queries: tuple[Query, ...]

    @property
    def state(self) -> str:
        if any(query.state == "failed" for query in self.queries):
            return "failed"
        return "running" if self.is_running else "killed" if self.was_killed else "stopped"


def find_pipelines(folders: Sequence[Path]) -> list[PipelineStatus]:
    found: dict[str, PipelineStatus] = {}
    for file in _status_files(folders):
        status = _read(file)
        if status is not None:
            found[status.folder] = status
    return sorted(found.values(), key=lambda each: each.name)


def _status_files(folders: Sequence[Path]) -> Iterator[Path]:
    count = 0
    for folder in folders:
        for pattern in (_STATUS, f"*/{_STATUS}", f"*/*/{_STATUS}"):
            for file in sorted(folder.glob(pattern)):
                count += 1
                if count > _FOUND_MAX:
                    return
                yield file


def _read(file: Path) -> PipelineStatus | None:
    try:
        if file.stat().st_size > _BYTES_MAX:
            return None
        told = json.loads(file.read_text(encoding="utf-8"))
        running = bool(told["running"])
        is_alive = running and is_running(told, time.time() - float(told["time"]))
        queries = tuple(_query(each) for each in told["queries"])
        at_ms = int(float(told["time"]) * 1_000)
        return PipelineStatus(
            str(told["pipeline"]), str(file.parent), is_alive, running and not is_alive, at_ms, queries
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None  # being written, or none of ours


def _query(told: dict[str, Any]) -> Query:
    lag = told.get("lag_records")
    return Query(
        str(told["name"]),
        str(told["state"]),
        int(told.get("batch_id", -1)),
        int(told.get("rows_total", 0)),
        float(told.get("rows_per_second", 0.0)),
        int(told.get("batch_ms", 0)),
        None if lag is None else int(lag),
        int(told.get("state_rows", 0)),
        int(told.get("state_bytes", 0)),
        int(told.get("late_rows", 0)),
        str(told.get("watermark", "")),
        str(told.get("error") or ""),
    )


def pipeline_numbers(folders: Sequence[Path]) -> dict[Hashable, float]:
    """For the plots."""
    found: dict[Hashable, float] = {}
    for pipeline in find_pipelines(folders):
        for query in pipeline.queries:
            found["pipeline", pipeline.name, query.name, "rate"] = query.rate if pipeline.is_running else 0.0
            if query.lag is not None:
                found["pipeline", pipeline.name, query.name, "lag"] = float(query.lag)
    return found
