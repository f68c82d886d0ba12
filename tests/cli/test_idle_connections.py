"""A broker that closes connections for being idle is no outage: nothing is told of it."""

from pathlib import Path

import pytest
from confluent_kafka import KafkaError

from moldau.cli.outage import Outage
from moldau.testing import Broker
from tests.cli.running import Command
from tests.support.broker_process import free_port
from tests.support.clients import fresh


def test_a_connection_closed_for_being_idle_is_not_told_as_an_outage(tmp_path: Path) -> None:
    with Broker({"connections.max.idle.ms": 1000}) as broker:
        moldau = Command(broker.bootstrap_servers, str(tmp_path))
        topic = fresh("idle")
        moldau.ok("topic", "create", topic)
        # Two lines, and between them a time in which nobody asks for anything.
        ended = moldau.ok("produce", topic, "--rate", "0.5", stdin="a\nb\n")
        assert ended.err == f"2 records to {topic}\n"


def test_an_outage_that_begins_after_such_an_end_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with Broker() as broker:
        outage = Outage(broker.bootstrap_servers)
        outage.on_error(KafkaError(KafkaError._TRANSPORT))
        outage.on_error(KafkaError(KafkaError._ALL_BROKERS_DOWN))
        assert capsys.readouterr().err == ""
    outage.on_error(KafkaError(KafkaError._TRANSPORT))
    outage.on_error(KafkaError(KafkaError._TRANSPORT))
    assert capsys.readouterr().err.count("any more; trying again\n") == 1
    outage.is_over()
    assert capsys.readouterr().err.endswith("answers again\n")
    gone = Outage(f"127.0.0.1:{free_port()}")
    gone.on_error(KafkaError(KafkaError._ALL_BROKERS_DOWN))
    assert "any more" in capsys.readouterr().err
