"""`moldau produce` while nothing comes to be sent: what was delivered is shown, and a broker that goes away is told."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import IO, Any

import pytest

from moldau.cli.record_input import chunks, paced, pieces
from moldau.testing import Broker

SECONDS = 30


@contextmanager
def _producing(broker: Broker, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "moldau", "produce", "lines", "--json", "-b", broker.bootstrap_servers, *options]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, bufsize=0, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def _line(source: IO[bytes] | None) -> str:
    """The next line, or what came of it in half a minute."""
    assert source is not None
    line, end = b"", time.monotonic() + SECONDS
    while not line.endswith(b"\n") and select.select([source], [], [], max(end - time.monotonic(), 0))[0]:
        got = os.read(source.fileno(), 1)
        if not got:
            break
        line += got
    return line.decode()


def _write(process: subprocess.Popen[bytes], text: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(text)


@pytest.mark.parametrize("options", [[], ["--transactional-id", "quiet"], ["--rate", "0.01"]], ids=["", "txn", "rate"])
def test_a_delivery_is_shown_and_an_outage_told_with_standard_input_still_open(options: list[str]) -> None:
    with Broker(topics=["lines"]) as broker, _producing(broker, *options) as process:
        _write(process, b"first\nsecond\n" if "--rate" in options else b"first\n")
        shown = json.loads(_line(process.stdout))
        assert (shown["topic"], shown["offset"]) == ("lines", 0)
        broker.stop()
        told = f"moldau: no broker answers at {broker.bootstrap_servers} any more; trying again\n"
        assert _line(process.stderr) == told


def test_ctrl_c_is_heard_while_nothing_comes() -> None:
    with Broker(topics=["lines"]) as broker, _producing(broker) as process:
        _write(process, b"first\nhalf a li")
        assert json.loads(_line(process.stdout))["offset"] == 0
        process.send_signal(signal.SIGINT)
        assert _line(process.stderr) == "1 record to lines\n"
        assert process.wait(SECONDS) == 130


def test_who_reads_what_was_delivered_may_go() -> None:
    """The next line shows nobody anything: the command ends, as it does when it is busy, and not with a traceback."""
    with Broker(topics=["lines"]) as broker, _producing(broker) as process:
        assert process.stdout is not None
        process.stdout.close()
        _write(process, b"first\n")
        assert process.wait(SECONDS) == 141
        assert _line(process.stderr) == ""


class _Slow(BytesIO):
    """So many bytes at a time, as a pipe gives them."""

    def __init__(self, data: bytes, each: int) -> None:
        super().__init__(data)
        self._each = each

    def read1(self, size: int | None = -1, /) -> bytes:
        return super().read1(self._each)


@pytest.mark.parametrize("each", [1, 2, 3, 5, 100])
@pytest.mark.parametrize(
    ("data", "separator", "expected"),
    [
        (b"", b"\n", []),
        (b"a\n\nbc", b"\n", [b"a", b"", b"bc"]),
        (b"a\r\nb\n", b"\n", [b"a\r", b"b"]),
        (b"one--two---three--", b"--", [b"one", b"two", b"-three"]),
    ],
)
def test_records_are_cut_wherever_reads_end(each: int, data: bytes, separator: bytes, expected: list[bytes]) -> None:
    assert list(pieces(chunks(_Slow(data, each), _nothing), separator)) == expected


def test_a_long_record_is_not_searched_again_for_every_read() -> None:
    """It would take minutes: each of 64 thousand reads would copy what came before."""
    data = b"x" * (64 << 20)
    began = time.process_time()
    assert list(pieces(chunks(_Slow(data, 1 << 10), _nothing), b"\n")) == [data]
    assert time.process_time() - began < 10


def test_between_paced_records_callbacks_are_served() -> None:
    served: list[float] = []
    meanwhile: Callable[[], None] = lambda: served.append(time.monotonic())  # noqa: E731  one line, as a test needs it
    began = time.monotonic()
    assert list(paced("ab", 4, meanwhile)) == ["a", "b"]
    assert time.monotonic() - began >= 0.25
    assert served


def _nothing() -> None:
    pass
