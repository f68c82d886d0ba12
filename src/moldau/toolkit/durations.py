"""Durations as people write them ("500ms", "10s", "1m", "2h", "1d", a number of seconds) in milliseconds."""

from __future__ import annotations

import re
from datetime import timedelta

Duration = str | float | timedelta

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")


def milliseconds(duration: Duration) -> int:
    """`milliseconds("1m 30s") == 90_000`; a number is seconds; nothing negative."""
    if isinstance(duration, timedelta):
        found = duration.total_seconds() * 1_000
    elif isinstance(duration, str):
        text = duration.strip().lower()
        parts = _PART.findall(text)
        if not parts or _PART.sub("", text).strip():
            raise ValueError(
                f'{duration!r} is no duration: write "500ms", "10s", "1m", "2h", "1d" or a number of seconds'
            )
        found = sum(float(number) * _UNITS_MS[unit] for number, unit in parts)
    else:
        found = float(duration) * 1_000
    if not 0 <= found < 2**53:
        raise ValueError(f"{duration!r} is no duration: it must be between 0 and some thousand years")
    return round(found)
