"""The headers of retried and dead-lettered records, under the names people know from Spring and Kafka Connect.

Invariants: key, value and foreign headers stay as they came, byte for byte and in order. Our headers are replaced,
never accumulated, and the exception's text is capped: a record that goes through ten retries does not grow.
"""

from __future__ import annotations

import struct
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

Header = tuple[str, bytes | None]

TRACE_CHARACTERS_MAX = 4_000
MESSAGE_CHARACTERS_MAX = 1_000

ATTEMPTS = "retry_topic-attempts"
BACKOFF_TIMESTAMP = "retry_topic-backoff-timestamp"
ORIGINAL_TIMESTAMP = "retry_topic-original-timestamp"
GROUP = "kafka_dlt-original-consumer-group"
ID = "moldau-id"

_DLT, _RETRY = "kafka_dlt-", "kafka_"
_ORIGINAL = ("original-topic", "original-partition", "original-offset", "original-timestamp", "original-timestamp-type")
_EXCEPTION = ("exception-fqcn", "exception-cause-fqcn", "exception-message", "exception-stacktrace")
_CONNECT = "__connect.errors."
OURS = frozenset(
    [family + name for family in (_DLT, _RETRY) for name in (*_ORIGINAL, *_EXCEPTION)]
    + [ATTEMPTS, BACKOFF_TIMESTAMP, ORIGINAL_TIMESTAMP, GROUP]
    + [_CONNECT + name for name in ("topic", "partition", "offset", "connector.name")]
    + [_CONNECT + name for name in ("exception.class.name", "exception.message")]
)


@dataclass(slots=True, frozen=True)
class Origin:
    """Where a record was before it was ever retried."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: str  # CreateTime, LogAppendTime, NoTimestampType

    @property
    def id(self) -> str:
        return f"{self.topic}-{self.partition}-{self.offset}"


def retry_topic(topic: str, level: int) -> str:
    return f"{topic}-retry-{level}"


def dead_letter_topic(topic: str) -> str:
    return f"{topic}-dlt"


def find(headers: Sequence[Header], name: str) -> bytes | None:
    """The last header of that name, as Kafka's own `lastHeader`."""
    return next((value for key, value in reversed(headers) if key == name), None)


def origin_of(headers: Sequence[Header], here: Origin) -> Origin:
    """Where a retried record came from; a record without such headers comes from where it is."""
    for family in (_RETRY, _DLT):
        found = [find(headers, family + name) for name in _ORIGINAL]
        topic, partition, offset, timestamp, kind = found
        if topic is not None and partition is not None and offset is not None:
            return Origin(
                topic.decode(errors="replace"),
                int.from_bytes(partition, "big", signed=True),
                int.from_bytes(offset, "big", signed=True),
                int.from_bytes(timestamp, "big", signed=True) if timestamp is not None else -1,
                kind.decode(errors="replace") if kind is not None else "NoTimestampType",
            )
    topic, *place = (find(headers, _CONNECT + name) for name in ("topic", "partition", "offset"))
    digits = [each for each in place if each is not None and each.isdigit()]  # Connect writes numbers as text
    if topic is not None and len(digits) == len(place):
        return Origin(topic.decode(errors="replace"), int(digits[0]), int(digits[1]), -1, "NoTimestampType")
    return here


def attempts_of(headers: Sequence[Header]) -> int:
    """How often a record was delivered before and with this delivery."""
    found = find(headers, ATTEMPTS)
    return max(1, int.from_bytes(found, "big", signed=True)) if found else 1


def due_wall_ms(headers: Sequence[Header]) -> int | None:
    """When a retried record wants to be handled."""
    found = find(headers, BACKOFF_TIMESTAMP)
    return int.from_bytes(found, "big", signed=True) if found else None


def group_of(headers: Sequence[Header]) -> str | None:
    """Whose handler failed."""
    found = find(headers, GROUP)
    return found.decode(errors="replace") if found is not None else None


def foreign(headers: Sequence[Header]) -> list[Header]:
    """The headers that are not of a retry: what the record was sent with."""
    return [header for header in headers if header[0] not in OURS]


def for_retry(
    headers: Sequence[Header],
    origin: Origin,
    group: str,
    error: BaseException,
    attempts: int,
    due_ms: int,
    *,
    brief: bool = False,
) -> list[Header]:
    """The headers of a record on its way to a retry topic, for its delivery number `attempts`. `brief` leaves out what
    may be long."""
    return [
        *foreign(headers),
        *_origin_headers(_RETRY, origin),
        *_exception_headers(_RETRY, error, brief=brief),
        (GROUP, group.encode()),
        (ATTEMPTS, struct.pack(">i", attempts)),
        (BACKOFF_TIMESTAMP, _number(due_ms)),
        (ORIGINAL_TIMESTAMP, _number(origin.timestamp_ms)),
    ]


def for_dead_letter(
    headers: Sequence[Header], origin: Origin, group: str, error: BaseException, attempts: int, *, brief: bool = False
) -> list[Header]:
    """The headers of a dead letter, in every family. `brief` leaves out what may be long."""
    connect = {
        "topic": origin.topic,
        "partition": str(origin.partition),
        "offset": str(origin.offset),
        "connector.name": group,
        "exception.class.name": _fqcn(error),
    }
    return [
        *foreign(headers),
        *_origin_headers(_DLT, origin),
        *_exception_headers(_DLT, error, brief=brief),
        *_origin_headers(_RETRY, origin),
        *_exception_headers(_RETRY, error, brief=True),
        (GROUP, group.encode()),
        (ATTEMPTS, struct.pack(">i", attempts)),
        (ORIGINAL_TIMESTAMP, _number(origin.timestamp_ms)),
        *((_CONNECT + name, text.encode()) for name, text in connect.items()),
    ]


def _origin_headers(family: str, origin: Origin) -> list[Header]:
    values = (
        origin.topic.encode(),
        struct.pack(">i", origin.partition),
        struct.pack(">q", origin.offset),
        struct.pack(">q", origin.timestamp_ms),
        origin.timestamp_type.encode(),
    )
    return [(family + name, value) for name, value in zip(_ORIGINAL, values, strict=True)]


def _exception_headers(family: str, error: BaseException, *, brief: bool = False) -> list[Header]:
    cause = error.__cause__ or error
    found = {
        "exception-fqcn": _fqcn(error),
        "exception-cause-fqcn": _fqcn(cause),
        "exception-message": str(error)[: 200 if brief else MESSAGE_CHARACTERS_MAX],
    }
    if not brief:
        text = "".join(traceback.format_exception(error))
        # The end tells where it happened; the beginning is the same for every record.
        found["exception-stacktrace"] = text[-TRACE_CHARACTERS_MAX:]
    return [(family + name, value.encode(errors="replace")) for name, value in found.items()]


def _fqcn(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _number(value: int) -> bytes:
    """As Java's BigInteger writes it: as few bytes as hold the number and its sign."""
    return value.to_bytes((value.bit_length() // 8) + 1, "big", signed=True)
