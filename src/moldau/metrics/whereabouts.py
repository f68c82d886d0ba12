"""Where a process runs, for whoever finds its notes and asks whether it still does: another process may have its number
by now, and notes in a shared folder may be of another machine.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_SILENT_SECONDS_MAX = 120.0  # another machine's processes cannot be looked at: they are believed for so long
_ENDED = ("Z", "X")  # nobody has asked yet how they ended


def whereabouts() -> dict[str, Any]:
    """Of this process, for its notes."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "started": started_at(os.getpid())}


def is_elsewhere(told: Mapping[str, Any]) -> bool:
    """Whether the notes are of another machine."""
    return str(told.get("host") or socket.gethostname()) != socket.gethostname()


def is_running(told: Mapping[str, Any], silent_s: float) -> bool:
    """Whether the process that left these notes, so many seconds ago, is still there."""
    if is_elsewhere(told):
        return silent_s <= _SILENT_SECONDS_MAX
    pid = int(told["pid"])
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # it is there, and somebody else's
    fields = _told_by_system(pid)
    if fields and fields[0] in _ENDED:
        return False
    started = started_at(pid)
    return not started or started == str(told.get("started") or started)


def started_at(pid: int) -> str:
    """When it was started, in clock ticks since the machine was; empty where that is not told."""
    fields = _told_by_system(pid)
    return fields[19] if fields else ""


def _told_by_system(pid: int) -> list[str]:
    try:
        content = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return content.rpartition(")")[2].split()  # behind the command's name, which may have blanks
