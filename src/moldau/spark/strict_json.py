"""JSON as the standard has it: no key twice, no NaN, nothing after the end."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any


class NotStrict(ValueError):
    """JSON by Python's reader, but not by the standard's."""


def strictly(value: bytes) -> Any:
    """The document; raises ValueError with the reason."""
    try:
        return parse(value, _finite)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 text: byte {error.start} is 0x{value[error.start]:02x}") from None
    except RecursionError:
        raise ValueError("not JSON: nested too deeply") from None
    except (json.JSONDecodeError, NotStrict) as error:
        raise ValueError(encodable(f"not JSON: {error}")) from None
    except ValueError:  # Python reads no number of more than 4,300 digits
        raise ValueError("not JSON: a number has too many digits") from None


def parse(value: bytes, parse_float: Callable[[str], float] | None = None) -> Any:
    """The document, as `json.loads` reads UTF-8 (of bytes it would guess the encoding), and its errors; NotStrict
    besides."""
    return json.loads(
        value.decode(), object_pairs_hook=without_doubles, parse_constant=_refused, parse_float=parse_float
    )


def without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For `json.loads`: an object, unless a key stands there twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise NotStrict(f"the key {shown(twice)} stands there twice")
    return found


def _finite(number: str) -> float:
    found = float(number)
    if math.isinf(found):
        raise NotStrict(f"{shortened(number)} is too large")
    return found


def _refused(constant: str) -> Any:
    raise NotStrict(f"{constant} is no number")


def shown(value: Any) -> str:
    return shortened(json.dumps(value, ensure_ascii=False))


def shortened(text: str) -> str:
    return encodable(text if len(text) <= 40 else text[:39] + "…")


def encodable(text: str) -> str:
    """Halves of surrogate pairs, which JSON can name and UTF-8 cannot hold, as JSON names them."""
    return text.encode(errors="backslashreplace").decode()
