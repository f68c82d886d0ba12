"""What a node says: on standard error, in lines for people or in JSON, at the levels that were asked for.

A line that comes again and again is said a few times, then counted, and the next one that is said tells how many there
were: a log that fills the disk, or hides the one line that matters, helps nobody. Levels can be set by room from the
start on (`moldau.log.levels`) and while the node runs (BROKER_LOGGER configs, `broker/config/loggers.py`).
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable
from typing import TextIO

from moldau.broker.config import InvalidConfig
from moldau.broker.config.loggers import LEVELS, level_name

_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_KEY = "moldau.log.levels"
_SAID_MAX = 20
_PERIOD_SECONDS = 10.0
_KINDS_MAX = 1_000
_LIMITS_ITSELF = "moldau.audit"  # by kind of event: somebody who fails to log in must not hide what others do
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160), 0x2028, 0x2029) if code != ord("\t")}


class RateLimit(logging.Filter):
    """At most so many lines of a kind in a period. A kind is one place in the source: its logger, level and text before
    anything is filled in."""

    def __init__(self, said_max: int = _SAID_MAX, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._said_max = said_max
        self._now = now
        self._kinds: dict[tuple[str, int, str], tuple[float, int]] = {}  # since when, and how many came

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name == _LIMITS_ITSELF:
            return True
        now, kind = self._now(), (record.name, record.levelno, str(record.msg))
        since, count = self._kinds.get(kind, (now, 0))
        if now - since >= _PERIOD_SECONDS:
            if count > self._said_max:
                _append(record, f"{count - self._said_max} more of these were not said")
            since, count = now, 0
        elif count == self._said_max - 1:  # there may never be another one to tell the count
            _append(record, f"more of these within {_PERIOD_SECONDS:.0f} s are only counted")
        if kind not in self._kinds and len(self._kinds) >= _KINDS_MAX:
            del self._kinds[next(iter(self._kinds))]
        self._kinds[kind] = since, count + 1
        return count < self._said_max


def _append(record: logging.LogRecord, remark: str) -> None:
    record.msg, record.args = f"{record.getMessage()} [{remark}]", ()


class TextLines(logging.Formatter):
    """For people: one line, whatever names clients have given things; then the traceback, if there is one."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return super().formatMessage(record).translate(_CONTROL)


class JsonLines(logging.Formatter):
    """One object per line, for whoever gathers logs."""

    def format(self, record: logging.LogRecord) -> str:
        import json

        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        told = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": level_name(record.levelno),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            told["error"] = self.formatException(record.exc_info)
        return json.dumps(told, ensure_ascii=False)


def set_up(
    *, level: int, levels: Iterable[str] = (), is_json: bool = False, stream: TextIO | None = None
) -> logging.Handler:
    """Everything goes to standard error from now on. InvalidConfig if a room or level is not known."""
    wanted = [_parsed(each) for each in levels]
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if is_json else TextLines(_TEXT))
    handler.addFilter(RateLimit())
    root = logging.getLogger()
    for former in root.handlers[:]:
        root.removeHandler(former)
    root.addHandler(handler)
    root.setLevel(level)
    for name, number in wanted:
        logging.getLogger(name).setLevel(number)
    return handler


def announce(handler: logging.Handler, text: str) -> None:
    """Say it whatever the level is, in the form of all other lines; for people, without anything around it."""
    if isinstance(handler.formatter, JsonLines):
        handler.emit(logging.LogRecord("moldau", logging.INFO, __file__, 0, text, None, None))
    else:
        print(text, file=sys.stderr)


def _parsed(text: str) -> tuple[str | None, int]:
    """`groups=DEBUG` is the room `moldau.groups`; `root=INFO` everything; whole names are fine, too."""
    room, equals, level = (each.strip() for each in text.partition("="))
    if not equals or level.upper() not in LEVELS:
        raise InvalidConfig.for_value(_KEY, text, f"give ROOM=LEVEL; levels are {', '.join(LEVELS)}")
    if room == "root":
        return None, LEVELS[level.upper()]
    import importlib.util

    name = room if room.split(".")[0] == "moldau" else f"moldau.{room}"
    try:
        is_known = importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        is_known = False
    if not is_known:
        raise InvalidConfig.for_value(_KEY, text, f"there is no {name}; rooms are groups, log, net, broker.replicas, …")
    return name, LEVELS[level.upper()]
