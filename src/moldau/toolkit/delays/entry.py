"""A delayed message as it lies in the topics of the delays: bytes under the key of its id.

The same bytes stand for it from the sender to the day it is due: the relay copies them, and looks inside to see when
and where to. No value under an id means that there is nothing (any more) to be sent under it.
"""

from __future__ import annotations

import msgspec

from moldau.toolkit.errors import Undecodable
from moldau.toolkit.letters import ID, Header

DUE = "moldau-due"
"""The header of a delivered message that says, in milliseconds since 1970, when it was due."""

ID_BYTES_MAX = 512
DUE_MS_MAX = 2**63 - 1


class Delayed(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What is to be sent, where to, and when. Fields are added at the end only, with a default."""

    due_ms: int
    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    partition: int | None = None
    cron: str | None = None
    zone: str = "UTC"
    is_retry: bool = False  # delivered with its headers as they are


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Delayed)


def encode(delayed: Delayed) -> bytes:
    return _encoder.encode(delayed)


def decode(data: bytes) -> Delayed:
    """Raises `Undecodable` for bytes that are no delayed message."""
    try:
        found = _decoder.decode(data)
    except (msgspec.DecodeError, ValueError) as error:
        raise Undecodable(f"no delayed message: {error}") from error
    if not found.topic or not 0 <= found.due_ms <= DUE_MS_MAX:
        raise Undecodable("no delayed message: it has no topic, or is due at no time")
    return found


def delivered_headers(id_: bytes, delayed: Delayed) -> list[Header]:
    """The headers it is delivered with: the sender's, its id, and when it was due."""
    if delayed.is_retry:
        return delayed.headers
    if delayed.cron is None:
        own: list[Header] = [*delayed.headers]
        if not any(name == ID for name, _ in own):
            own.append((ID, id_))
    else:  # each time is a message of its own
        own = [header for header in delayed.headers if header[0] != ID]
        own.append((ID, id_ + b"@%d" % delayed.due_ms))
    own.append((DUE, b"%d" % delayed.due_ms))
    return own
