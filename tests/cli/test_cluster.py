"""`moldau cluster` as people run it: three processes, one ready line, one end."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from moldau.cli.cluster_control import ask
from moldau.cli.cluster_folder import with_own_http_port
from tests.cli.running import Command
from tests.cluster.workload import create_topic
from tests.support.broker_process import QUICK, eventually_refuses, read_ready
from tests.support.clients import CONFLUENT, Sent, read_all, wait_for

SECONDS = 50
_chance = random.SystemRandom()  # not that of the tests, which is the same in all their processes


def free_ports() -> int:
    """A first port with room for three nodes and their controllers, not among those that systems hand out."""
    while True:
        first = _chance.randrange(12_000, 30_000)
        if all(eventually_refuses(first + more, 1) for more in (0, 1, 2, 20, 21, 100, 101, 102)):
            return first


def spawn_cluster(data_dir: Path, base_port: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "moldau", "cluster", "--data-dir", str(data_dir), "--base-port", str(base_port)]
    command += [f"--set={key}={value}" for key, value in (QUICK | {"broker.session.timeout.ms": "3000"}).items()]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def nodes_of(process: subprocess.Popen[str]) -> list[int]:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(each) for each in children]


def status_of(data_dir: Path) -> list[dict[str, object]]:
    nodes: list[dict[str, object]] = ask(data_dir, {"do": "status"})["nodes"]
    return nodes


def end(process: subprocess.Popen[str], how: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
    process.send_signal(how)
    _, said = process.communicate(timeout=SECONDS)
    return process.returncode, said


def test_three_processes_serve_survive_one_and_stop_together(tmp_path: Path) -> None:
    base_port = free_ports()
    process = spawn_cluster(tmp_path, base_port)
    try:
        servers = read_ready(process)
        assert servers == ",".join(f"127.0.0.1:{base_port + place}" for place in range(3))
        topic = "kept"
        create_topic(servers, topic, 1)
        CONFLUENT.send(servers, topic, [Sent(b"%d" % number) for number in range(100)], "none")
        nodes = nodes_of(process)
        assert len(nodes) == 3
        os.kill(nodes[0], signal.SIGKILL)
        wait_for(
            lambda: status_of(tmp_path)[0]["restarts"] == 1 and status_of(tmp_path)[0]["state"] == "online", "node 1"
        )
        CONFLUENT.send(servers, topic, [Sent(b"%d" % number) for number in range(100, 200)], "none")
        status, said = end(process)
        assert status == 0
        assert "node 1 ended by signal 9; starting it again now" in said
        assert "Traceback" not in said
        assert all(eventually_refuses(base_port + place) for place in range(3))
        process = spawn_cluster(tmp_path, base_port)
        servers = read_ready(process)
        assert sorted(int(each.value() or b"") for each in read_all(servers, topic)) == list(range(200))
        nodes = nodes_of(process)
        process.kill()  # without a chance to tell its nodes
        process.communicate()
        deadline = time.monotonic() + SECONDS
        while any(Path(f"/proc/{node}").exists() for node in nodes):
            assert time.monotonic() < deadline, "nodes outlive whoever started them"
            time.sleep(0.05)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def test_a_wrong_setting_is_refused_before_anything_starts(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "moldau", "cluster", "--data-dir", str(tmp_path), "--set", "num.partitions=none"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 2
    assert "num.partitions" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("listener", ["65534", "localhost", "0.0.0.0:65534", "[::1]:99999"])
def test_metrics_need_a_port_for_every_node(tmp_path: Path, listener: str) -> None:
    command = [sys.executable, "-m", "moldau", "cluster", "--data-dir", str(tmp_path), "--metrics", listener]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 2
    assert "moldau.http.listener" in done.stderr
    assert "Traceback" not in done.stderr


def test_every_node_has_a_port_for_metrics() -> None:
    """With one port for all of them, only the first node would start."""

    def for_third(listener: str) -> str:
        return with_own_http_port({"moldau.http.listener": listener}, 3)["moldau.http.listener"]

    assert for_third("9404") == "127.0.0.1:9406"
    assert for_third("0.0.0.0:9404") == "0.0.0.0:9406"
    assert for_third("[::]:9404") == "[::]:9406"
    assert for_third("0") == "0"
    assert with_own_http_port({"a": "b"}, 3) == {"a": "b"}


def test_another_number_of_nodes_is_refused_where_a_cluster_is(tmp_path: Path) -> None:
    """Its voters are fixed: with others, what is committed could be lost."""
    for number in (1, 2, 3):
        (tmp_path / f"node-{number}").mkdir()
        (tmp_path / f"node-{number}.properties").write_text("as it was")
    command = [sys.executable, "-m", "moldau", "cluster", "--data-dir", str(tmp_path), "--nodes", "4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 2
    assert "holds a cluster of 3 nodes" in done.stderr
    assert "--nodes 3" in done.stderr
    assert (tmp_path / "node-1.properties").read_text() == "as it was"


def test_a_running_cluster_is_changed(tmp_path: Path) -> None:
    """One voter, one more broker, a restart one by one, a node that dies, and the broker's way out."""
    base_port = free_ports()
    folder = tmp_path / ("long" * 20)  # a path no socket could have
    folder.mkdir()
    command = [sys.executable, "-m", "moldau", "cluster", "start", "-n", "1", "-d", str(folder), "-p", str(base_port)]
    command += ["--metrics", str(base_port + 20)]
    command += [f"--set={key}={value}" for key, value in QUICK.items()]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        servers = read_ready(process)
        moldau = Command(servers, str(tmp_path))
        at = ("-d", str(folder))
        assert "is running already" in moldau.refused(1, "cluster", "start", *at)
        assert moldau.ok("cluster", "add", *at).out == f"node 2 serves at 127.0.0.1:{base_port + 1}\n"
        rows = moldau.ok("cluster", "status", *at, "--json").json
        assert [(row["node"], row["roles"], row["state"]) for row in rows] == [
            (1, "voter, broker", "online"),
            (2, "broker", "online"),
        ]
        for port in (base_port + 20, base_port + 21):  # the one that was added has its own
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=SECONDS) as answer:
                assert answer.read() == b"ok\n"
        moldau.ok("topic", "create", "t", "--replica-assignment", "2,1")
        CONFLUENT.send(servers, "t", [Sent(b"%d" % number) for number in range(50)], "none")
        assert moldau.ok("cluster", "restart", "2", *at).out == "restarted node 2\n"
        killed = int(status_of(folder)[1]["pid"])  # type: ignore[call-overload]  # a number, it is online
        os.kill(killed, signal.SIGKILL)
        ended = moldau.ok("cluster", "heal", *at)
        assert ended.lines[-1] == "all replicas are in sync"
        wait_for(lambda: status_of(folder)[1]["pid"] not in (None, killed), "node 2")
        wait_for(lambda: status_of(folder)[1]["state"] == "online", "node 2")
        os.kill(int(status_of(folder)[1]["pid"]), signal.SIGSTOP)  # type: ignore[call-overload]  # likewise
        states = [row["state"] for row in moldau.ok("cluster", "status", *at, "--json").json]
        assert states == ["online", "hangs"]
        ended = moldau.ok("cluster", "heal", *at)
        assert (ended.lines[0], ended.lines[-1]) == ("restarted node 2, which hung", "all replicas are in sync")
        assert "voter" in moldau.refused(1, "cluster", "remove", "1", *at)
        moldau.refused(4, "cluster", "remove", "7", *at)
        moldau.refused(4, "cluster", "restart", "7", *at)
        removed = moldau.ok("cluster", "remove", "2", *at).lines
        assert removed[-2] == "unregistered 2"
        assert [row["id"] for row in moldau.ok("broker", "list", "--json").json["brokers"]] == [1]
        assert len(read_all(servers, "t", 2)) == 50
        pids = [int(row["pid"]) for row in status_of(folder)]  # type: ignore[call-overload]  # they are online
        assert moldau.ok("cluster", "stop", *at).out == "stopped\n"
        for pid in pids:  # it may be started again at once
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
        assert process.wait(SECONDS) == 0
        assert [row["state"] for row in moldau.ok("cluster", "status", *at, "--json").json] == ["stopped"]
        assert "no `moldau cluster` runs" in moldau.refused(1, "cluster", "heal", *at)
        moldau.refused(4, "cluster", "status", "-d", str(tmp_path / "none"))
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
