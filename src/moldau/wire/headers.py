"""Request and response headers, in all versions, by hand: every frame starts with one.

The client id is never compact, even in the flexible header: brokers must read it before they know what follows.
"""

from struct import Struct, error
from typing import NamedTuple

from moldau.wire.apis import Api
from moldau.wire.primitives import MalformedFrame, skip_tags

_REQUEST = Struct(">hhih")  # api key, api version, correlation id, length of the client id
_CLIENT_ID = Struct(">h")
_RESPONSE_0 = Struct(">i")
_RESPONSE_1 = Struct(">ib")


class RequestHeader(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def peek_api(frame: bytes | memoryview) -> tuple[int, int, int]:
    """(api key, api version, correlation id): enough to choose the header version."""
    try:
        api_key, api_version, correlation_id, _ = _REQUEST.unpack_from(frame)
    except error:
        raise MalformedFrame(f"a request of {len(frame)} bytes has no header") from None
    return api_key, api_version, correlation_id


def decode_request_header(frame: bytes | memoryview, *, flexible: bool) -> tuple[RequestHeader, int]:
    """The header and the position of the body after it."""
    api_key, api_version, correlation_id = peek_api(frame)
    client_id, position = decode_client_id(frame, flexible)
    return RequestHeader(api_key, api_version, correlation_id, client_id), position


def decode_client_id(frame: bytes | memoryview, flexible: bool) -> tuple[str | None, int]:
    """What `peek_api` leaves of the header, and the position of the body after it."""
    try:
        (size,) = _CLIENT_ID.unpack_from(frame, 8)
        position = 10
        client_id = None
        if size >= 0:
            position += size
            if position > len(frame):
                raise MalformedFrame("the client id is longer than its frame")
            client_id = str(frame[10:position], "utf-8")
        if flexible:
            # Nearly always empty: one byte.
            position = position + 1 if frame[position] == 0 else skip_tags(frame, position)
    except (IndexError, error):
        raise MalformedFrame("the request header ends too early") from None
    except UnicodeDecodeError:
        raise MalformedFrame("the client id is not UTF-8") from None
    return client_id, position


def encode_request_header(api: Api, version: int, correlation_id: int, client_id: str | None) -> bytes:
    name = b"" if client_id is None else client_id.encode()
    head = _REQUEST.pack(api.key, version, correlation_id, -1 if client_id is None else len(name))
    return head + name + (b"\0" if api.request_header_version(version) == 2 else b"")


def encode_response_header(correlation_id: int, *, header_version: int) -> bytes:
    return _RESPONSE_1.pack(correlation_id, 0) if header_version else _RESPONSE_0.pack(correlation_id)


def decode_response_header(frame: bytes | memoryview, *, header_version: int) -> tuple[int, int]:
    """(correlation id, position of the body)."""
    try:
        (correlation_id,) = _RESPONSE_0.unpack_from(frame)
        return correlation_id, skip_tags(frame, 4) if header_version else 4
    except (IndexError, error):
        raise MalformedFrame("the response header ends too early") from None
