"""Events by HTTP: what is posted is in the source's topic before the caller is answered.

Spark cannot ask a caller to send again, so nothing is handed to it directly: an event becomes a record, and the source
reads the topic as ever, with its offsets, its dead letters and its exactly-once. A caller that got 200 may forget the
event; one that got anything else, or nothing, sends it again, and it may then be there twice.

    POST /            one event, as it is; `?key=…` is its key
    POST / with Content-Type application/x-ndjson: one event a line

Invariant: memory is bounded by requests at a time and bytes in each; whoever comes beyond that is told to come later.
"""

from __future__ import annotations

import hmac
import io
import json
import logging
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from moldau.spark.connecting import librdkafka_settings
from moldau.spark.pipelines import model
from moldau.spark.pipelines.errors import PipelineError, Problem

_BYTES_MAX = 1 << 20  # of one request
_AT_ONCE = 32
_ANSWER_SECONDS = 30.0
_SILENCE_SECONDS = 10.0
_UNREAD_SECONDS = 1.0  # for what a caller still sends that was refused
_REQUEST_SECONDS = 20.0  # from the first byte to the last, however busily somebody sends
_UNREAD_BYTES_MAX = 16 << 20
_TOO_LARGE = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE)
_log = logging.getLogger(__name__)


class NotWritten(RuntimeError):
    """The brokers did not confirm everything in time."""


class TooLarge(RuntimeError):
    """An event is larger than a record may be: sending it again would not help."""


def parse_address(text: str) -> tuple[str, int]:
    """`HOST:PORT`, or `PORT` of this machine alone; raises ValueError."""
    host, _, port = text.rpartition(":")
    number = int(port)
    if not 0 <= number < 65_536:
        raise ValueError("there is no such port")
    return host.strip("[]") or "127.0.0.1", number


def is_only_here(text: str) -> bool:
    return parse_address(text)[0] in ("127.0.0.1", "::1", "localhost")


class Writer:
    """Events into a topic, and certainty that they are there."""

    def __init__(self, pipeline: model.Pipeline, topic: str) -> None:
        own = librdkafka_settings({"bootstrap.servers": pipeline.bootstrap_servers, **pipeline.kafka})
        timeout_ms = round(_ANSWER_SECONDS * 1000)
        more: dict[str, Any] = {
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 5,
            "delivery.timeout.ms": timeout_ms,
            "partitioner": "murmur2_random",
            "queue.buffering.max.kbytes": 2 * _AT_ONCE * _BYTES_MAX // 1024,
            "log_level": 2,
        }
        self._producer = Producer({**own, **more})
        self._topic = topic
        self._stopped = threading.Event()
        self._polling = threading.Thread(target=self._poll, name="http intake", daemon=True)
        self._polling.start()

    def _poll(self) -> None:
        while not self._stopped.is_set():
            self._producer.poll(0.1)

    def write(self, events: Sequence[bytes], key: bytes | None) -> None:
        """Return when all are acknowledged; else NotWritten or TooLarge, and some may be there."""
        left, done, errors = [len(events)], threading.Event(), []
        deadline = time.monotonic() + _ANSWER_SECONDS
        lock = threading.Lock()

        def report(error: Any, _: Any) -> None:
            with lock:
                left[0] -= 1
                if error is not None:
                    errors.append(error)
                if not left[0]:
                    done.set()

        for event in events:
            self._produce(event, key, report, deadline)
        if not done.wait(_ANSWER_SECONDS + 5):
            raise NotWritten("the brokers do not answer")
        too_large = next((each for each in errors if each.code() in _TOO_LARGE), None)
        if too_large is not None:
            raise TooLarge(too_large.str())
        if errors:
            raise NotWritten(errors[0].str())

    def _produce(self, event: bytes, key: bytes | None, report: Callable[..., None], deadline: float) -> None:
        """Many small events fill the client's queue: there is room again when some were acknowledged."""
        while True:
            try:
                self._producer.produce(self._topic, event, key, on_delivery=report)
            except BufferError as full:
                if time.monotonic() > deadline:
                    raise NotWritten(str(full)) from full
                time.sleep(0.01)  # librdkafka tells of acknowledgements, not of room
            except KafkaException as error:
                kind = TooLarge if error.args[0].code() in _TOO_LARGE else NotWritten
                raise kind(str(error)) from error
            else:
                return

    def close(self) -> None:
        self._producer.flush(5)
        self._stopped.set()
        self._polling.join()


class Intake:
    """The endpoint of one source, on threads of its own, until it is closed."""

    def __init__(self, pipeline: model.Pipeline, name: str, source: model.TopicSource) -> None:
        host, port = parse_address(source.http)
        self._writer = Writer(pipeline, source.topic.strip())
        try:
            self._server = _Server((host, port), _handler(self._writer, source.http_token))
        except OSError as error:
            self._writer.close()
            problem = Problem(source.where.of("http"), f"source {name!r} cannot take events at {source.http}: {error}")
            raise PipelineError([problem]) from error
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, name=f"http {name}", daemon=True)
        self._thread.start()
        _log.info("source %s takes events at %s:%d", name, host, self.port)

    def close(self) -> None:
        """Requests in work are answered first."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._writer.close()


def open_intakes(pipeline: model.Pipeline) -> list[Intake]:
    """One for each source that has an address; all or none."""
    opened: list[Intake] = []
    try:
        for name, source in pipeline.sources.items():
            if isinstance(source, model.TopicSource) and source.http:
                opened.append(Intake(pipeline, name, source))
    except BaseException:
        for each in opened:
            each.close()
        raise
    return opened


class _Server(ThreadingHTTPServer):
    """Takes so many connections at a time; others wait in the system's queue, which is short."""

    daemon_threads = False
    block_on_close = True
    request_queue_size = _AT_ONCE

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._places = threading.BoundedSemaphore(_AT_ONCE)
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(timeout=_SILENCE_SECONDS):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.info("a caller at %s went away", client_address[0], exc_info=True)


def _handler(writer: Writer, token: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.0"  # one request a connection: nobody holds a place by saying nothing
        timeout = _SILENCE_SECONDS

        def setup(self) -> None:
            super().setup()
            self.rfile.close()
            self.timely = _Timely(self.connection, time.monotonic() + _REQUEST_SECONDS)
            self.rfile = io.BufferedReader(self.timely)

        def do_POST(self) -> None:  # http.server's name
            authorization = self.headers.get("Authorization", "").encode("latin-1")  # as it was sent
            if token and not hmac.compare_digest(authorization, _bearer(token)):
                self._refuse(401, "send the token: Authorization: Bearer …")
                return
            lengths = {each.strip() for each in self.headers.get_all("Content-Length", [])}
            length = next(iter(lengths), "")
            if len(lengths) > 1:
                self._refuse(400, "Content-Length says two things")
            elif "Transfer-Encoding" in self.headers:
                self._refuse(411, "send Content-Length, and the body as it is: no Transfer-Encoding")
            elif self.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
                self._refuse(415, "send the body as it is: no Content-Encoding")
            elif not length.isascii() or not length.isdecimal() or len(length) > 18:
                self._refuse(411, "send Content-Length")
            elif int(length) > _BYTES_MAX:
                self._refuse(413, f"at most {_BYTES_MAX} bytes a request")
            else:
                body = self.rfile.read(int(length))
                if len(body) == int(length):  # else the caller went away in the middle: half an event is none
                    self._take(body)

        def _take(self, body: bytes) -> None:
            kind = self.headers.get("Content-Type", "").split(";")[0].strip().lower()
            events = [body] if body else []
            if kind == "application/x-ndjson":
                events = [line for line in (each.strip() for each in body.split(b"\n")) if line]
            if not events:
                self._answer(400, {"error": "there is no event in it"})
                return
            # A key is bytes: what is no text comes through as well, and what is not escaped as it was sent.
            query = self.path.partition("?")[2].encode("latin-1").decode(errors="surrogateescape")
            asked = urllib.parse.parse_qs(query, errors="surrogateescape")
            key = asked["key"][0].encode(errors="surrogateescape") if "key" in asked else None
            try:
                writer.write(events, key)
            except TooLarge as error:
                _log.warning("an event by HTTP was not written: %s", error)
                self._answer(413, {"error": "an event is larger than a record may be"})
                return
            except NotWritten as error:
                _log.warning("events by HTTP were not written: %s", error)
                self._answer(503, {"error": "not written: send it again"}, **{"Retry-After": "5"})
                return
            self._answer(200, {"written": len(events)})

        def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
            """What http.server itself does not take, a method or what is no request: sending it again is of no use."""
            self.request_version = "HTTP/1.0"  # of a line that could not be read, it takes the oldest
            if code == 501:
                self._refuse(405, "send events by POST", Allow="POST")
            else:
                self._refuse(code if code < 500 else 400, message or self.responses[code][0])

        def version_string(self) -> str:
            return "moldau"  # Python's version is nobody's business

        def _refuse(self, code: int, error: str, **headers: str) -> None:
            """Answer before the body is read. It is taken in nevertheless, if there is not too much of it: who closes
            a connection with bytes unread takes the answer back."""
            self._answer(code, {"error": error}, **headers)
            self.connection.shutdown(socket.SHUT_WR)
            self.timely.hurry()
            left = _UNREAD_BYTES_MAX
            while left > 0 and (unread := self.rfile.read1(1 << 16)):
                left -= len(unread)

        def _answer(self, code: int, content: dict[str, Any], **headers: str) -> None:
            body = json.dumps(content).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # http.server's name
            """Nobody wants a line for each event."""

    return Handler


class _Timely(io.RawIOBase):
    """What a caller sends, as long as it comes in time: nobody holds a place by sending a byte now and then."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection, self._deadline = connection, deadline

    def hurry(self) -> None:
        """The rest is of no use to anybody: not much time for it."""
        self._deadline = min(self._deadline, time.monotonic() + _UNREAD_SECONDS)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request takes too long")
        self._connection.settimeout(min(left, _SILENCE_SECONDS))
        try:
            return self._connection.recv_into(buffer)
        finally:
            self._connection.settimeout(_SILENCE_SECONDS)


def _bearer(token: str) -> bytes:
    return f"Bearer {token}".encode()
