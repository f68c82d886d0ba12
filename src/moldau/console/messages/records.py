"""A record as the console shows it: decoded, masked, cut. The only way from a message to a page, a file or a stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from moldau.console.messages.decoding import Decoded, compact, decode
from moldau.console.messages.filters import Filter
from moldau.console.messages.reading import Placed
from moldau.console.messages.text import one_line
from moldau.records.client_headers import headers_of

if TYPE_CHECKING:
    from confluent_kafka import Message

    from moldau.console.messages.masking import Masks
    from moldau.console.messages.registry import RegistryReader

_PREVIEW = 400
_HEADERS_MAX = 200
_HEADER_TEXT_MAX = 4_000
_KINDS = {0: "", 1: "CreateTime", 2: "LogAppendTime"}


@dataclass(slots=True, frozen=True)
class Lens:
    """How records of a topic are looked at."""

    topic: str
    masks: Masks
    registry: RegistryReader | None = None
    key_as: str = "auto"
    value_as: str = "auto"


class Record(Placed):
    """One record, decoded when somebody looks. What was masked cannot be got out of it."""

    def __init__(self, message: Message, lens: Lens) -> None:
        self.topic = message.topic() or ""
        self.partition = message.partition() or 0
        self.offset = message.offset() or 0
        kind, at = message.timestamp()
        self.timestamp_ms = at
        self.timestamp_kind = _KINDS.get(kind, "")
        self.size = len(message)
        self._lens = lens
        self._key: bytes | None = _bytes(message.key())
        self._value: bytes | None = _bytes(message.value())
        self._headers = headers_of(message)
        self.origins = lens.masks.origins(self._headers)

    @cached_property
    def key(self) -> Decoded:
        lens = self._lens
        return lens.masks.apply(lens.topic, "key", decode(self._key, lens.key_as, lens.registry), self.origins)

    @cached_property
    def value(self) -> Decoded:
        lens = self._lens
        return lens.masks.apply(lens.topic, "value", decode(self._value, lens.value_as, lens.registry), self.origins)

    @cached_property
    def headers(self) -> list[tuple[str, str]]:
        lens = self._lens
        return [
            (str(name), lens.masks.header(lens.topic, str(name), header_text(value), self.origins))
            for name, value in self._headers[:_HEADERS_MAX]
        ]

    @property
    def key_size(self) -> int:
        return len(self._key or b"")

    @property
    def value_size(self) -> int:
        return len(self._value or b"")

    @property
    def is_masked(self) -> bool:
        return self._lens.masks.concern(self._lens.topic, self.origins)

    def raw_value(self) -> bytes | None:
        """None where rules hide some of it."""
        return None if self.is_masked else (self._value or b"")

    def row(self) -> Row:
        return Row(
            self.topic,
            self.partition,
            self.offset,
            self.timestamp_ms,
            self.size,
            _preview(self.key),
            self.key.kind,
            _preview(self.value),
            self.value.kind,
            len(self._headers),
        )

    def plain(self) -> dict[str, Any]:
        """For files and the API."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "timestamp_ms": self.timestamp_ms,
            "key": _field(self.key),
            "key_format": self.key.kind,
            "value": _field(self.value),
            "value_format": self.value.kind,
            "headers": [{"name": name, "value": value} for name, value in self.headers],
        }


@dataclass(slots=True)
class Row(Placed):
    """What a list shows of a record."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    size: int
    key: str
    key_kind: str
    value: str
    value_kind: str
    headers: int


def rows_through(lens: Lens, wanted: Filter | None) -> Any:
    """What a reader calls for each message: a row of those that are wanted."""

    def accept(message: Message) -> Row | None:
        record = Record(message, lens)
        return record.row() if wanted is None or wanted(record) else None

    return accept


def _preview(decoded: Decoded) -> str:
    if decoded.kind == "hex":
        left = (line[10:57].strip() for line in decoded.text[: 78 * 4].splitlines())
        return one_line(" ".join(left), 160)
    text = compact(decoded.tree) if decoded.has_fields and len(decoded.text) < 20_000 else decoded.text
    return one_line(text, _PREVIEW)


def _field(decoded: Decoded) -> Any:
    if decoded.kind == "null":
        return None
    return decoded.tree if decoded.has_fields else decoded.text


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def header_text(value: Any) -> str:
    if value is None:
        return "null"
    data = value.encode() if isinstance(value, str) else bytes(value)
    try:
        text = data[:_HEADER_TEXT_MAX].decode()
        if text.isprintable() or text.replace("\n", "").replace("\t", "").isprintable():
            return text
    except UnicodeDecodeError:
        pass
    return "0x" + data[:_HEADER_TEXT_MAX].hex()


Headers = Mapping[str, str]
