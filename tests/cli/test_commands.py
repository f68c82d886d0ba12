"""`moldau topic`, `produce` and `consume` against a broker, and what they say when something is wrong."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import KafkaError

from moldau import cli
from moldau.cli import common
from moldau.cli.target import addresses
from moldau.testing import Broker
from tests.support.broker_process import free_port
from tests.support.clients import CONFLUENT, Sent, create_topic, fresh

SECONDS = 50
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"auto.create.topics.enable": "false"}) as running:
        yield running


def run_at(address: str, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "moldau", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env=os.environ | {"MOLDAU_BOOTSTRAP_SERVER": address, "COLUMNS": "120"},
        check=False,
    )


@pytest.fixture
def run(broker: Broker) -> Run:
    """A command, with the broker's address in the environment."""
    return lambda *arguments, stdin="": run_at(broker.bootstrap_servers, *arguments, stdin=stdin)


def said(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done
    return done.stdout


def refused(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode in (1, 2, 3, 4), done
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_round_trip(run: Run) -> None:
    topic = fresh("orders")
    assert said(run("topic", "create", topic, "--partitions", "2", "-c", "retention.ms=60000")) == f"created {topic}\n"
    assert topic in said(run("topic", "list")).splitlines()
    described = said(run("topic", "describe", topic))
    assert f"{topic}: 2 partitions, retention.ms=60000" in described
    sent = run("produce", topic, "--key-separator", ":", "--compression", "zstd", stdin="a:1\nb:2\na:3:4\n")
    assert sent.returncode == 0
    assert f"3 records to {topic}" in sent.stderr
    lines = said(run("consume", topic, "--from-beginning", "--max", "3", "--key-separator", "=")).splitlines()
    assert sorted(lines) == ["a=1", "a=3:4", "b=2"]
    assert said(run("consume", topic, "--from-beginning", "--exit-at-end")).splitlines() != []
    assert said(run("topic", "delete", topic)) == f"deleted {topic}\n"
    assert topic not in said(run("topic", "list")).splitlines()


def test_the_address_may_be_an_option(broker: Broker) -> None:
    topic = create_topic(broker.bootstrap_servers, "option")
    done = run_at("127.0.0.1:1", "topic", "list", "--bootstrap-server", broker.bootstrap_servers)
    assert topic in said(done).splitlines()


def test_what_is_not_there_is_said_so(run: Run) -> None:
    missing = fresh("missing")
    assert missing in refused(run("topic", "describe", missing))
    assert missing in refused(run("consume", missing))
    assert "nknown topic" in refused(run("topic", "delete", missing))
    assert "1 of 1 records" in refused(run("produce", missing, stdin="x\n"))


def test_refusals_say_why(run: Run, broker: Broker) -> None:
    topic = create_topic(broker.bootstrap_servers, "refusing")
    assert "already exists" in refused(run("topic", "create", topic))
    assert run("topic", "create", topic, "--if-not-exists").returncode == 0
    assert "retention.ms" in refused(run("topic", "create", fresh("bad"), "-c", "retention.ms=soon"))
    assert "KEY=VALUE" in refused(run("topic", "create", fresh("bad"), "-c", "retention.ms"))
    assert "key separator" in refused(run("produce", topic, "--key-separator", ":", stdin="none\n"))


def test_no_broker(broker: Broker) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    done = run_at(nowhere, "topic", "list")
    assert nowhere in refused(done)
    assert "moldau serve" in done.stderr


def test_version_and_help(run: Run) -> None:
    from moldau import __version__

    assert said(run("--version")) == f"moldau {__version__}\n"
    helped = said(run("--help"))
    for command in ("serve", "topic", "produce", "consume"):
        assert command in helped


def test_bytes_that_are_no_text_pass_through(broker: Broker) -> None:
    topic = create_topic(broker.bootstrap_servers, "bytes")
    CONFLUENT.send(broker.bootstrap_servers, topic, [Sent(b"\xff\x00\xfe"), Sent(None)], "none")
    done = subprocess.run(
        [sys.executable, "-m", "moldau", "consume", topic, "--from-beginning", "--exit-at-end"],
        capture_output=True,
        timeout=SECONDS,
        env=os.environ | {"MOLDAU_BOOTSTRAP_SERVER": broker.bootstrap_servers},
        check=True,
    )
    assert done.stdout == b"\xff\x00\xfe\n\n"


def test_a_bad_line_is_named_and_what_came_before_it_is_sent(run: Run, broker: Broker) -> None:
    topic = create_topic(broker.bootstrap_servers, "lines")
    done = run("produce", topic, "--key-separator", ":", stdin="a:1\nb:2\nnone\nc:3\n")
    complaint = refused(done)
    assert "line 3 " in complaint
    assert f"2 records to {topic}" in complaint
    assert said(run("consume", topic, "--from-beginning", "--exit-at-end")).splitlines() == ["1", "2"]


def test_a_record_too_large_for_the_topic_is_counted(run: Run, broker: Broker) -> None:
    topic = create_topic(broker.bootstrap_servers, "small", max_message_bytes="1000")
    complaint = refused(run("produce", topic, stdin="x\n" + "y" * 5_000 + "\n"))
    assert "were not delivered" in complaint


def test_what_became_of_each_topic_is_told(run: Run, broker: Broker) -> None:
    first, taken, last = fresh("first"), create_topic(broker.bootstrap_servers, "taken"), fresh("last")
    done = run("topic", "create", first, taken, last)
    assert f"{taken}: " in refused(done)
    assert sorted(done.stdout.splitlines()) == sorted([f"created {first}", f"created {last}"])
    missing = fresh("missing")
    done = run("topic", "delete", first, missing, last)
    assert f"{missing}: " in refused(done)
    assert sorted(done.stdout.splitlines()) == sorted([f"deleted {first}", f"deleted {last}"])


@pytest.mark.parametrize("option", ["--partitions", "--replication-factor"])
@pytest.mark.parametrize("number", ["-5", "0"])
def test_numbers_no_topic_can_have(run: Run, option: str, number: str) -> None:
    done = run("topic", "create", fresh("odd"), option, number)
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr


def test_an_address_without_a_port_gets_kafkas() -> None:
    found = addresses("localhost, [::1],PLAINTEXT://there:19,[::1]:7,::1")
    assert found == [("localhost", 9092), ("::1", 9092), ("there", 19), ("::1", 7), ("::1", 9092)]


def test_an_outage_is_told_once_and_so_is_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    outage = common.Outage("there:9092")
    down = KafkaError(KafkaError._ALL_BROKERS_DOWN)
    for each in (KafkaError(KafkaError._TRANSPORT), down, down):
        outage.on_error(each)
    assert capsys.readouterr().err == "moldau: no broker answers at there:9092 any more; trying again\n"
    outage.is_over()
    outage.is_over()
    assert capsys.readouterr().err == "moldau: there:9092 answers again\n"


def test_what_nobody_foresaw_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fall(arguments: list[str]) -> None:
        raise RuntimeError("out of ink")

    monkeypatch.setattr(cli, "_dispatch", fall)
    monkeypatch.setattr(sys, "argv", ["moldau", "topic", "list"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    assert capsys.readouterr().err == "moldau: RuntimeError: out of ink (--debug shows where)\n"
    monkeypatch.setattr(sys, "argv", ["moldau", "topic", "--debug", "list"])
    with pytest.raises(RuntimeError):
        cli.main()
    assert sys.argv == ["moldau", "topic", "list"]


def test_ctrl_c_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(arguments: list[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_dispatch", interrupt)
    monkeypatch.setattr(sys, "argv", ["moldau", "serve"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 130
