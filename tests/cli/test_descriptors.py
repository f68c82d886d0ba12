"""More connections than `ulimit -n` allows: files come first, and nothing is taken for a dead disk."""

import contextlib
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

from moldau.wire import ErrorCode
from moldau.wire import messages as m
from tests.broker.requests.handlers.wire_client import WireClient
from tests.support.broker_process import read_ready
from tests.support.clients import read_all

SECONDS = 40
LIMIT = 256


def open_descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def test_idle_connections_leave_descriptors_for_files(tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT))

    command = [sys.executable, "-m", "moldau", "serve", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "data")]
    settings = ("--set=group.initial.rebalance.delay.ms=0", "--set=log.segment.bytes=1048576")
    process = subprocess.Popen(
        [*command, *settings], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=limit
    )
    idle: list[socket.socket] = []
    try:
        host, _, port = read_ready(process).rpartition(":")
        address = f"{host}:{port}"
        with WireClient(address) as client:  # connected before the others come
            kept = client.new_topic()
            for _ in range(2 * LIMIT):  # those that are not accepted wait in the backlog
                sock = socket.socket()
                sock.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    sock.connect((host, int(port)))
                idle.append(sock)
            client.ask(m.ApiVersionsRequest())
            topics = [client.new_topic(4) for _ in range(8)]
            for topic in (kept, *topics):
                assert client.produce(topic, [b"x"]).error_code == ErrorCode.NONE
                assert client.latest(topic).offset == 1
            assert open_descriptors(process.pid) < LIMIT
        for sock in idle:
            sock.close()
        assert len(read_all(address, kept)) == 1
        process.terminate()
        _, said = process.communicate(timeout=SECONDS)
        assert process.returncode == 0
        assert "offline" not in said
        assert said.count("raise the limit on open files") == 1, said
    finally:
        for sock in idle:
            sock.close()
        process.kill()
        process.communicate(timeout=SECONDS)
