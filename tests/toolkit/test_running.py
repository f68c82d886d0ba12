"""Apps as processes: signals, reloading; and lag that is watched, with its alerts."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from moldau.toolkit import Producer
from moldau.toolkit.lag import PartitionLag, webhook_alert
from tests.toolkit.killing import make_topic
from tests.toolkit.test_app import committed
from tests.toolkit.waiting import wait_for

Fresh = Callable[[str], str]


def source(group: str, topic: str, journal: Path, body: str) -> str:
    return f"""
import asyncio, time
from moldau.toolkit import App

app = App({group!r}, auto_offset_reset="earliest", stop_within="1h")


def note(text: str) -> None:
    with open({str(journal)!r}, "a") as out:
        out.write(text + "\\n")


@app.handler({topic!r}, order="none", workers=4)
{body}
"""


@contextmanager
def process(arguments: list[str], cwd: Path) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "moldau", *arguments]
    log = cwd / "process.log"
    with log.open("w") as out:
        found = subprocess.Popen(command, cwd=cwd, stdout=out, stderr=out, text=True, start_new_session=True)
        try:
            yield found
        finally:
            with suppress(ProcessLookupError):
                os.killpg(found.pid, signal.SIGKILL)
            found.wait()


def send(bootstrap: str, topic: str, *values: str) -> None:
    producer = Producer(bootstrap)
    for value in values:
        producer.send(topic, value)
    producer.close()


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_ctrl_c_waits_for_handlers_and_a_second_one_does_not(bootstrap: str, fresh: Fresh, tmp_path: Path) -> None:
    topic, group, journal = fresh("orders"), fresh("group"), tmp_path / "journal"
    make_topic(bootstrap, topic, 1)
    body = """async def handle(value: str) -> None:
    note(value)
    if value == "hangs":
        await asyncio.Event().wait()
"""
    (tmp_path / "billing.py").write_text(source(group, topic, journal, body))
    with process(["app", "run", "billing:app", "-b", bootstrap], tmp_path) as running:
        send(bootstrap, topic, "first", "hangs", "third")
        wait_for(lambda: sorted(lines(journal)) == ["first", "hangs", "third"])
        os.kill(running.pid, signal.SIGINT)
        wait_for(lambda: "once more to hurry" in (tmp_path / "process.log").read_text())
        send(bootstrap, topic, "too late")
        assert running.poll() is None, "a handler is still at work: stop_within is an hour"
        os.kill(running.pid, signal.SIGINT)
        assert running.wait(50) == 0, (tmp_path / "process.log").read_text()
    assert sorted(lines(journal)) == ["first", "hangs", "third"], "nothing was started after the first Ctrl-C"
    assert committed(bootstrap, group, topic)[0] == 1, "what was cancelled is not committed, nor passed"


def test_one_ctrl_c_lets_handlers_end(bootstrap: str, fresh: Fresh, tmp_path: Path) -> None:
    topic, group, journal = fresh("orders"), fresh("group"), tmp_path / "journal"
    make_topic(bootstrap, topic, 1)
    body = f"""async def handle(value: str) -> None:
    note("began")
    while not __import__("os").path.exists({str(tmp_path / "go")!r}):
        await asyncio.sleep(0.01)
    note("ended")
"""
    (tmp_path / "billing.py").write_text(source(group, topic, journal, body))
    with process(["app", "run", "billing:app", "-b", bootstrap], tmp_path) as running:
        send(bootstrap, topic, "x")
        wait_for(lambda: lines(journal) == ["began"])
        os.kill(running.pid, signal.SIGINT)
        wait_for(lambda: "once more to hurry" in (tmp_path / "process.log").read_text())
        (tmp_path / "go").touch()
        assert running.wait(50) == 0
    assert lines(journal) == ["began", "ended"]
    assert committed(bootstrap, group, topic)[0] == 1


@pytest.mark.timeout(120)
def test_reload_runs_the_new_code(bootstrap: str, fresh: Fresh, tmp_path: Path) -> None:
    topic, group, journal = fresh("orders"), fresh("group"), tmp_path / "journal"
    make_topic(bootstrap, topic, 1)
    code = tmp_path / "billing.py"

    def write(version: str) -> None:
        body = f"async def handle(value: str) -> None:\n    note('{version} ' + value)\n"
        new = tmp_path / "billing.new"
        new.write_text(version if version == "broken(" else source(group, topic, journal, body))
        new.replace(code)

    write("old")
    with process(["app", "run", "billing:app", "-b", bootstrap, "--reload"], tmp_path) as running:
        send(bootstrap, topic, "1")
        wait_for(lambda: lines(journal) == ["old 1"])
        write("broken(")
        wait_for(lambda: "waiting for a change" in (tmp_path / "process.log").read_text())
        write("new")
        send(bootstrap, topic, "2")
        wait_for(lambda: lines(journal) == ["old 1", "new 2"])
        os.kill(running.pid, signal.SIGTERM)
        assert running.wait(50) == 0, (tmp_path / "process.log").read_text()


class _Hook(BaseHTTPRequestHandler):
    server: "_Server"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.headers["Content-Type"], json.loads(body)))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  its name in the base
        """Quiet."""


class _Server(HTTPServer):
    got: list[tuple[str, Any]]


@pytest.fixture
def webhook() -> Iterator[_Server]:
    server = _Server(("127.0.0.1", 0), _Hook)
    server.got = []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_webhook_is_told(webhook: _Server) -> None:
    state = PartitionLag("billing", "orders", 0, 5, 9, 4, 1.5, 0.0, 1, "stalled")
    webhook_alert(f"http://127.0.0.1:{webhook.server_port}/hook")(state, "ok")
    ((kind, told),) = webhook.got
    assert kind == "application/json"
    assert (told["group"], told["lag"], told["judgement"], told["before"]) == ("billing", 4, "stalled", "ok")
    with pytest.raises(ValueError, match="no address"):
        webhook_alert("file:///etc/passwd")


@pytest.mark.timeout(120)
def test_lag_is_watched_and_alerts_once(bootstrap: str, fresh: Fresh, tmp_path: Path, webhook: _Server) -> None:
    """A group that stands still is found stopped, and its webhook called once; it goes on until Ctrl-C."""
    from confluent_kafka import Consumer, TopicPartition

    topic, group = fresh("orders"), fresh("group")
    make_topic(bootstrap, topic, 1)
    send(bootstrap, topic, "1", "2", "3")
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    consumer.close()
    address = f"http://127.0.0.1:{webhook.server_port}/"
    arguments = ["lag", group, "--watch", "--every", "0.1", "--alert-webhook", address, "-b", bootstrap]
    with process(arguments, tmp_path) as running:
        shown = tmp_path / "process.log"
        wait_for(lambda: shown.read_text().count("stopped") >= 3)
        assert [(told["judgement"], told["before"], told["lag"]) for _, told in webhook.got] == [("stopped", "ok", 2)]
        os.kill(running.pid, signal.SIGINT)
        assert running.wait(50) == 0, shown.read_text()
    assert "Traceback" not in shown.read_text()
