"""The small HTTP server: what it answers, and what it does not put up with."""

import asyncio
import contextlib
import socket
from collections.abc import Mapping
from http import HTTPStatus

import pytest

from moldau.metrics import http
from moldau.metrics.http import HttpAnswer, HttpEndpoint


async def hello(headers: Mapping[str, str]) -> HttpAnswer:
    return HttpAnswer(f"hello {headers.get('x-name', 'nobody')}\n".encode())


async def broken(headers: Mapping[str, str]) -> HttpAnswer:
    raise RuntimeError("on purpose")


async def ask(endpoint: HttpEndpoint, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
    writer.write(request)
    try:
        return await asyncio.wait_for(reader.read(), 10)
    except ConnectionError:  # closed while we were sending
        return b""
    finally:
        await close(writer)


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def play(*requests: bytes) -> list[bytes]:
    async def run() -> list[bytes]:
        endpoint = HttpEndpoint({"/hello": hello, "/broken": broken})
        await endpoint.start("127.0.0.1", 0)
        try:
            return [await ask(endpoint, each) for each in requests]
        finally:
            await endpoint.stop()

    return asyncio.run(run())


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def test_answers() -> None:
    got, head, query = play(
        b"GET /hello HTTP/1.1\r\nX-Name: you\r\n\r\n",
        b"HEAD /hello HTTP/1.1\r\n\r\n",
        b"GET /hello?x=1 HTTP/1.0\r\n\r\n",
    )
    assert got.endswith(b"\r\n\r\nhello you\n")
    assert b"Content-Length: 10\r\n" in got
    assert head.endswith(b"\r\n\r\n")
    assert b"Content-Length: 13\r\n" in head
    assert query.endswith(b"hello nobody\n")


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (b"GET /elsewhere HTTP/1.1\r\n\r\n", HTTPStatus.NOT_FOUND),
        (b"POST /hello HTTP/1.1\r\n\r\n", HTTPStatus.METHOD_NOT_ALLOWED),
        (b"GET /broken HTTP/1.1\r\n\r\n", HTTPStatus.INTERNAL_SERVER_ERROR),
        (b"\x00\x00\x00\x0dnot http at all\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET /hello\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET /hello SPDY/3\r\n\r\n", HTTPStatus.BAD_REQUEST),
    ],
)
def test_refusals(request_: bytes, expected: HTTPStatus, caplog: pytest.LogCaptureFixture) -> None:
    (answer,) = play(request_)
    assert status(answer) == expected


def test_too_long_a_request_is_not_read_to_its_end() -> None:
    (answer,) = play(b"GET /hello HTTP/1.1\r\nX: " + b"x" * 100_000)
    assert answer == b""


def test_who_says_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_REQUEST_SECONDS_MAX", 0.05)
    assert play(b"GET /hel", b"") == [b"", b""]


def test_not_more_than_so_many_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_CONNECTIONS_MAX", 2)

    async def run() -> tuple[bytes, list[bytes], bytes]:
        asked, go_on = asyncio.Semaphore(0), asyncio.Event()

        async def slow(headers: Mapping[str, str]) -> HttpAnswer:
            asked.release()
            await go_on.wait()
            return await hello(headers)

        endpoint = HttpEndpoint({"/hello": hello, "/slow": slow})
        await endpoint.start("127.0.0.1", 0)
        held = [asyncio.ensure_future(ask(endpoint, b"GET /slow HTTP/1.1\r\n\r\n")) for _ in range(2)]
        for _ in held:
            await asked.acquire()
        refused = await ask(endpoint, b"GET /hello HTTP/1.1\r\n\r\n")
        go_on.set()
        served = await asyncio.gather(*held)
        answer = b""
        while not answer:  # until the server has seen that they left
            answer = await ask(endpoint, b"GET /hello HTTP/1.1\r\n\r\n")
        await endpoint.stop()
        return refused, served, answer

    refused, served, answer = asyncio.run(run())
    assert refused == b""
    assert [status(each) for each in (*served, answer)] == [HTTPStatus.OK] * 3


def test_who_only_holds_a_place_makes_room_for_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_CONNECTIONS_MAX", 2)
    monkeypatch.setattr(http, "_REQUEST_SECONDS_MAX", 60.0)

    async def run() -> list[bytes]:
        endpoint = HttpEndpoint({"/hello": hello})
        await endpoint.start("127.0.0.1", 0)
        held = [await asyncio.open_connection(endpoint.host, endpoint.port) for _ in range(5)]
        answers = [await ask(endpoint, b"GET /hello HTTP/1.1\r\n\r\n") for _ in range(3)]
        for _, writer in held:
            await close(writer)
        await endpoint.stop()
        return answers

    assert [status(each) for each in asyncio.run(run())] == [HTTPStatus.OK] * 3


async def large(headers: Mapping[str, str]) -> HttpAnswer:
    return HttpAnswer(bytes(16 * 1024 * 1024))


def test_who_does_not_read_his_answer_keeps_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_CONNECTIONS_MAX", 1)
    monkeypatch.setattr(http, "_ANSWER_SECONDS_MAX", 0.1)
    monkeypatch.setattr(http, "_FLUSH_SECONDS_MAX", 0.1)

    async def run() -> bytes:
        endpoint = HttpEndpoint({"/hello": hello, "/large": large})
        await endpoint.start("127.0.0.1", 0)
        with socket.create_connection((endpoint.host, endpoint.port)) as lazy:
            lazy.sendall(b"GET /large HTTP/1.1\r\n\r\n")
            assert await asyncio.to_thread(lazy.recv, 1)  # he has his place
            answer = b""
            async with asyncio.timeout(10):
                while not answer:
                    answer = await ask(endpoint, b"GET /hello HTTP/1.1\r\n\r\n")
        await endpoint.stop()
        return answer

    assert status(asyncio.run(run())) == HTTPStatus.OK


def test_a_port_that_is_taken_is_named() -> None:
    async def run() -> None:
        first, second = HttpEndpoint({}), HttpEndpoint({})
        await first.start("127.0.0.1", 0)
        try:
            with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{first.port} for HTTP"):
                await second.start("127.0.0.1", first.port)
        finally:
            await first.stop()

    asyncio.run(run())
