"""What values a setting accepts. The notations stand in the `valid` column of the tables:

    [1,...]  [1,...,9]   a number in that range         {a,b}     one of these, or a list of them (+: not empty)
    [1,...,9]|-1         or exactly that number         ~{a,b}    one of these, in any case
    unique               a list without empty entries   unique+   and not itself empty
    non-empty            a string that is not empty     voters, servers, throttled, offset-reset: see below

Invariant: `check` refuses in Kafka's words, and `notation` prints as Kafka's validators do, so that both can be
compared with Kafka's.
"""

import re
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from moldau.broker.config.errors import InvalidConfig
from moldau.broker.config.values import ConfigType, ConfigValue, render_value

Check = Callable[[str, ConfigValue], None]

# Patterns stay texts: most starts need none of them compiled.
_HOST_PORT = r"(?:[0-9a-zA-Z\-%._]*://)?\[?([0-9a-zA-Z\-%._:]*)\]?:([0-9]+)"
_DURATION = (
    r"\+?P(?=[0-9T+])(?:\+?[0-9]+D)?"
    r"(?:T(?=[0-9+])(?:\+?[0-9]+H)?(?:\+?[0-9]+M)?(?:\+?[0-9]+(?:[.,][0-9]{0,9})?S)?)?"
)


class Validator(NamedTuple):
    notation: str
    """The valid values, as Kafka prints them."""
    check: Check
    """Raises InvalidConfig unless the value of that name is fine."""
    drops_duplicates: bool = False
    """Whether repeated entries of a list are dropped before the check."""


def _in_range(minimum: float, maximum: float | None) -> Validator:
    def check(name: str, value: ConfigValue) -> None:
        assert isinstance(value, int | float)
        if value < minimum:
            raise InvalidConfig.for_value(name, render_value(value), f"Value must be at least {minimum}")
        if maximum is not None and value > maximum:
            raise InvalidConfig.for_value(name, render_value(value), f"Value must be no more than {maximum}")

    return Validator(f"[{minimum},...]" if maximum is None else f"[{minimum},...,{maximum}]", check)


def _in_range_or(minimum: float, maximum: float, exception: int) -> Validator:
    def check(name: str, value: ConfigValue) -> None:
        assert isinstance(value, int)
        if value != exception and not minimum <= value <= maximum:
            reason = f"Value must be between {minimum} and {maximum} or equal to {exception}"
            raise InvalidConfig.for_value(name, value, reason)

    return Validator(f"[{minimum},...,{maximum}] or {exception}", check)


def _one_of(choices: tuple[str, ...]) -> Validator:
    def check(name: str, value: ConfigValue) -> None:
        if value not in choices:
            raise InvalidConfig.for_value(name, value, f"String must be one of: {', '.join(choices)}")

    return Validator(f"[{', '.join(choices)}]", check)


def _one_of_any_case(choices: tuple[str, ...]) -> Validator:
    def check(name: str, value: ConfigValue) -> None:
        if str(value).lower() not in choices:
            reason = f"String must be one of (case insensitive): {', '.join(choices).upper()}"
            raise InvalidConfig.for_value(name, value, reason)

    return Validator(f"(case insensitive) [{', '.join(choices).upper()}]", check)


def _unique_list(choices: tuple[str, ...], *, empty_allowed: bool) -> Validator:
    notation = f"[{', '.join(choices)}]" if choices else ""

    def check(name: str, value: ConfigValue) -> None:
        entries = _entries(value)
        if not entries and not empty_allowed:
            valid = notation or "any non-empty value"
            raise InvalidConfig(f"Configuration '{name}' must not be empty. Valid values include: {valid}", name, "")
        for entry in entries:
            if not entry:
                raise InvalidConfig(f"Configuration '{name}' values must not be empty.", name, ",".join(entries))
            if choices and entry not in choices:
                raise InvalidConfig.for_value(name, entry, f"String must be one of: {', '.join(choices)}")

    return Validator(notation, check, drops_duplicates=True)


def parse_host_and_port(text: str) -> tuple[str, int] | None:
    """`host:port`, with or without a protocol in front and brackets around an IPv6 address."""
    match = re.fullmatch(_HOST_PORT, text)
    if match is None or len(match[2]) > 5 or int(match[2]) > 65535:
        return None
    return match[1], int(match[2])


def parse_voter(text: str) -> tuple[int, str, int]:
    """The (id, host, port) of `id@host:port`."""
    number, at, address = text.partition("@")
    host_and_port = parse_host_and_port(address)
    if not at or host_and_port is None or not re.fullmatch(r"[+-]?[0-9]{1,9}", number):
        reason = "Each voter is written as id@host:port, for example 1@localhost:9093"
        raise InvalidConfig.for_value("controller.quorum.voters", text, reason)
    return int(number), *host_and_port


def _check_voters(name: str, value: ConfigValue) -> None:
    del name
    for entry in _entries(value):
        parse_voter(entry)


def _check_servers(name: str, value: ConfigValue) -> None:
    for entry in _entries(value):
        if parse_host_and_port(entry) is None:
            reason = "Each server is written as host:port, for example localhost:9093"
            raise InvalidConfig.for_value(name, entry, reason)


def _check_throttled_replicas(name: str, value: ConfigValue) -> None:
    entries = _entries(value)
    if "".join(entries) != "*" and not all(re.fullmatch(r"([0-9]+:[0-9]+)?", entry.strip()) for entry in entries):
        raise InvalidConfig.for_value(
            name, value, f"{name} must be the literal '*' or a list of replicas in the following format: {_THROTTLED}"
        )


def _check_offset_reset(name: str, value: ConfigValue) -> None:
    text = str(value)
    if text in ("earliest", "latest"):
        return
    kind, _, duration = text.partition(":")
    if kind != "by_duration" or not re.fullmatch(_DURATION, duration, re.IGNORECASE):
        raise InvalidConfig.for_value(
            name,
            value,
            f"Invalid value `{text}` for configuration {name}. The value must be either 'earliest', 'latest' "
            "or of the format 'by_duration:<PnDTnHnMn.nS>'.",
        )


def _check_not_empty(name: str, value: ConfigValue) -> None:
    if value == "":
        raise InvalidConfig.for_value(name, value, "String must be non-empty")


def _entries(value: ConfigValue) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else ()


_THROTTLED = "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
_CUSTOM = {
    "voters": Validator("non-empty list", _check_voters),
    "servers": Validator("non-empty list", _check_servers),
    "throttled": Validator(_THROTTLED, _check_throttled_replicas),
    "offset-reset": Validator("[latest, earliest, by_duration:PnDTnHnMn.nS]", _check_offset_reset),
    "non-empty": Validator("non-empty string", _check_not_empty),
}


@cache
def parse_validator(text: str, kind: ConfigType) -> Validator | None:
    """The validator of a notation. Equal notations share one, since most settings have one of a dozen."""
    if text == "-":
        return None
    if text in _CUSTOM:
        return _CUSTOM[text]
    if text.startswith("["):
        return _parse_range(text)
    if text.startswith("~"):
        return _one_of_any_case(tuple(text[2:-1].split(",")))
    empty_allowed = not text.endswith("+")
    text = text.removesuffix("+")
    choices = tuple(text[1:-1].split(",")) if text != "unique" else ()
    return _unique_list(choices, empty_allowed=empty_allowed) if kind is ConfigType.LIST else _one_of(choices)


def _parse_range(text: str) -> Validator:
    bounds, _, exception = text.partition("|")
    least, _, most = bounds[1:-1].partition(",...")
    maximum = _number(most[1:]) if most else None
    if exception and maximum is not None:
        return _in_range_or(_number(least), maximum, int(exception))
    return _in_range(_number(least), maximum)


def _number(text: str) -> float:
    return float(text) if "." in text else int(text)
