"""`moldau relay`: one process, supervised, that says how it does."""

import asyncio
import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine

from moldau.toolkit import Producer
from moldau.toolkit.db import Outbox
from moldau.toolkit.delays import Delays
from moldau.toolkit.relay import Supervisor
from moldau.toolkit.relay import supervisor as module
from tests.support.broker_process import BrokerProcess, free_port
from tests.toolkit.killing import make_topic
from tests.toolkit.test_delays import values, wait_until

Fresh = Callable[[str], str]


@contextmanager
def relay_process(bootstrap: str, *more: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, and where it tells how it does."""
    command = [sys.executable, "-m", "moldau", "relay", "-b", bootstrap, "--http", "127.0.0.1:0", *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            line = process.stdout.readline()
            found = re.search(r"http://\S+?:\d+", line)
            assert found is not None, line + process.stderr.read()
            yield process, found[0]
        finally:
            process.kill()


def ask(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def health(url: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ask(f"{url}/health")[1])
    return found


def test_a_relay_sends_what_is_due_and_says_how_it_does(bootstrap: str, fresh: Fresh) -> None:
    topic, out = fresh("delays"), fresh("out")
    make_topic(bootstrap, out, 1)
    producer = Producer(bootstrap)
    name = f"delays {topic}"
    with relay_process(bootstrap, "--delays", topic) as (process, url):
        Delays(producer, topic=topic).send(out, "hello", after="10ms").result(30)
        wait_until(lambda: values(bootstrap, out) == ["hello"])
        wait_until(lambda: health(url)["parts"][name]["delivered"] == 1)
        wait_until(lambda: ask(f"{url}/health")[0] == 200)  # every partition was taken over
        wait_until(lambda: health(url)["parts"][name]["partitions"] == [0, 1, 2, 3])
        status, text = ask(f"{url}/metrics?x=1")
        assert status == 200
        assert "moldau_relay_ok " in text
        assert f"moldau_relay_{name.replace(' ', '_').replace('-', '_')}_delivered 1" in text
        assert ask(f"{url}/else")[0] == 404
        process.terminate()
        assert process.wait(30) == 0
    producer.close()


def test_a_relay_waits_for_a_cluster_that_is_not_there_yet(tmp_path: Path, fresh: Fresh) -> None:
    port = free_port()
    bootstrap = f"127.0.0.1:{port}"
    with relay_process(bootstrap) as (process, url):
        assert ask(f"{url}/health")[0] == 503
        assert "moldau_relay_ok 0" in ask(f"{url}/metrics")[1]
        with BrokerProcess(tmp_path / "data", port):
            wait_until(lambda: ask(f"{url}/health")[0] == 200)
            producer = Producer(bootstrap)
            Delays(producer).send("out", "hello", after="10ms").result(30)
            wait_until(lambda: values(bootstrap, "out") == ["hello"])
            producer.close()
            process.terminate()
            assert process.wait(50) == 0


def test_a_relay_empties_outboxes_and_says_what_is_wrong_with_an_address(
    bootstrap: str, fresh: Fresh, tmp_path: Path
) -> None:
    topic = fresh("orders")
    make_topic(bootstrap, topic, 1)
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    outbox, engine = Outbox(url), create_engine(url)
    with relay_process(bootstrap, "--no-delays", "--outbox", url) as (process, place):
        wait_until(lambda: health(place)["ok"])
        with engine.begin() as transaction:
            outbox.send(transaction, topic, "o-1", "billed")
        wait_until(lambda: values(bootstrap, topic) == ["billed"])
        wait_until(lambda: "moldau_relay_outbox_confirmed 1" in ask(f"{place}/metrics")[1])
        process.terminate()
        assert process.wait(50) == 0
    engine.dispose()
    command = [sys.executable, "-m", "moldau", "relay", "--outbox", "nonsense"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 2
    assert "names no database" in done.stderr


def test_nothing_to_relay_is_said() -> None:
    command = [sys.executable, "-m", "moldau", "relay", "--no-delays"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 2
    assert "nothing to relay" in done.stderr


class FakePart:
    """Refuses to start at first, and ends once."""

    name = "fake"
    refusals = 2
    made = 0
    stopped = 0
    ends = 1

    def __init__(self) -> None:
        type(self).made += 1
        self.has_ended = False

    def start(self) -> None:
        if type(self).refusals:
            type(self).refusals -= 1
            raise ConnectionError("the database is away")
        if type(self).ends:
            type(self).ends -= 1
            self.has_ended = True

    async def stop(self) -> None:
        type(self).stopped += 1

    def health(self) -> dict[str, Any]:
        return {"ok": not self.has_ended, "has_ended": self.has_ended, "number": 7}


def test_a_part_that_does_not_start_or_ends_is_started_again(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "_AGAIN_S_FIRST", 0.001)
    monkeypatch.setattr(module, "_LOOK_S", 0.001)

    async def main() -> None:
        supervisor, stopping = Supervisor([FakePart]), asyncio.Event()
        assert supervisor.health()["ok"] is False
        running = asyncio.create_task(supervisor.run(stopping))
        deadline = time.monotonic() + 30
        while not supervisor.health()["ok"]:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.001)
        assert supervisor.health()["parts"]["fake"]["starts"] == 4
        assert "moldau_relay_fake_number 7" in supervisor.metrics()
        stopping.set()
        await running

    asyncio.run(main())
    assert FakePart.made == 4
    assert FakePart.stopped == 2  # the one that ended, and the last
