"""A real Prometheus (Debian's) scrapes a node, loads our rules, and answers what the dashboard asks.

Needs `prometheus` and `promtool` on the path: `apt-get install prometheus`.
"""

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from moldau.testing import Broker
from tests.deploy.test_watching_files import ROOT, RULES, expressions
from tests.support.broker_process import free_port
from tests.support.clients import CONFLUENT, Sent, wait_for

pytestmark = pytest.mark.long
RATE_INTERVAL = "10s"


class Prometheus:
    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"

    def ask(self, path: str, **parameters: str) -> Any:
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self._url}/{path}?{query}", timeout=10) as answer:
            told = json.load(answer)
        assert told["status"] == "success"
        return told["data"]

    def value(self, expression: str) -> float | None:
        found = self.ask("query", query=expression)["result"]
        return float(found[0]["value"][1]) if found else None

    def is_up(self) -> bool:
        try:
            return self.value("moldau_ready") == 1
        except OSError:
            return False


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"moldau.http.listener": "0"}) as broker:
        CONFLUENT.send(broker.bootstrap_servers, "watched", [Sent(b"x") for _ in range(100)], "none")
        yield broker


@pytest.fixture(scope="module")
def prometheus(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    program = shutil.which("prometheus")
    assert program is not None, "install Prometheus: apt-get install prometheus"
    folder = tmp_path_factory.mktemp("prometheus")
    address = broker.node.http_address
    assert address is not None
    target = [{"targets": [f"{address[0]}:{address[1]}"]}]
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(RULES)]
    config["scrape_configs"][0]["static_configs"] = target
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    command = [
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        prometheus = Prometheus(port)
        wait_for(prometheus.is_up, f"Prometheus to scrape; {(folder / 'log').read_text()[-2000:]}", 60)
        yield prometheus
    finally:
        process.terminate()
        process.wait(20)


def test_the_node_is_scraped(prometheus: Prometheus) -> None:
    assert prometheus.value('kafka_server_brokertopicmetrics_messagesin_total{topic="watched"}') == 100
    (target,) = prometheus.ask("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
    assert target["labels"]["job"] == "moldau"


def test_every_question_of_dashboard_and_rules_can_be_asked(prometheus: Prometheus) -> None:
    for name, expression in expressions():
        asked = expression.replace("$__rate_interval", RATE_INTERVAL).replace("$instance", ".*")
        assert prometheus.ask("query", query=asked)["resultType"] == "vector", name


def test_the_rules_are_loaded_and_nothing_is_wrong(prometheus: Prometheus) -> None:
    rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
    assert len(rules) > 10
    assert {rule["health"] for rule in rules} <= {"ok", "unknown"}
    assert [each["labels"]["alertname"] for each in prometheus.ask("alerts")["alerts"]] == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", "moldau-rules.yml"),
        ("test", "rules", "moldau-rules-test.yml"),
        ("check", "config", "prometheus.yml"),
    ],
)
def test_promtool_finds_nothing(arguments: tuple[str, ...]) -> None:
    program = shutil.which("promtool")
    assert program is not None, "install Prometheus: apt-get install prometheus"
    folder: Path = RULES.parent
    done = subprocess.run([program, *arguments], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_reads_the_page(broker: Broker) -> None:
    program = shutil.which("promtool")
    assert program is not None, "install Prometheus: apt-get install prometheus"
    address = broker.node.http_address
    assert address is not None
    with urllib.request.urlopen(f"http://{address[0]}:{address[1]}/metrics", timeout=10) as answer:
        page = answer.read()
    done = subprocess.run([program, "check", "metrics"], input=page, capture_output=True, timeout=60, check=False)
    # Kafka's names do not always follow Prometheus' advice; only what cannot be parsed is wrong.
    assert b"error while linting" not in done.stderr
    assert done.returncode in (0, 3), done.stdout + done.stderr
