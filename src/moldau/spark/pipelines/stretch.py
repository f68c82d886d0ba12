"""From when until when topics are read: times as files and options write them, and the stretch a shadow was begun with.

Invariant: a shadow's checkpoint belongs to one stretch of time. Its queries go on where they were, whatever they are
told, so another stretch on the same checkpoint would silently miss records.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime

from moldau.spark.pipelines import model, store
from moldau.spark.pipelines.errors import PipelineError, Problem

STRETCH_FILE = "stretch.json"
_TIME = re.compile(r"\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)?)?")
_EXAMPLE = "a time such as 2026-11-15T12:00:00Z"


def time_of(text: str) -> datetime | None:
    """A time that records may have; None if it is none, as the 30th of February."""
    if not _TIME.fullmatch(text):
        return None
    try:
        found = datetime.fromisoformat(text)
        return found if found.timestamp() >= 0 else None
    except (ValueError, OverflowError):
        return None


def problems(source: model.TopicSource | model.PatternSource) -> Iterator[Problem]:
    """What is wrong with a source's `start` and `until`."""
    start, until = time_of(source.start), time_of(source.until)
    if source.start not in ("earliest", "latest") and start is None:
        told = f"{source.start!r} is not a place to start"
        yield Problem(source.where.of("start"), told, f"write earliest, latest, or {_EXAMPLE}")
    if source.until and until is None:
        yield Problem(source.where.of("until"), f"{source.until!r} is not a time", f"write {_EXAMPLE}")
    if start is not None and until is not None and until.timestamp() <= start.timestamp():
        told = f"there is nothing from {source.start} until {source.until}"
        yield Problem(source.where.of("until"), told, "let `until` be later than `start`")


def keep_to(shadow: model.Pipeline, start: str, until: str) -> bool:
    """Note the stretch beside the shadow's checkpoint. Whether it was begun before; raises if with another one."""
    asked = {"from": start, "until": until}
    before = store.read_json(shadow.checkpoint_folder, STRETCH_FILE)
    if before is None:
        store.write_json(shadow.checkpoint_folder, STRETCH_FILE, asked)
        return False
    if before != asked:
        end = f" until {before['until']}" if before["until"] else ""
        told = f"{shadow.name} was begun from {before['from']}{end}, and can only go on with that"
        fix = f"choose another name by `--into`, or remove {shadow.checkpoint_folder} and what it wrote"
        raise PipelineError([Problem(shadow.where.mark, told, fix)])
    return True
