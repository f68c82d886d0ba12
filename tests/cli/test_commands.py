"""What is common to all commands and needs care: an outage, an error nobody foresaw, Ctrl-C, addresses."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError

from moldau import cli
from moldau.cli import outage
from moldau.cli.consume import Start
from moldau.cli.outage import Outage
from moldau.cli.target import addresses
from moldau.testing import Broker
from tests.cli.running import Command


def test_an_address_without_a_port_gets_kafkas() -> None:
    found = addresses("localhost, [::1],PLAINTEXT://there:19,[::1]:7,::1")
    assert found == [("localhost", 9092), ("::1", 9092), ("there", 19), ("::1", 7), ("::1", 9092)]


def test_an_outage_is_told_once_and_so_is_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    trouble = Outage("there:9092")
    down = KafkaError(KafkaError._ALL_BROKERS_DOWN)
    for each in (KafkaError(KafkaError._TRANSPORT), down, down):
        trouble.on_error(each)
    assert capsys.readouterr().err == "moldau: no broker answers at there:9092 any more; trying again\n"
    trouble.is_over()
    trouble.is_over()
    assert capsys.readouterr().err == "moldau: there:9092 answers again\n"


def test_a_request_that_times_out_is_an_outage(capsys: pytest.CaptureFixture[str]) -> None:
    Outage("there:9092").on_error(KafkaError(KafkaError._TIMED_OUT))
    assert capsys.readouterr().err == "moldau: no broker answers at there:9092 any more; trying again\n"


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
    assert "MOLDAU_DEBUG" not in os.environ, "whatever this process runs next was not asked to be so talkative"


def test_ctrl_c_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(arguments: list[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_dispatch", interrupt)
    monkeypatch.setattr(sys, "argv", ["moldau", "serve"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 130


def test_a_broker_that_hangs_is_told_before_a_minute_has_passed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(outage, "SILENCE_MS", 2_000)
    with Broker(topics=["t"]) as broker:
        told: list[str] = []

        def hear(words: str) -> None:
            told.append(words)
            broker.faults.resume()

        def assign_and_hang(*given: Any) -> Any:
            ends = assign(*given)
            broker.faults.pause()
            return ends

        broker.produce("t", [b"one"])
        assign = Start.assign
        monkeypatch.setattr(Start, "assign", assign_and_hang)
        monkeypatch.setattr(outage, "tell", hear)
        assert Command(broker.bootstrap_servers, str(tmp_path)).ok("consume", "t", "-a", "-n", "1").out == "one\n"
    assert told == [
        f"no broker answers at {broker.bootstrap_servers} any more; trying again",
        f"{broker.bootstrap_servers} answers again",
    ]
