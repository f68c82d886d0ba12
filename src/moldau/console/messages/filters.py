"""The filter of the messages screen: a small language that can compare and nothing else.

    alice                                    anything that has this text (key, value or a header), in any case
    value.total > 100 and not key = "test"
    header.trace-id contains "7f" or partition = 3
    value.items[0].name startswith "So"      value.lines[*].sku = "x"     exists value.error

Fields: key, value, header.NAME, partition, offset, timestamp (milliseconds), size; `.name`, `["any name"]`, `[0]` and
`[*]` lead into JSON, Avro and Protobuf. Operators: = != < <= > >= contains startswith endswith, and `exists FIELD`.

Invariants: text becomes a tree of a limited size or a `FilterError`; a tree looks at a record and returns yes or no. No
code of the user's is run, there are no patterns that could take long, and the work per record is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from moldau.console.messages.decoding import Decoded, compact, is_number

LENGTH_MAX = 1_000
_TERMS_MAX = 50
_DEPTH_MAX = 20
_FANOUT_MAX = 1_000  # values one [*] leads to
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    | (?P<number>-?\d+(?:\.\d+)?(?![\w.\-]))
    | (?P<op><=|>=|!=|==|=|<|>|\(|\))
    | (?P<word>(?:[^\s"'()<>=!\[]|\["[^"]*"\]|\[)+)
    )""",
    re.VERBOSE,
)
_WORDS = ("contains", "startswith", "endswith")
_JOINS = ("and", "or", "not", "exists")
_PLAIN = ("partition", "offset", "timestamp", "size")


class FilterError(ValueError):
    """The text is no filter; says where and what to write."""


class Candidate(Protocol):
    """What a filter may look at."""

    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp_ms(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def key(self) -> Decoded: ...
    @property
    def value(self) -> Decoded: ...
    @property
    def headers(self) -> Sequence[tuple[str, str]]: ...


Filter = Callable[[Candidate], bool]


def parse(text: str) -> Filter | None:
    """None if there is nothing to filter by."""
    text = text.strip()
    if not text:
        return None
    if len(text) > LENGTH_MAX:
        raise FilterError(f"A filter has at most {LENGTH_MAX} characters.")
    parser = _Parser(list(_tokens(text)))
    found = parser.any_of(0)
    if parser.rest:
        raise FilterError(f"Nothing is expected after that: {parser.rest[0][1]!r}. Join terms with and, or.")
    return found


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    position = 0
    while position < len(text):
        if not text[position:].strip():
            return
        found = _TOKEN.match(text, position)
        if found is None or found.end() == position:
            raise FilterError(f'This is not understood: {text[position : position + 20]!r}. Quote texts: "…".')
        position = found.end()
        kind = found.lastgroup or ""
        yield kind, found.group(kind)


class _Parser:
    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self.rest = tokens
        self._terms = 0

    def _is_word(self, word: str) -> bool:
        return bool(self.rest) and self.rest[0] == ("word", word)

    def any_of(self, depth: int) -> Filter:
        if depth > _DEPTH_MAX:
            raise FilterError("Too many parentheses.")
        found = [self._all_of(depth)]
        while self._is_word("or"):
            self.rest.pop(0)
            found.append(self._all_of(depth))
        return found[0] if len(found) == 1 else lambda record: any(each(record) for each in found)

    def _all_of(self, depth: int) -> Filter:
        found = [self._one(depth)]
        while self.rest and not self._is_word("or") and self.rest[0] != ("op", ")"):
            if self._is_word("and"):
                self.rest.pop(0)
            found.append(self._one(depth))
        return found[0] if len(found) == 1 else lambda record: all(each(record) for each in found)

    def _one(self, depth: int) -> Filter:
        self._terms += 1
        if self._terms > _TERMS_MAX:
            raise FilterError(f"A filter has at most {_TERMS_MAX} terms.")
        if not self.rest:
            raise FilterError("Something is missing at the end.")
        kind, text = self.rest.pop(0)
        if (kind, text) == ("word", "not"):
            if depth > _DEPTH_MAX:
                raise FilterError("Too many times not.")
            inner = self._one(depth + 1)
            return lambda record: not inner(record)
        if (kind, text) == ("op", "("):
            inner = self.any_of(depth + 1)
            if not self.rest or self.rest.pop(0) != ("op", ")"):
                raise FilterError("A closing parenthesis is missing.")
            return inner
        if (kind, text) == ("word", "exists"):
            if not self.rest or self.rest[0][0] != "word":
                raise FilterError("Write which field: exists value.error")
            field = _field(self.rest.pop(0)[1])
            if field is None:
                raise FilterError("exists wants a field: key, value or header.NAME")
            return lambda record: any(each is not None for each in field(record))
        if kind == "op":
            raise FilterError(f"Something is missing before {text!r}.")
        return self._comparison(kind, text)

    def _comparison(self, kind: str, text: str) -> Filter:
        operator = self._operator()
        if operator is None:
            if kind == "word" and text in _JOINS:
                raise FilterError(f"Something is missing beside {text!r}.")
            return _containing(_unquoted(text) if kind == "string" else text)
        field = _field(text) if kind == "word" else None
        if field is None:
            raise FilterError(
                f"{text!r} is no field: write key, value.…, header.NAME, partition, offset, timestamp, size."
            )
        if not self.rest or self.rest[0][0] == "op":
            raise FilterError(f"What is {text} compared with?")
        kind, word = self.rest.pop(0)
        literal: Any = word
        if kind == "string":
            literal = _unquoted(word)
        elif kind == "number":
            literal = float(word) if "." in word else int(word)
        elif word in ("true", "false", "null"):
            literal = {"true": True, "false": False, "null": None}[word]
        compare = _COMPARE[operator]
        if operator == "!=":
            return lambda record: not any(_equal(each, literal) for each in field(record))
        return lambda record: any(compare(each, literal) for each in field(record))

    def _operator(self) -> str | None:
        if not self.rest:
            return None
        kind, text = self.rest[0]
        if kind == "op" and text not in "()":
            self.rest.pop(0)
            return "=" if text == "==" else text
        if kind == "word" and text in _WORDS:
            self.rest.pop(0)
            return text
        return None


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1])


# ---- comparing ------------------------------------------------------------------------------------------------------


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return compact(value) if isinstance(value, dict | list) else str(value)


def _equal(value: Any, literal: Any) -> bool:
    if literal is None or isinstance(literal, bool):
        return value is literal
    if is_number(value) and is_number(literal):
        return bool(value == literal)
    return value is not None and _text(value) == _text(literal)


def _ordered(check: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def compare(value: Any, literal: Any) -> bool:
        if is_number(literal):
            if isinstance(value, str):
                try:
                    value = float(value)
                except ValueError:
                    return False
            return is_number(value) and check(value, literal)
        return value is not None and literal is not None and check(_text(value), _text(literal))

    return compare


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": _equal,
    "!=": _equal,
    "<": _ordered(lambda a, b: bool(a < b)),
    "<=": _ordered(lambda a, b: bool(a <= b)),
    ">": _ordered(lambda a, b: bool(a > b)),
    ">=": _ordered(lambda a, b: bool(a >= b)),
    "contains": lambda value, literal: value is not None and _text(literal) in _text(value),
    "startswith": lambda value, literal: value is not None and _text(value).startswith(_text(literal)),
    "endswith": lambda value, literal: value is not None and _text(value).endswith(_text(literal)),
}


def _containing(text: str) -> Filter:
    wanted = text.lower()

    def found(record: Candidate) -> bool:
        return (
            wanted in record.key.text.lower()
            or wanted in record.value.text.lower()
            or any(wanted in name.lower() or wanted in value.lower() for name, value in record.headers)
        )

    return found


# ---- fields ---------------------------------------------------------------------------------------------------------

_Values = Callable[[Candidate], list[Any]]
_STEP = re.compile(r'\.([^.\[\]]+)|\["([^"]*)"\]|\[(\d{1,6}|\*)\]')


@dataclass(slots=True, frozen=True)
class _Path:
    part: str
    steps: tuple[str | int, ...]  # "*" as an index is -1

    def __call__(self, record: Candidate) -> list[Any]:
        decoded: Decoded = record.key if self.part == "key" else record.value
        if not self.steps:
            if decoded.kind == "null":
                return [None]
            return [decoded.tree if decoded.has_fields and not isinstance(decoded.tree, dict | list) else decoded.text]
        found: list[Any] = [decoded.tree]
        for step in self.steps:
            found = _stepped(found, step)
        return found


def _stepped(values: list[Any], step: str | int) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if isinstance(step, int):
            if isinstance(value, list):
                found += value if step < 0 else value[step : step + 1]
        elif isinstance(value, dict) and step in value:
            found.append(value[step])
        if len(found) > _FANOUT_MAX:
            return found[:_FANOUT_MAX]
    return found


@dataclass(slots=True, frozen=True)
class _Header:
    name: str

    def __call__(self, record: Candidate) -> list[Any]:
        return [value for name, value in record.headers if name == self.name]


def _field(text: str) -> _Values | None:
    if text in _PLAIN:
        attribute = "timestamp_ms" if text == "timestamp" else text
        return lambda record: [getattr(record, attribute)]
    if text.startswith("header.") and len(text) > 7:
        return _Header(text[7:])
    if text.startswith('header["') and text.endswith('"]'):
        return _Header(text[8:-2])
    part = "key" if text.startswith("key") else "value" if text.startswith("value") else None
    if part is None:
        return None
    steps: list[str | int] = []
    position = len(part)
    while position < len(text):
        found = _STEP.match(text, position)
        if found is None:
            raise FilterError(f'{text!r} is no field: write value.name, value[0] or value["any name"].')
        name, quoted, index = found.groups()
        if index is not None:
            steps.append(-1 if index == "*" else int(index))
        else:
            steps.append(name if name is not None else quoted)
        position = found.end()
    return _Path(part, tuple(steps))
