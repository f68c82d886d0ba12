"""server.properties: the syntax of java.util.Properties, and `key=value` from the command line.

Invariant: what Java reads from a file is what we read, byte for byte (files are Latin-1, as Kafka reads them).
"""

import re
from collections.abc import Iterable, Iterator

from moldau.broker.config.errors import InvalidConfig

_BLANKS = " \t\f"
_LINE_END = r"\r\n|\r|\n"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_HEX = frozenset("0123456789abcdefABCDEF")


def read_properties(path: str) -> dict[str, str]:
    """The settings of a file."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise InvalidConfig(f"Cannot read the config file {path}: {error.strerror}") from error
    try:
        return parse_properties(data.decode("latin-1"))
    except InvalidConfig as error:
        raise InvalidConfig(f"{path}: {error}") from error


def parse_properties(text: str) -> dict[str, str]:
    """The settings of a text; of a key given twice the last value stays."""
    return dict(map(_split, _logical_lines(text)))


def parse_overrides(pairs: Iterable[str]) -> dict[str, str]:
    """The settings of `--set key=value` arguments, taken literally: no escapes."""
    settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise InvalidConfig(f"Cannot read the setting '{pair}': write it as key=value", key or None)
        settings[key.strip()] = value.strip()
    return settings


def _logical_lines(text: str) -> Iterator[str]:
    """Lines without comments and blank ones, those that end in a backslash joined with the next."""
    *ended, last = re.split(_LINE_END, text)
    pending: str | None = None
    for natural in ended:
        line = natural.lstrip(_BLANKS)
        if not pending and line[:1] in ("", "#", "!"):
            pending = None
            continue
        line = (pending or "") + line
        pending = line[:-1] if _continues(line) else None
        if pending is None:
            yield line
    line = last.lstrip(_BLANKS)
    if pending or line[:1] not in ("", "#", "!"):
        line = (pending or "") + line
        yield line[:-1] if _continues(line) else line
    elif pending is not None and not last and not text.endswith("\r\n"):
        yield ""  # Java makes an empty key of a lone backslash at the end


def _continues(line: str) -> bool:
    """An odd number of backslashes at the end: the last one escapes the line break."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split(line: str) -> tuple[str, str]:
    """The key ends at the first unescaped `=`, `:` or blank; the value starts after blanks and one separator."""
    position = 0
    while position < len(line) and line[position] not in "=: \t\f":
        position += 2 if line[position] == "\\" else 1
    key = line[:position]
    rest = line[position:].lstrip(_BLANKS)
    if rest and rest[0] in "=:":
        rest = rest[1:].lstrip(_BLANKS)
    return _unescape(key), _unescape(rest)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    parts = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character != "\\":
            parts.append(character)
            continue
        escaped = text[position : position + 1]
        position += 1
        if escaped == "u":
            digits = text[position : position + 4]
            if len(digits) < 4 or not _HEX.issuperset(digits):
                raise InvalidConfig(f"Malformed \\u escape in '{text}': it needs four hexadecimal digits", None, text)
            parts.append(chr(int(digits, 16)))
            position += 4
        else:
            parts.append(_ESCAPES.get(escaped, escaped))
    return _join_surrogates("".join(parts))


def _join_surrogates(text: str) -> str:
    """Characters beyond the first plane are written as two escapes, as in Java."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
