"""A proxy between a Kafka client and a broker that keeps every frame it sees.

The broker tells clients its own address in Metadata and FindCoordinator; the proxy replaces that by its own, so all
connections come back through it. It does so with our codec: a client that goes on working is itself a proof.
"""

import socket
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from moldau.wire import apis, decode_prefix, encode
from moldau.wire.headers import decode_request_header, decode_response_header, peek_api

_METADATA, _FIND_COORDINATOR = 3, 10


@dataclass(slots=True, frozen=True)
class Exchange:
    """A request and its answer, without headers. `answered` is None where none is sent (acks=0) or came."""

    api_key: int
    version: int
    asked: bytes
    answered: bytes | None


class CapturingProxy:
    """`with CapturingProxy(("127.0.0.1", 9092)) as proxy: client(proxy.bootstrap_servers)`"""

    def __init__(self, upstream: tuple[str, int]) -> None:
        self._upstream = upstream
        self.exchanges: list[Exchange] = []
        self.failures: list[BaseException] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.bootstrap_servers = f"127.0.0.1:{self.port}"
        self._sockets: list[socket.socket] = [self._listener]
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(10)

    def _start(self, target: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            broker = socket.create_connection(self._upstream)
            self._sockets += [client, broker]
            waiting: dict[int, tuple[int, int, bytes]] = {}
            self._start(self._requests, client, broker, waiting)
            self._start(self._responses, client, broker, waiting)

    def _requests(
        self, client: socket.socket, broker: socket.socket, waiting: dict[int, tuple[int, int, bytes]]
    ) -> None:
        try:
            while (frame := read_frame(client)) is not None:
                api_key, version, correlation_id = peek_api(frame)
                api = apis()[api_key]
                _, position = decode_request_header(frame, flexible=version in api.flexible)
                waiting[correlation_id] = (api_key, version, frame[position:])
                broker.sendall(struct.pack(">i", len(frame)) + frame)
        except OSError:
            pass
        except BaseException as error:  # shown by the test
            self.failures.append(error)
        finally:
            with suppress(OSError):
                broker.shutdown(socket.SHUT_RDWR)

    def _responses(
        self, client: socket.socket, broker: socket.socket, waiting: dict[int, tuple[int, int, bytes]]
    ) -> None:
        try:
            while (frame := read_frame(broker)) is not None:
                (correlation_id,) = struct.unpack_from(">i", frame)
                api_key, version, asked = waiting.pop(correlation_id)
                api = apis()[api_key]
                _, position = decode_response_header(frame, header_version=api.response_header_version(version))
                body = frame[position:]
                self.exchanges.append(Exchange(api_key, version, asked, body))
                if api_key in (_METADATA, _FIND_COORDINATOR):
                    frame = frame[:position] + self._redirected(api_key, version, body)
                client.sendall(struct.pack(">i", len(frame)) + frame)
        except OSError:
            pass
        except BaseException as error:  # shown by the test
            self.failures.append(error)
        finally:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def _redirected(self, api_key: int, version: int, body: bytes) -> bytes:
        # Only a prefix: librdkafka's mock cluster ends its newest Metadata responses with a stray byte.
        response: Any
        response, position = decode_prefix(apis()[api_key].response, version, body)
        places = response.brokers if api_key == _METADATA else [response, *response.coordinators]
        for place in places:
            if place.port > 0:
                place.host, place.port = "127.0.0.1", self.port
        return encode(response, version) + body[position:]


def read_frame(source: socket.socket) -> bytes | None:
    """One frame without its length, or None at the end of the stream."""
    head = _read_exactly(source, 4)
    return None if head is None else _read_exactly(source, struct.unpack(">i", head)[0])


def _read_exactly(source: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        piece = source.recv(size - len(data))
        if not piece:
            return None
        data += piece
    return bytes(data)
