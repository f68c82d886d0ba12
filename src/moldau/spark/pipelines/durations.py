"""Lengths of time as Spark writes them: `10 seconds`, `1 hour 30 minutes`."""

import re

_SECONDS = {
    "microsecond": 1e-6,
    "millisecond": 1e-3,
    "second": 1.0,
    "minute": 60.0,
    "hour": 3600.0,
    "day": 86_400.0,
    "week": 604_800.0,
}
_PART = rf"\d+(?:\.\d+)? (?:{'|'.join(_SECONDS)})s?"
_DURATION = re.compile(rf"{_PART}(?: {_PART})*")


def is_duration(text: str) -> bool:
    return _DURATION.fullmatch(text) is not None


def seconds_of(duration: str) -> float:
    words = duration.split()
    return sum(float(number) * _SECONDS[unit.rstrip("s")] for number, unit in zip(words[::2], words[1::2], strict=True))
