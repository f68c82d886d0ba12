"""What is common to all commands and needs care: an outage, an error nobody foresaw, Ctrl-C, addresses."""

import sys

import pytest
from confluent_kafka import KafkaError

from moldau import cli
from moldau.cli.outage import Outage
from moldau.cli.target import addresses


def test_an_address_without_a_port_gets_kafkas() -> None:
    found = addresses("localhost, [::1],PLAINTEXT://there:19,[::1]:7,::1")
    assert found == [("localhost", 9092), ("::1", 9092), ("there", 19), ("::1", 7), ("::1", 9092)]


def test_an_outage_is_told_once_and_so_is_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    outage = Outage("there:9092")
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
