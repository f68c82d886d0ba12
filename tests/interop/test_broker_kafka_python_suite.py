"""kafka-python's own integration suite, unmodified, against Moldau."""

from pathlib import Path

from tests.interop.peers.kafka_python_suite import BROKER_PROPERTIES, run_suite
from tests.support.broker_process import BrokerProcess, free_port


def test_moldau_passes_kafka_pythons_suite(tmp_path: Path) -> None:
    port = free_port()
    settings = dict(BROKER_PROPERTIES)
    settings["advertised.listeners"] = f"PLAINTEXT://127.0.0.1:{port}"  # one test wants to see it configured
    with BrokerProcess(tmp_path / "data", port, **settings) as broker:
        result = run_suite(broker.bootstrap_servers)
    assert not result.failed, result.report()
    assert not result.skipped
    assert len(result.passed) == 55
