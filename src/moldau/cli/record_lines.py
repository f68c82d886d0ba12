"""Records as lines: plain, by a template, or as JSON. Bytes that are no text pass through as they are, except to a
terminal, which no record may control."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from moldau.cli.failure import misused
from moldau.cli.harmless import harmless_bytes
from moldau.cli.output import Output, unescape
from moldau.cli.places import show_time
from moldau.cli.record_forms import Form, Unfit, as_json, as_line
from moldau.records.client_headers import headers_of

if TYPE_CHECKING:
    from confluent_kafka import Message

_FIELD = re.compile(r"\{(\w+)\}|\{\{|\}\}")
_NAMES = (
    *("topic", "partition", "offset", "timestamp", "timestamp_ms", "key", "value", "headers"),
    *("key_size", "value_size"),
)


@dataclass(slots=True, frozen=True)
class Shown:
    """A record whose key and value were decoded."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: Any
    value: Any
    headers: list[tuple[str, bytes | None]]
    key_size: int
    value_size: int


@dataclass(slots=True)
class Rendering:
    output: Output
    key_form: Form
    value_form: Form
    key_separator: str | None
    separator: str
    null: str
    fronts: tuple[bool, bool, bool]  # times, positions, headers
    unfit: int = 0
    _between: bytes = field(init=False)
    _end: bytes = field(init=False)
    _template: list[str | bytes] | None = field(init=False, default=None)
    _waits: bool = field(init=False, default=False)
    _is_seen: bool = field(init=False, default=False)  # by people, on a terminal

    def __post_init__(self) -> None:
        self._is_seen = sys.stdout.isatty()
        self._between = unescape(self.key_separator or "").encode()
        self._end = unescape(self.separator).encode()
        if self.output.template is not None:
            self._template = _parsed(self.output.template)

    def decode(self, message: Message) -> Shown:
        key, value = message.key(), message.value()
        try:
            shown_key = None if key is None else self.key_form.decode(key)
        except Unfit as error:
            raise Unfit(f"its key: {error}") from error
        return Shown(
            str(message.topic()),
            int(message.partition() or 0),
            int(message.offset() or 0),
            message.timestamp()[1],
            shown_key,
            None if value is None else self.value_form.decode(value),
            headers_of(message),
            len(key or b""),
            len(value or b""),
        )

    def write(self, record: Shown) -> None:
        sys.stdout.buffer.write(self._line(record))
        self._waits = True

    def flush(self) -> None:
        """Before waiting for more: what is there is seen."""
        if self._waits:
            self._waits = False
            sys.stdout.buffer.flush()

    def _line(self, record: Shown) -> bytes:
        if self.output.as_json:
            line = json.dumps(document(record), ensure_ascii=False, default=str).encode(errors="backslashreplace")
            return (harmless_bytes(line) if self._is_seen else line) + b"\n"
        if self._template is not None:
            pieces = (each if isinstance(each, bytes) else self._field(record, each) for each in self._template)
            return b"".join(pieces) + self._end
        times, positions, headers = self.fronts
        fronts = []
        if times:
            fronts.append((show_time(record.timestamp_ms) or "-").encode())
        if positions:
            fronts.append(f"{record.topic}-{record.partition}@{record.offset}".encode())
        if headers:
            fronts.append(self._field(record, "headers"))
        front = b"".join(each + b"\t" for each in fronts)
        key = self._field(record, "key") + self._between if self.key_separator is not None else b""
        return front + key + self._field(record, "value") + self._end

    def _field(self, record: Shown, name: str) -> bytes:
        found = self._bytes(record, name)
        return harmless_bytes(found) if self._is_seen else found

    def _bytes(self, record: Shown, name: str) -> bytes:
        if name == "timestamp":
            return (show_time(record.timestamp_ms) or "-").encode()
        if name == "headers":
            return b",".join(
                header.encode() + (b"" if value is None else b"=" + value) for header, value in record.headers
            )
        value = getattr(record, name)
        return self.null.encode() if value is None and name == "value" else as_line(value)


def document(record: Shown) -> dict[str, Any]:
    """What --json shows, and `produce --json-input` reads."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": show_time(record.timestamp_ms),
        "timestamp_ms": record.timestamp_ms,
        "key": as_json(record.key),
        "value": as_json(record.value),
        "headers": [[name, as_json(value)] for name, value in record.headers],
    }


def _parsed(template: str) -> list[str | bytes]:
    """Names as text, what stands between them as bytes."""
    found: list[str | bytes] = []
    end = 0
    for each in _FIELD.finditer(template):
        found.append(template[end : each.start()].encode())
        end = each.end()
        if each[1] is None:
            found.append(each[0][0].encode())
        elif each[1] in _NAMES:
            found.append(each[1])
        else:
            misused(f"--format: there is no {{{each[1]}}}; there are {', '.join(f'{{{name}}}' for name in _NAMES)}")
    found.append(template[end:].encode())
    return found
