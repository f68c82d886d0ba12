"""JSON as the standard has it: no key twice, no NaN, nothing after the end."""

from __future__ import annotations

import json
from typing import Any


class NotStrict(ValueError):
    """JSON by Python's reader, but not by the standard's."""


def strictly(value: bytes) -> Any:
    """The document; raises ValueError with the reason."""
    try:
        return parse(value)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 text: byte {error.start} is 0x{value[error.start]:02x}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None


def parse(value: bytes) -> Any:
    """The document, as `json.loads` reads it, and its errors; NotStrict besides."""
    return json.loads(value, object_pairs_hook=without_doubles, parse_constant=_refused)


def without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For `json.loads`: an object, unless a key stands there twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise NotStrict(f"the key {shown(twice)} stands there twice")
    return found


def _refused(constant: str) -> Any:
    raise NotStrict(f"{constant} is no number")


def shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:39] + "…"
