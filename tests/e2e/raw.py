"""Bare sockets and hand-made frames, for what no client library would do."""

import socket
import struct
from typing import Any, Self

from moldau.wire import Message, apis, decode, encode
from moldau.wire.headers import decode_response_header, encode_request_header


class Raw:
    """One connection."""

    def __init__(self, bootstrap: str, seconds: float = 20.0) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), seconds)
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def ask(self, request: Message, version: int | None = None) -> Any:
        api = apis()[type(request).number]
        if version is None:
            version = api.versions.last
        self._correlation_id += 1
        self.send(request_frame(request, version, self._correlation_id))
        answer = self.read_frame()
        correlation_id, position = decode_response_header(answer, header_version=api.response_header_version(version))
        assert correlation_id == self._correlation_id
        return decode(api.response, version, answer[position:])

    def read_frame(self) -> bytes:
        (size,) = struct.unpack(">i", self._read(4))
        return self._read(size)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise ConnectionError("the broker closed the connection")
            data += part
        return data

    def is_closed_by_peer(self) -> bool:
        """Wait for the end of the stream; TimeoutError if it does not come. What comes before it is not looked at."""
        try:
            while self.socket.recv(65_536):
                pass
        except ConnectionResetError:
            pass
        return True


def request_frame(request: Message, version: int, correlation_id: int = 1) -> bytes:
    """With its length in front."""
    api = apis()[type(request).number]
    return with_length(encode_request_header(api, version, correlation_id, "raw") + encode(request, version))


def with_length(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame


def header(api_key: int, version: int, correlation_id: int = 1) -> bytes:
    """A request header without client id, good for any version that is not flexible."""
    return struct.pack(">hhih", api_key, version, correlation_id, -1)
