"""One connection to one broker, blocking: for a process in which nobody else waits, as a Spark task.

Invariant: a connection that failed in any way is closed and never used again; callers make a new one.
"""

import contextlib
import socket
import ssl
from typing import Self, TypeVar

from moldau.client.sasl import AuthenticationFailed, Credentials, exchange_of
from moldau.client.security import Security, tls_context
from moldau.client.settings import ClientSettings
from moldau.wire import ErrorCode, MalformedFrame, Message, apis, decode, encode
from moldau.wire.apis import Api
from moldau.wire.headers import decode_response_header, encode_request_header
from moldau.wire.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

_FRAME_BYTES_MAX = 1 << 30
_PIECE_BYTES_MIN = 1 << 16  # smaller ones travel together
_API_VERSIONS = 18
R = TypeVar("R", bound=Message)


class ClientError(Exception):
    """Something went wrong between us and a broker."""


class Disconnected(ClientError):
    """The broker could not be reached, or the connection broke: worth another try."""


class BrokerError(ClientError):
    """The broker answered with an error code."""

    def __init__(self, code: int, what: str) -> None:
        try:
            self.code = ErrorCode(code)
        except ValueError:  # from a newer Kafka
            self.code = ErrorCode.UNKNOWN_SERVER_ERROR
        super().__init__(f"{what}: {self.code.name} ({code}). {self.code.meaning}")


class Connection:
    """Connected, secured, logged in, and told which versions the broker speaks."""

    def __init__(self, host: str, port: int, settings: ClientSettings) -> None:
        self.peer = f"{host}:{port}"
        self._settings = settings
        self._correlation_id = 0
        self._versions: dict[int, tuple[int, int]] = {}
        try:
            self._socket: socket.socket = socket.create_connection((host, port), settings.connect_timeout_s)
        except OSError as error:
            raise Disconnected(f"cannot connect to {self.peer}: {error}") from error
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.settimeout(settings.request_timeout_s)
            if settings.security.tls:
                self._secure(host)
            self._ask_versions()
            if settings.security.mechanism is not None:
                self._log_in(settings.security)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def break_off(self) -> None:
        """Wake a thread that waits for an answer: from now on every call fails."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def version(self, api: Api, most: int | None = None) -> int:
        """The newest version both sides speak, at most `most`."""
        least, newest = self._versions.get(api.key, (0, -1))
        chosen = min(newest, api.versions.last if most is None else most)
        if chosen < max(least, api.versions.first):
            raise ClientError(f"{self.peer} does not speak {api.name} in a version that we speak: update it")
        return chosen

    def speaks(self, request: type[Message]) -> bool:
        """Whether the broker serves this API, in any version."""
        return request.number in self._versions

    def call(self, request: Message, answer: type[R], most: int | None = None) -> R:
        """One request and its answer."""
        api = apis()[request.number]
        version = self.version(api, most)
        self.send(api, version, encode(request, version))
        frame, position = self.receive(api, version)
        try:
            return decode(answer, version, frame[position:])
        except MalformedFrame as error:
            self.close()
            raise ClientError(f"{self.peer} sent an answer that makes no sense: {error}") from error

    def send(self, api: Api, version: int, *body: bytes | memoryview) -> None:
        """A request whose body is in pieces, perhaps; large ones are not copied."""
        self._correlation_id += 1
        head = encode_request_header(api, version, self._correlation_id, self._settings.client_id)
        size = len(head) + sum(map(len, body))
        pieces: list[bytes | memoryview] = [size.to_bytes(4, "big") + head]
        try:
            for piece in body:
                if len(piece) < _PIECE_BYTES_MIN:
                    pieces.append(piece)
                    continue
                self._socket.sendall(b"".join(pieces))
                self._socket.sendall(piece)
                pieces.clear()
            if pieces:
                self._socket.sendall(b"".join(pieces))
        except OSError as error:
            raise self._broken(error) from error

    def receive(self, api: Api, version: int) -> tuple[memoryview, int]:
        """The next frame and where its body begins. Its memory is the caller's."""
        frame = self._read_frame()
        correlation_id, position = decode_response_header(frame, header_version=api.response_header_version(version))
        if correlation_id != self._correlation_id:
            raise self._broken(None, f"answer {correlation_id} came instead of {self._correlation_id}")
        return frame, position

    def _read_frame(self) -> memoryview:
        size = int.from_bytes(self._read(4), "big")
        if not 4 <= size <= _FRAME_BYTES_MAX:
            raise self._broken(
                None, f"a frame of {size} bytes: is this a Kafka listener, and TLS on both sides or none?"
            )
        return self._read(size)

    def _read(self, size: int) -> memoryview:
        view = memoryview(bytearray(size))
        done = 0
        try:
            while done < size:
                count = self._socket.recv_into(view[done:])
                if not count:
                    raise self._broken(None, "the broker closed it")
                done += count
        except OSError as error:
            raise self._broken(error) from error
        return view

    def _broken(self, error: OSError | None, why: str = "") -> ClientError:
        """What to raise. A broker that refuses us by a TLS alert will do so again; all else is worth another try."""
        self.close()
        if isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or ""):
            return ClientError(
                f"{self.peer} refused the TLS connection: {error.reason}. Set ssl.keystore.location to a "
                "certificate and key in PEM that it trusts"
            )
        if isinstance(error, TimeoutError):
            why = f"no answer within {self._settings.request_timeout_s:.0f} s"
        return Disconnected(f"the connection to {self.peer} broke: {why or error}")

    def _secure(self, host: str) -> None:
        try:
            self._socket = tls_context(self._settings.security).wrap_socket(self._socket, server_hostname=host)
        except ssl.SSLCertVerificationError as error:
            raise ClientError(
                f"the certificate of {self.peer} is not trusted: {error.verify_message}. "
                "Set ssl.truststore.location to its CA in PEM"
            ) from error
        except OSError as error:
            raise self._broken(error) from error

    def _ask_versions(self) -> None:
        """Version 0 of this request is understood by every broker there is."""
        api = apis()[_API_VERSIONS]
        self.send(api, 0, encode(ApiVersionsRequest(), 0))
        frame, position = self.receive(api, 0)
        answer = decode(ApiVersionsResponse, 0, frame[position:])
        if answer.error_code:
            raise BrokerError(answer.error_code, f"{self.peer} does not say which versions it speaks")
        self._versions = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}

    def _log_in(self, security: Security) -> None:
        mechanism = security.mechanism or ""
        hands = self.call(SaslHandshakeRequest(mechanism=mechanism), SaslHandshakeResponse)
        if hands.error_code:
            offered = ", ".join(hands.mechanisms) or "none"
            raise AuthenticationFailed(f"{self.peer} does not take {mechanism}; it takes: {offered}")
        token = "" if security.bearer_token is None else security.bearer_token()
        credentials = Credentials(mechanism, security.username, security.password, security.is_token, token)
        steps = exchange_of(credentials)
        message = next(steps)
        while True:
            answer = self.call(SaslAuthenticateRequest(auth_bytes=message), SaslAuthenticateResponse)
            if answer.error_code:
                raise AuthenticationFailed(f"{self.peer} refused user {security.username!r}: {answer.error_message}")
            try:
                message = steps.send(bytes(answer.auth_bytes))
            except StopIteration:
                return
