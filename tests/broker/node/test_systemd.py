"""What systemd is told: by the protocol's words, on a socket of ours, and by `moldau serve` itself."""

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.broker.node.systemd import Notifier
from tests.support.broker_process import free_port, read_ready, spawn_serve


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(20)
        yield sock


def test_nobody_asked() -> None:
    notifier = Notifier({})
    assert not notifier.is_wanted
    notifier.tell("READY=1")
    assert notifier.watchdog_seconds == 0


def test_nobody_listens_any_more(tmp_path: Path) -> None:
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).tell("READY=1")


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="names in no folder are Linux's")
def test_a_name_that_is_in_no_folder() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"\0moldau-test-{os.getpid()}")
        Notifier({"NOTIFY_SOCKET": f"@moldau-test-{os.getpid()}"}).tell("READY=1", "STATUS=here")
        assert sock.recv(100) == b"READY=1\nSTATUS=here"


def test_the_watchdog_of_another_process_is_not_ours() -> None:
    environment = {"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "7"}
    assert Notifier(environment, 7).watchdog_seconds == 2
    assert Notifier(environment, 8).watchdog_seconds == 0


def test_signs_of_life_and_patience(heard: socket.socket) -> None:
    environment = {"NOTIFY_SOCKET": heard.getsockname(), "WATCHDOG_USEC": "20000"}

    async def run() -> None:
        notifier = Notifier(environment)
        tasks = [
            asyncio.create_task(notifier.while_serving()),
            asyncio.create_task(notifier.while_starting(lambda: "recovering")),
        ]
        said = [await asyncio.to_thread(heard.recv, 200) for _ in range(4)]
        for task in tasks:
            task.cancel()
        assert said.count(b"WATCHDOG=1") >= 2
        assert b"STATUS=recovering\nEXTEND_TIMEOUT_USEC=60000000" in said

    asyncio.run(run())


def test_serve_says_when_it_is_ready_and_when_it_stops(
    heard: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", heard.getsockname())
    process = spawn_serve("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "data"))
    read_ready(process)
    said: list[bytes] = []
    while not said or not said[-1].startswith(b"READY=1"):
        said.append(heard.recv(1000))
    assert said[0].startswith(b"STATUS=")
    assert b"STATUS=moldau " in said[-1]
    process.terminate()
    process.communicate(timeout=40)
    assert heard.recv(1000) == b"STOPPING=1"


def test_serve_that_waits_for_a_quorum_says_that_it_stops(
    heard: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", heard.getsockname())
    config, port = tmp_path / "server.properties", free_port()
    config.write_text(
        "node.id=1\nprocess.roles=broker,controller\ncontroller.listener.names=CONTROLLER\n"
        f"listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{port}\n"
        f"controller.quorum.voters=1@127.0.0.1:{port},2@127.0.0.1:1,3@127.0.0.1:1\nlog.dirs={tmp_path / 'data'}\n"
    )
    process = spawn_serve("--config", str(config))
    assert heard.recv(1000).startswith(b"STATUS=")
    process.terminate()
    process.communicate(timeout=40)
    while (said := heard.recv(1000)).startswith(b"STATUS="):
        pass
    assert said == b"STOPPING=1"
