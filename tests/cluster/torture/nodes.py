"""Nodes as processes behind proxies: killed, frozen, cut off, and started again on what they left behind."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from moldau.broker.config.cluster import NodePorts, cluster_settings
from tests.support.broker_process import free_port, read_ready, spawn_serve
from tests.support.link_proxy import Links

QUICK = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "3000",
    "replica.lag.time.max.ms": "5000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}


class Nodes:
    """Numbered from 1."""

    def __init__(self, count: int, data_dir: Path, settings: Mapping[str, str] | None = None) -> None:
        self.links = Links()
        self._processes: dict[int, subprocess.Popen[str]] = {}
        self._data_dir = data_dir
        bound = [NodePorts(free_port(), free_port()) for _ in range(count)]
        self.shown = [
            NodePorts(self.links.add(number, each.broker), self.links.add(number, each.controller))
            for number, each in enumerate(bound, start=1)
        ]
        data_dir.mkdir(parents=True, exist_ok=True)
        for number, each in enumerate(cluster_settings("127.0.0.1", self.shown, str(data_dir)), start=1):
            ports = bound[number - 1]
            complete = each | QUICK | dict(settings or {})
            complete["advertised.listeners"] = f"PLAINTEXT://127.0.0.1:{self.shown[number - 1].broker}"
            complete["listeners"] = f"PLAINTEXT://127.0.0.1:{ports.broker},CONTROLLER://127.0.0.1:{ports.controller}"
            text = "".join(f"{key}={value}\n" for key, value in complete.items())
            self._file(number).write_text(text)
        self.count = count

    def _file(self, number: int) -> Path:
        return self._data_dir / f"node-{number}.properties"

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"127.0.0.1:{each.broker}" for each in self.shown)

    def pid(self, number: int) -> int:
        return self._processes[number].pid

    def spawn(self, number: int) -> None:
        errors = (self._data_dir / f"node-{number}.log").open("a")
        with errors:
            process = spawn_serve("--config", str(self._file(number)), stderr=errors.fileno())
        self._processes[number] = process

    def wait_ready(self, number: int) -> None:
        read_ready(self._processes[number])

    def start_all(self) -> None:
        for number in range(1, self.count + 1):
            self.spawn(number)
        for number in range(1, self.count + 1):
            self.wait_ready(number)

    def kill(self, number: int) -> None:
        process = self._processes.pop(number)
        process.kill()
        process.communicate()

    def freeze(self, number: int) -> None:
        self._processes[number].send_signal(signal.SIGSTOP)

    def thaw(self, number: int) -> None:
        self._processes[number].send_signal(signal.SIGCONT)

    def stop(self, number: int) -> int:
        process = self._processes.pop(number)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        return process.returncode

    @property
    def running(self) -> list[int]:
        return sorted(self._processes)

    def said(self) -> str:
        """What all nodes wrote to their logs."""
        return "".join((self._data_dir / f"node-{number}.log").read_text() for number in range(1, self.count + 1))

    def close(self) -> None:
        for number in self.running:
            with contextlib.suppress(OSError):
                self.thaw(number)
            self.kill(number)
        self.links.close()
