"""Templates that are learnt on while a pipeline runs, beside its checkpoint.

    templates-SOURCE/v7.json                     what was known at some time; never changed
    templates-SOURCE/pins/QUERY.BATCH            which of them a batch uses, decided by its first task
    templates-SOURCE/unmatched/QUERY.BATCH.TASK  how many lines fitted no template, and some of them

Tasks write what they could not match; the process that watches the pipeline learns from it and writes the next version,
which later batches use. Until then such a line has a template of its own words.

Invariant: a batch that is repeated uses the version it used before, so its rows are the same: exactly-once sinks rely
on it. It needs a checkpoint in a folder that all executors see; elsewhere the first sample is all that is known.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moldau.spark.pipelines.templates import Learner, Match, Matcher, masked, shortened

_LINES_MAX = 500
_PINS_KEPT = 20  # of each query; Spark repeats the last batch only
_VERSION = re.compile(r"v(\d+)\.json")


def folder_of(checkpoint: Path, source: str) -> str:
    return str(checkpoint / f"templates-{source}")


def _write_once(path: str, content: Any) -> bool:
    """A whole file or none; False if it was there before."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(content, file)
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        os.unlink(draft)
    return True


def _read(path: str) -> Any:
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def _versions(folder: str) -> list[int]:
    with contextlib.suppress(FileNotFoundError):
        return sorted(int(found[1]) for name in os.listdir(folder) if (found := _VERSION.fullmatch(name)))
    return []


# ---- in tasks -------------------------------------------------------------------------------------------------------


class TaskMatcher:
    """Matches the messages of one task, and leaves what fitted nothing for the one who learns."""

    def __init__(self, folder: str, templates: Mapping[str, str], *, learning: bool) -> None:
        """`templates` are used where the folder has none: those the pipeline names."""
        self._folder = folder
        self._learning = learning
        self._place = _place_of_task()
        known = self._pinned() if folder and learning else None
        known = dict(templates) if known is None else known
        self._matcher = Matcher(known, known)
        self._unmatched = 0
        self._lines: dict[str, str] = {}

    def _pinned(self) -> dict[str, str] | None:
        versions = _versions(self._folder)
        if not versions:
            return None
        newest = versions[-1]
        if self._place is not None:
            query, batch, _ = self._place
            pin = f"{self._folder}/pins/{query}.{batch}"
            if not _write_once(pin, newest):
                newest = int(_read(pin))
        known: dict[str, str] = _read(f"{self._folder}/v{newest}.json")["templates"]
        return known

    def match(self, message: str) -> Match | None:
        found = self._matcher.match(message)
        if found is not None:
            return found
        self._unmatched += 1
        own = masked(message)
        if len(self._lines) < _LINES_MAX:
            self._lines.setdefault(own.template, shortened(message))
        return own if self._learning else None

    def finish(self) -> None:
        """Leave word. A task that is repeated leaves the same word under the same name."""
        if not self._unmatched or not self._folder or self._place is None:
            return
        query, batch, task = self._place
        content = {"count": self._unmatched, "lines": list(self._lines.values())}
        _write_once(f"{self._folder}/unmatched/{query}.{batch}.{task}", content)


def _place_of_task() -> tuple[str, str, int] | None:
    """Query, batch and task, where Spark tells them: in a streaming query."""
    from pyspark import TaskContext

    task = TaskContext.get()
    if task is None:
        return None
    query, batch = task.getLocalProperty("sql.streaming.queryId"), task.getLocalProperty("streaming.sql.batchId")
    return None if query is None or batch is None else (query, batch, task.partitionId())


# ---- in the process that watches ------------------------------------------------------------------------------------


def begin(folder: str, learner: Learner) -> dict[str, str]:
    """The newest templates there are; those of the learner if there are none yet."""
    if not _versions(folder):
        _write_once(f"{folder}/v1.json", {"templates": learner.templates(), "state": learner.to_json()})
    known: dict[str, str] = _read(f"{folder}/v{_versions(folder)[-1]}.json")["templates"]
    return known


class TemplateKeeper:
    """Learns from what tasks left, and counts it by query id."""

    def __init__(self, folder: str, *, learning: bool) -> None:
        self._folder = folder
        self._learning = learning
        self._counted: set[str] = set()
        self.unmatched: Counter[str] = Counter()

    def collect(self) -> None:
        """Take what lies there. A new version is written only if something new was learnt."""
        try:
            names = sorted(os.listdir(f"{self._folder}/unmatched"))
        except FileNotFoundError:
            return
        lines: list[str] = []
        for name in (each for each in names if not each.startswith(".")):
            left = _read(f"{self._folder}/unmatched/{name}")
            if name not in self._counted:
                self._counted.add(name)
                self.unmatched[name.split(".")[0]] += left["count"]
            lines += left["lines"]
            os.unlink(f"{self._folder}/unmatched/{name}")
        versions = _versions(self._folder)
        if not lines or not self._learning or not versions:
            return
        newest = _read(f"{self._folder}/v{versions[-1]}.json")
        learner = Learner.from_json(newest["state"])
        for line in lines:
            learner.learn(line)
        if learner.templates() != newest["templates"]:
            content = {"templates": learner.templates(), "state": learner.to_json()}
            _write_once(f"{self._folder}/v{versions[-1] + 1}.json", content)
            self._prune()

    def _prune(self) -> None:
        """Forget pins of batches that Spark will not repeat, and versions that nobody uses."""
        pins: dict[str, list[int]] = {}
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(f"{self._folder}/pins"):
                query, _, batch = name.partition(".")
                if query and batch.isdecimal():
                    pins.setdefault(query, []).append(int(batch))
        used = set()
        for query, batches in pins.items():
            for number in sorted(batches)[:-_PINS_KEPT]:
                os.unlink(f"{self._folder}/pins/{query}.{number}")
            used |= {int(_read(f"{self._folder}/pins/{query}.{number}")) for number in sorted(batches)[-_PINS_KEPT:]}
        for number in _versions(self._folder)[:-2]:
            if number not in used:
                os.unlink(f"{self._folder}/v{number}.json")
