"""The same requests to two brokers, their decoded answers compared field by field.

A scenario is a function that talks to one `Side`; it runs once against each broker, so it may use what that broker
answered (topic ids, producer ids, sessions) in its next request. Every answer goes, with a label, into the trace of its
side; the two traces are then compared, and every difference is one readable line.

What must differ between two clusters is masked, but not thrown away: a masked field still says whether it was set. So a
topic id is compared as "there is one", an error message as "there is one". Records are compared batch by batch without
producer id and CRC. A scenario adds masks of its own where it knows more.
"""

import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from moldau.records import iter_batches
from moldau.wire import Message, Struct, apis, decode, encode
from moldau.wire.headers import decode_response_header, encode_request_header

PRESENCE = frozenset(
    [
        *("client_instance_id", "cluster_id", "host", "log_dir", "member_id", "port", "producer_id", "topic_id"),
        *("directory_id", "replica_directory_id", "leader", "session_id", "subscription_id"),
        *(
            "batch_index_error_message",
            "documentation",
            "error_message",
            "total_bytes",
            "usable_bytes",
            "finalized_features_epoch",
        ),
        *("last_caught_up_timestamp", "last_fetch_timestamp", "last_timestamp", "log_append_time_ms"),
        *("start_timestamp", "transaction_start_time_ms"),
    ]
)
"""Fields, by name, of which only "set or not set" is compared."""

# Kafka hands out producer id 0 first, and an error message may be empty: here only these values mean "not set".
_UNSET: Mapping[str, tuple[object, ...]] = {"producer_id": (-1,), "error_message": (None,)}
_UNSET_OTHERWISE = (None, "", 0, -1, bytes(16))


@dataclass(slots=True, frozen=True)
class Masks:
    """Paths are field names joined by dots, without list positions: `topics.partitions.log_dir`, or a tail of that."""

    presence: Sequence[str] = ()  # compared as set or not set, besides PRESENCE
    exact: Sequence[str] = ()  # compared as they are, though PRESENCE names them
    ignore: Sequence[str] = ()  # not compared at all
    unordered: Sequence[str] = ()  # lists whose order means nothing


NO_MASKS = Masks()


@dataclass(slots=True, frozen=True)
class Exchange:
    """One request and what came back, ready to compare."""

    label: str
    request: str
    answer: Any  # nested dicts and lists; a string where there was no decodable answer


class ConnectionClosed(Exception):
    """The broker closed the connection instead of answering."""


@dataclass(slots=True)
class Side:
    """One broker, one connection, one trace."""

    name: str
    bootstrap: str
    trace: list[Exchange] = field(default_factory=list)
    timeout_s: float = 15
    from_host: str | None = None
    """An address of this machine to come from."""
    _socket: socket.socket | None = None
    _correlation_id: int = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.reconnect()

    def reconnect(self) -> None:
        """Drop the connection; the next call opens another."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def call(self, label: str, request: Message, version: int, masks: Masks = NO_MASKS) -> Any:
        """Send, decode, trace. A closed connection is traced and raised: it ends the scenario on this side."""
        try:
            answer = self.ask(request, version)
        except ConnectionClosed:
            self.trace.append(Exchange(f"{label} v{version}", repr(request), "connection closed"))
            raise
        self.trace.append(Exchange(f"{label} v{version}", repr(request), plain(answer, masks)))
        return answer

    def call_every(
        self, label: str, request: Message, masks: Masks = NO_MASKS, versions: Sequence[int] | None = None
    ) -> Any:
        """The same request in every stable version, or the given ones; the answer to the last."""
        answer: Any = None
        for version in versions_of(type(request)) if versions is None else versions:
            answer = self.call(label, request, version, masks)
        return answer

    def await_answer(
        self, label: str, request: Message | Callable[[], Message], version: int, accept: Callable[[Any], bool]
    ) -> Any:
        """Ask, untraced, until the answer is the awaited one (metadata spreads after its change was acknowledged)."""
        deadline = time.monotonic() + self.timeout_s
        while True:
            asked = request if isinstance(request, Message) else request()
            if accept(answer := self.ask(asked, version)):
                return answer
            if time.monotonic() > deadline:
                self.trace.append(Exchange(label, repr(asked), f"never as awaited, last: {answer!r}"))
                return answer
            time.sleep(0.01)

    def ask(self, request: Message, version: int) -> Any:
        """Send and decode, without a trace."""
        api = apis()[type(request).number]
        self._correlation_id += 1
        header = encode_request_header(api, version, self._correlation_id, "differential")
        frame = self.exchange(header + encode(request, version))
        correlation_id, position = decode_response_header(frame, header_version=api.response_header_version(version))
        assert correlation_id == self._correlation_id, "answered out of order"
        return decode(api.response, version, frame[position:])

    def send(self, request: Message, version: int) -> None:
        """Send and expect no answer: Produce with acks=0."""
        self._correlation_id += 1
        header = encode_request_header(apis()[type(request).number], version, self._correlation_id, "differential")
        self._send(header + encode(request, version))

    def raw(self, label: str, frame: bytes) -> bytes | None:
        """Send any bytes as one frame. Traced is only whether an answer came or the connection was closed."""
        try:
            answer = self.exchange(frame)
        except ConnectionClosed:
            self.trace.append(Exchange(label, frame.hex(), "connection closed"))
            return None
        self.trace.append(Exchange(label, frame.hex(), "answered"))
        return answer

    def note(self, label: str, value: Any) -> None:
        """Put something derived into the trace."""
        self.trace.append(Exchange(label, "", plain(value, NO_MASKS)))

    def exchange(self, frame: bytes) -> bytes:
        self._send(frame)
        try:
            (size,) = struct.unpack(">i", self._receive(4))
            return self._receive(size)
        except (ConnectionError, ConnectionClosed):
            self.reconnect()
            raise ConnectionClosed(f"{self.name} closed the connection") from None

    def _send(self, frame: bytes) -> None:
        if self._socket is None:
            host, _, port = self.bootstrap.rpartition(":")
            source = None if self.from_host is None else (self.from_host, 0)
            self._socket = socket.create_connection((host, int(port)), self.timeout_s, source_address=source)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)

    def _receive(self, size: int) -> bytes:
        assert self._socket is not None
        data = b""
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            if not part:
                raise ConnectionClosed
            data += part
        return data


Scenario = Callable[[Side], None]


def versions_of(request: type[Message]) -> range:
    """Every stable version of an API, as the message table has them."""
    stable = apis()[request.number].versions
    return range(stable.first, stable.last + 1)


# --- comparing -------------------------------------------------------------------------------------------------------


def plain(value: Any, masks: Masks, path: str = "") -> Any:
    """A message as nested dicts and lists, masked."""
    name = path.rpartition(".")[2]
    if isinstance(value, Struct):
        named = {slot: getattr(value, slot) for slot in value.__slots__ if slot != "unknown_tags"}
        if value.unknown_tags:
            named["unknown_tags"] = {str(tag): content for tag, content in value.unknown_tags.items()}
        inner = {slot: plain(item, masks, f"{path}.{slot}" if path else slot) for slot, item in named.items()}
        return {slot: item for slot, item in inner.items() if not _matches(f"{path}.{slot}", masks.ignore)}
    if isinstance(value, dict):
        return {str(key): plain(item, masks, f"{path}.{key}" if path else str(key)) for key, item in value.items()}
    if _matches(path, masks.presence) or (name in PRESENCE and not _matches(path, masks.exact)):
        return "<set>" if value not in _UNSET.get(name, _UNSET_OTHERWISE) else "<not set>"
    if name == "records" and isinstance(value, bytes | bytearray | memoryview):
        return [plain(batch, masks, path + ".batch") for batch in _batches(bytes(value))]
    if isinstance(value, list | tuple):
        items = [plain(item, masks, path) for item in value]
        return sorted(items, key=repr) if _matches(path, masks.unordered) else items
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    return value


def _matches(path: str, patterns: Sequence[str]) -> bool:
    return any(path == pattern or path.endswith("." + pattern) for pattern in patterns)


def _batches(records: bytes) -> Iterator[dict[str, Any]]:
    """What two brokers must agree on of each batch: everything but producer id, CRC and the time of a marker."""
    for position, header in iter_batches(records):
        fields = dict(header._asdict())
        fields["producer_id"] = "<set>" if fields["producer_id"] >= 0 else "<not set>"
        if header.is_control:  # written by the broker, at its own time
            fields["base_timestamp"] = fields["max_timestamp"] = "<its own>"
        del fields["crc"]
        fields["payload"] = records[position + 61 : position + header.size_bytes].hex()
        yield fields


def differences(ours: Side, theirs: Side) -> list[str]:
    """One line for each difference between two traces; empty if they tell the same story."""
    found: list[str] = []
    for mine, other in zip(ours.trace, theirs.trace, strict=False):
        if mine.label != other.label:
            found.append(f"{ours.name} went on with {mine.label!r}, {theirs.name} with {other.label!r}")
            return found
        for path, my_value, other_value in _unequal(mine.answer, other.answer, ""):
            found.append(f"{mine.label}: {path or 'answer'}: {ours.name} {my_value!r}, {theirs.name} {other_value!r}")
    if len(ours.trace) != len(theirs.trace):
        longer, shorter = sorted((ours, theirs), key=lambda side: len(side.trace), reverse=True)
        missing = longer.trace[len(shorter.trace)].label
        found.append(f"{shorter.name} ended early: {missing!r} was answered by {longer.name} only")
    return found


def _unequal(mine: Any, other: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(mine, dict) and isinstance(other, dict):
        for key in sorted(mine.keys() | other.keys()):
            yield from _unequal(mine.get(key, "<missing>"), other.get(key, "<missing>"), f"{path}.{key}".lstrip("."))
    elif isinstance(mine, list) and isinstance(other, list) and len(mine) == len(other):
        for number, (my_item, other_item) in enumerate(zip(mine, other, strict=True)):
            yield from _unequal(my_item, other_item, f"{path}[{number}]")
    elif mine != other or type(mine) is not type(other):
        yield path, mine, other


def run_scenario(scenario: Scenario, ours: tuple[str, str], theirs: tuple[str, str]) -> list[str]:
    """Run it against two brokers, each (name, bootstrap); what differs. An error of the scenario counts too."""
    sides = [Side(*ours), Side(*theirs)]
    failures: list[str] = []
    for side in sides:
        with side:
            try:
                scenario(side)
            except Exception as error:  # a broker that breaks a scenario must not hide what went before
                failures.append(f"{type(error).__name__}: {error} ({side.name})")
    if len(failures) == len(sides) and failures[0].rpartition(" (")[0] == failures[1].rpartition(" (")[0]:
        raise AssertionError(f"the scenario itself is broken: {failures[0]}, after {sides[0].trace[-1:]}")
    return differences(sides[0], sides[1]) + failures
