"""The audit trail: who changed, or tried to change, what, when, from where, and how it ended.

The last ones are shown on a page; with a file, each is a line of JSON in it, written before the answer leaves.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

log = logging.getLogger("moldau.console.audit")

_KEPT = 1_000
_TEXT_MAX = 200
_SECRET = frozenset({"csrf", "password", "value", "key", "headers"})
_SECRET_SETTING = re.compile(r"password|secret|jaas|keystore\.key|token|credential", re.IGNORECASE)


@dataclass(slots=True, frozen=True)
class Entry:
    at_ms: int
    who: str
    role: str
    address: str
    action: str
    details: Mapping[str, str]
    outcome: str


class Audit:
    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self.entries: deque[Entry] = deque(maxlen=_KEPT)

    def note(self, who: str, role: str, address: str, action: str, details: Mapping[str, str], outcome: str) -> Entry:
        at_ms = time.time_ns() // 1_000_000
        entry = Entry(at_ms, who, role, address, action, shown(details), outcome)
        self.entries.appendleft(entry)
        line = json.dumps(asdict(entry), ensure_ascii=True)
        log.info("%s", line)
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as out:
                out.write(line + "\n")
        return entry


def shown(details: Mapping[str, str]) -> dict[str, str]:
    """What may be written down: of secrets and record contents only that they were there."""
    found = {}
    for name, text in details.items():
        if name == "csrf":
            continue
        if name in _SECRET or (name == "setting_value" and _SECRET_SETTING.search(details.get("setting", ""))):
            found[name] = "(not written down)" if text else ""
        else:
            found[name] = text if len(text) <= _TEXT_MAX else text[:_TEXT_MAX] + "…"
    return found
