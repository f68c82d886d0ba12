"""Values of settings: parsed from text and printed to text exactly as Kafka's ConfigDef does it.

Invariant: `parse_value(render_value(v)) == v`, and what a Java parser would refuse is refused.
"""

import math
import re
from enum import IntEnum

from moldau.broker.config.errors import InvalidConfig

ConfigValue = bool | int | float | str | tuple[str, ...] | None


class ConfigType(IntEnum):
    """The type of a setting, by DescribeConfigs' numbers."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


_BITS = {ConfigType.SHORT: 16, ConfigType.INT: 32, ConfigType.LONG: 64}
_DECIMAL = r"([+-]?)(NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)"
_COMMA = r"[ \t\n\x0b\f\r]*,[ \t\n\x0b\f\r]*"
# What Java's String.trim takes off: everything up to the space.
_TRIMMED = "".join(map(chr, range(0x21)))


def parse_value(name: str, text: str, kind: ConfigType) -> ConfigValue:
    """The typed value of a setting's text."""
    trimmed = text.strip(_TRIMMED)
    if kind in _BITS:
        digits = trimmed[1:] if trimmed[:1] in ("+", "-") else trimmed
        number = int(trimmed) if digits.isdecimal() and len(digits) < 40 else None
        limit = 1 << (_BITS[kind] - 1)
        if number is None or not -limit <= number < limit:
            raise InvalidConfig.for_value(name, text, f"Not a number of type {kind.name}")
        return number
    if kind is ConfigType.LIST:
        if "," not in trimmed:
            return (trimmed,) if trimmed else ()
        return tuple(re.split(_COMMA, trimmed))
    if kind is ConfigType.BOOLEAN:
        lowered = trimmed.lower()
        if lowered not in ("true", "false"):
            raise InvalidConfig.for_value(name, text, "Expected value to be either true or false")
        return lowered == "true"
    if kind is ConfigType.DOUBLE:
        return _parse_double(name, text, trimmed)
    return trimmed


def _parse_double(name: str, text: str, trimmed: str) -> float:
    match = re.fullmatch(_DECIMAL, trimmed)
    if match is None:
        raise InvalidConfig.for_value(name, text, "Not a number of type DOUBLE")
    number = match[2] if match[2] == "Infinity" else match[2].rstrip("fFdD")
    return float(match[1] + number)


def render_value(value: ConfigValue) -> str | None:
    """The text of a value as DescribeConfigs shows it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _java_double(value)
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)


def _java_double(value: float) -> str:
    """Java prints 1.0E7 where Python prints 10000000.0, and the other way round for small numbers."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        plain = format(value, "f") if "e" in repr(value) else repr(value)
        return plain if "." in plain else plain + ".0"
    sign, digits, exponent = _shortest_digits(value)
    fraction = digits[1:] or "0"
    return f"{sign}{digits[0]}.{fraction}E{exponent}"


def _shortest_digits(value: float) -> tuple[str, str, int]:
    """Sign, the fewest digits that read back as the same number (which is what repr finds), and their exponent."""
    from decimal import Decimal

    shortest = Decimal(repr(value))
    digits = "".join(map(str, shortest.as_tuple().digits)).rstrip("0")
    return "-" if value < 0 else "", digits, shortest.adjusted()
