"""`moldau serve` as a process of its own: started, asked to stop, or killed in the middle of whatever it does."""

import contextlib
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

from moldau.testing.ports import free_ports

READY_SECONDS_MAX = 40.0
# As in `moldau.testing`: a new group reads at once, and few coordinator partitions are opened.
QUICK = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
}


class BrokerProcess:
    """Keeps its port and its data folder over `start` and `kill` or `stop`."""

    def __init__(self, data_dir: Path, port: int = 0, **settings: str) -> None:
        """Settings like `log_segment_bytes="1048576"`."""
        self.data_dir = data_dir
        self.port = port
        self._settings = QUICK | {key.replace("_", "."): value for key, value in settings.items()}
        self.process: subprocess.Popen[str]

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> Self:
        """Return when it is ready."""
        self.process = spawn_serve(
            "--listen",
            f"127.0.0.1:{self.port}",
            "--data-dir",
            str(self.data_dir),
            *(f"--set={key}={value}" for key, value in self._settings.items()),
        )
        self.port = int(read_ready(self.process).rpartition(":")[2])
        return self

    def kill(self) -> None:
        """As a crash does: nothing is written, no one is told."""
        self.process.kill()
        self.wait()

    def stop(self) -> int:
        """SIGTERM, and its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        with contextlib.suppress(ValueError):
            self.process.communicate(timeout=READY_SECONDS_MAX)
        return self.process.returncode

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()
        else:
            self.wait()


def spawn_serve(
    *arguments: str, cwd: Path | None = None, stderr: int = subprocess.PIPE, module: str = "moldau"
) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", module, "serve", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=cwd)


def read_ready(process: subprocess.Popen[str]) -> str:
    """HOST:PORT of the ready line; if there is none, what it said instead."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        came = selector.select(READY_SECONDS_MAX)
    line = process.stdout.readline() if came else ""
    word, _, address = line.strip().partition(" ")
    if word != "ready":
        process.kill()
        said = process.communicate()
        raise AssertionError(f"the broker did not get ready: {line!r} {said}")
    return address


def free_port() -> int:
    """A port that was free just now."""
    return free_ports(1)[0]


def resident_bytes(pid: int) -> int:
    """Memory of a process now."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def eventually_refuses(port: int, seconds: float = 10.0) -> bool:
    """Whether nobody accepts connections there any more."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except ConnectionRefusedError:
            return True
        time.sleep(0.01)
    return False
