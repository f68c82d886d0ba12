"""`--where TEST`: which records are shown. `key=a`, `value~text`, `value.price>=10`, `headers.type!=x`, `offset<5`."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterable
from typing import Any

from moldau.cli.failure import misused
from moldau.cli.record_forms import as_line
from moldau.cli.record_lines import Shown

Filter = Callable[[Shown], bool]
_TEST = re.compile(r"([\w.\-]+?)\s*(!=|>=|<=|!~|=|>|<|~)\s*(.*)", re.DOTALL)
_ORDER = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
_ROOTS = ("key", "value", "headers", "topic", "partition", "offset", "timestamp_ms")
_MISSING = object()


def parse_filters(texts: Iterable[str]) -> list[Filter]:
    return [_parse(text) for text in texts]


def _parse(text: str) -> Filter:
    found = _TEST.fullmatch(text)
    if found is None:
        misused(f"--where {text}: write a test like key=a, value~text, value.price>10, headers.type=x or offset>=5")
    path, sign, wanted = found.groups()
    root, *names = path.split(".")
    if root not in _ROOTS:
        misused(f"--where {text}: begin with one of {', '.join(_ROOTS)}")
    if root == "headers":
        names = [".".join(names)]
    test = _test(text, sign, wanted)
    return lambda record: test(_look_up(record, root, names))


def _look_up(record: Shown, root: str, names: list[str]) -> Any:
    found = getattr(record, root)
    if root == "headers":
        return next((value for name, value in found if name == names[0]), _MISSING)
    if names and isinstance(found, bytes):
        try:
            found = json.loads(found)
        except ValueError:
            return _MISSING
    for name in names:
        if isinstance(found, dict):
            found = found.get(name, _MISSING)
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            return _MISSING
    return found


def _test(text: str, sign: str, wanted: str) -> Callable[[Any], bool]:
    if sign in ("~", "!~"):
        try:
            pattern = re.compile(wanted.encode())
        except re.error as error:
            misused(f"--where {text}: {error}")
        return lambda found: (found is not _MISSING and pattern.search(as_line(found)) is not None) == (sign == "~")
    if sign in ("=", "!="):
        return lambda found: _equals(found, wanted) == (sign == "=")
    compare = _ORDER[sign]
    try:
        number = float(wanted)
    except ValueError:
        misused(f"--where {text}: {wanted!r} is no number")
    return lambda found: (value := _number(found)) is not None and compare(value, number)


def _equals(found: Any, wanted: str) -> bool:
    if found is _MISSING:
        return False
    if found is None:
        return wanted == "null"
    if isinstance(found, bool):
        return wanted == str(found).lower()
    return as_line(found) == wanted.encode() or (_number(found) is not None and _number(found) == _number(wanted))


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or value is None or value is _MISSING:
        return None
    try:
        return float(value)
    except (ValueError, TypeError):
        return None
