"""`moldau serve` as people run it: ready line, signals, refusals with a way out, and what a restart keeps."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess, eventually_refuses, free_port, read_ready, spawn_serve
from tests.support.clients import CONFLUENT, Sent, admin, create_topic, read_all

SECONDS = 40
MARKER = ".kafka_cleanshutdown"


def serve_and_fail(*arguments: str, cwd: Path) -> tuple[int, str]:
    """Exit code and standard error of a broker that must not start."""
    command = [sys.executable, "-m", "moldau", "serve", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, cwd=cwd, check=False)
    assert "ready" not in done.stdout
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def test_sigterm_is_a_clean_end_and_the_data_stays(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        address = broker.bootstrap_servers
        topic = create_topic(address, "kept")
        CONFLUENT.send(address, topic, [Sent(b"%d" % n) for n in range(100)], "lz4")
        assert broker.stop() == 0
        assert (broker.data_dir / MARKER).exists()
        assert eventually_refuses(broker.port)
        broker.start()
        assert not (broker.data_dir / MARKER).exists(), "from the start on it would be a lie"
        assert [message.value() for message in read_all(address, topic)] == [b"%d" % n for n in range(100)]
        broker.process.send_signal(signal.SIGINT)
        assert broker.wait() == 0


def test_after_kill_9_everything_acknowledged_is_there(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        address = broker.bootstrap_servers
        topic = create_topic(address, "survivor")
        CONFLUENT.send(address, topic, [Sent(b"%d" % n) for n in range(1_000)], "none")
        broker.kill()
        assert not (broker.data_dir / MARKER).exists()
        broker.start()
        assert [message.value() for message in read_all(address, topic)] == [b"%d" % n for n in range(1_000)]


def test_a_second_sigterm_ends_it_at_once(tmp_path: Path) -> None:
    """A long poll is waiting and a transfer is under way: the second signal does not wait for them."""
    with BrokerProcess(tmp_path / "data") as broker:
        broker.process.send_signal(signal.SIGSTOP)  # both signals are there when it wakes up
        broker.process.send_signal(signal.SIGTERM)
        broker.process.send_signal(signal.SIGINT)
        broker.process.send_signal(signal.SIGCONT)
        assert broker.wait() == 1
        assert not (broker.data_dir / MARKER).exists()
        broker.start()
        assert broker.stop() == 0


def test_the_ready_line_is_the_only_standard_output(tmp_path: Path) -> None:
    process = spawn_serve("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "data"))
    host, _, port = read_ready(process).rpartition(":")
    assert host == "127.0.0.1"
    assert int(port) > 0
    process.terminate()
    said, complained = process.communicate(timeout=SECONDS)
    assert (said, process.returncode) == ("", 0)
    assert len(complained.splitlines()) == 1, "the introduction, and no complaint"


def test_a_config_file_with_settings_on_top(tmp_path: Path) -> None:
    port, controller = free_port(), free_port()
    data = tmp_path / "from-file"
    file = tmp_path / "server.properties"
    file.write_text(
        "# Kafka's own format\n"
        "process.roles=broker,controller\n"
        "node.id = 7\n"
        f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n"
        f"controller.quorum.voters=7@127.0.0.1:{controller}\n"
        "controller.listener.names=CONTROLLER\n"
        f"log.dirs={data}\n"
        "num.partitions:2\n"
        "compression.type=\\\n   gzip\n"
    )
    process = spawn_serve("--config", str(file), "--set", "num.partitions=5", cwd=tmp_path)
    try:
        address = read_ready(process)
        assert address == f"127.0.0.1:{port}"
        client = admin(address)
        cluster = client.list_topics(timeout=20)
        assert list(cluster.brokers) == [7]
        topic = create_topic(address, "defaults", -1)
        assert len(client.list_topics(timeout=20).topics[topic].partitions) == 5
        assert (data / f"{topic}-4").is_dir()
    finally:
        process.terminate()
        process.communicate(timeout=SECONDS)
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("num.partitions=many", ["num.partitions", "many"]),
        ("num.partitions=0", ["num.partitions", "0", "1"]),
        ("no.such.setting=1", ["no.such.setting"]),
        ("log.cleanup.policy=shred", ["log.cleanup.policy", "shred", "compact", "delete"]),
        ("compression.type=rar", ["compression.type", "rar", "gzip", "zstd"]),
        ("node.id=-2", ["node.id", "-2"]),
        ("listeners=nonsense", ["listeners", "nonsense"]),
        ("nothing", ["nothing", "="]),
    ],
)
def test_impossible_settings_are_refused_with_what_is_possible(tmp_path: Path, setting: str, words: list[str]) -> None:
    code, said = serve_and_fail("--listen", "127.0.0.1:0", "--set", setting, cwd=tmp_path)
    assert code == 2
    for word in words:
        assert word in said
    assert not (tmp_path / "moldau-data").exists()


def test_bad_arguments_are_refused(tmp_path: Path) -> None:
    code, said = serve_and_fail("--config", "missing.properties", cwd=tmp_path)
    assert code == 2
    assert "missing.properties" in said
    code, said = serve_and_fail("--listen", "9092", cwd=tmp_path)
    assert code == 2
    assert "HOST:PORT" in said


def test_a_data_dir_has_one_owner(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        code, said = serve_and_fail("--listen", "127.0.0.1:0", "--data-dir", str(broker.data_dir), cwd=tmp_path)
        assert code == 1
        assert str(broker.data_dir) in said
        assert "another process" in said
        code, said = serve_and_fail("--listen", broker.bootstrap_servers, "--data-dir", "other", cwd=tmp_path)
        assert code == 1
        assert str(broker.port) in said
        create_topic(broker.bootstrap_servers, "unharmed")
        assert broker.stop() == 0
    code, said = serve_and_fail(
        "--listen", "127.0.0.1:0", "--data-dir", str(broker.data_dir), "--set", "node.id=9", cwd=tmp_path
    )
    assert code == 1
    assert "node 1" in said
    assert "node.id=1" in said
    assert (broker.data_dir / MARKER).exists(), "a refused start leaves the clean shutdown as it was"


def test_the_first_line_says_who_this_is(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "moldau", "serve", "--data-dir", "data", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        address = process.stdout.readline().split()[1]
        process.terminate()
        introduction = process.stderr.readline()
    assert introduction.startswith("moldau ")
    for each in (str(tmp_path / "data"), "node 1 of cluster ", f"PLAINTEXT {address}"):
        assert each in introduction


def test_ctrl_c_while_it_starts_is_no_traceback(tmp_path: Path) -> None:
    """As early as the interpreter notices it: while modules are loaded, before there is a loop."""
    program = (
        "import signal, sys, threading, os\n"
        "from moldau.cli import main\n"
        "sys.argv[:] = ['moldau', 'serve', '--data-dir', 'data', '--listen', '127.0.0.1:0']\n"
        "sys.meta_path.insert(0, type('Ctrl-C', (), {'find_spec': staticmethod(\n"
        "    lambda name, *_: os.kill(os.getpid(), signal.SIGINT) if name == 'moldau.broker.node.node' else None)}))\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode in (0, 130)
    assert "Traceback" not in done.stderr
