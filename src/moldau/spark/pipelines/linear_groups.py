"""The named groups of a user's regular expression, in Arrow batches, by an engine that no value can stall.

RE2, which comes with Arrow, is linear in the value whatever the pattern. What it does not know (looking around, going
back to a group) is left to Python's own engine under an alarm: a value that takes longer than the limit is given up,
with the reason. Python's engine looks at signals while it works, and a worker calls us on its main thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from moldau.spark.alarm import TooLong, alarm, limited
from moldau.spark.pipelines.patterns import compiled, group_names, re2_pattern

_UNLIKE = "the value does not match the pattern"


def is_linear(pattern: str) -> bool:
    """Whether RE2 takes the pattern."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        pc.extract_regex(pa.array([""]), re2_pattern(pattern))
    except pa.ArrowInvalid:
        return False
    return True


def finder(pattern: str, limit_s: float) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """From texts to structs of `found` (a text for each group) and `error`; a null has neither."""
    names = group_names(pattern)

    def find(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        types = pa.struct([(name, pa.string()) for name in names])
        linear = is_linear(pattern)
        for batch in batches:
            if linear:
                found, errors = _by_re2(batch, re2_pattern(pattern), types)
            else:
                found, errors = _by_python(batch, compiled(pattern), types, limit_s)
            yield pa.StructArray.from_arrays([found, errors], ["found", "error"])

    return find


def _by_re2(batch: Any, pattern: str, types: Any) -> tuple[Any, Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pc.extract_regex(batch, pattern)
    unlike = pc.and_(pc.is_null(found), pc.is_valid(batch))
    return found.cast(types), pc.if_else(unlike, _UNLIKE, pa.scalar(None, pa.string()))


def _by_python(batch: Any, pattern: re.Pattern[str], types: Any, limit_s: float) -> tuple[Any, Any]:
    import pyarrow as pa

    found: list[Any] = []
    errors: list[str | None] = []
    with alarm():
        for scalar in batch:
            groups, error = None, None
            if scalar.is_valid:
                try:
                    groups, error = _timed(pattern, scalar.as_buffer().to_pybytes().decode(), limit_s)
                except UnicodeDecodeError:
                    error = "not UTF-8 text"
            found.append(groups)
            errors.append(error)
    return pa.array(found, types), pa.array(errors, pa.string())


def _timed(pattern: re.Pattern[str], text: str, limit_s: float) -> tuple[dict[str, Any] | None, str | None]:
    try:
        with limited(limit_s):
            match = pattern.search(text)
    except TooLong:
        return None, f"the pattern needs more than {limit_s:g} s for this value (time_limit)"
    return (None, _UNLIKE) if match is None else (match.groupdict(), None)
