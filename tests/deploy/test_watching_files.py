"""Dashboard and alert rules ask for metrics that a node has: a name that nobody gives is an alert that never comes."""

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from confluent_kafka import Consumer, Producer

from moldau.testing import Broker
from tests.support.clients import CONFLUENT, Sent
from tests.support.exposition import read_prometheus

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy/prometheus/moldau-rules.yml"
DASHBOARD = ROOT / "deploy/grafana/moldau.json"
NAME = re.compile(r"\b(?:kafka|moldau|process)_[a-z_]+\b")


def expressions() -> Iterator[tuple[str, str]]:
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


@pytest.fixture(scope="module")
def names() -> set[str]:
    """Of all samples of a broker that has seen a producer, a group, a transaction and an error."""
    with Broker({"moldau.http.listener": "0"}) as broker:
        servers = broker.bootstrap_servers
        CONFLUENT.send(servers, "seen", [Sent(b"x")], "none")
        CONFLUENT.read(servers, "seen", 1, 0)
        producer = Producer({"bootstrap.servers": servers, "transactional.id": "t"})
        producer.init_transactions(20)
        consumer = Consumer({"bootstrap.servers": servers, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["seen"])
        assert consumer.consume(1, 20)
        consumer.commit(asynchronous=False)
        consumer.close()
        address = broker.node.http_address
        assert address is not None
        with urllib.request.urlopen(f"http://{address[0]}:{address[1]}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    return {sample.name for family in read_prometheus(text) for sample in family.samples}


def test_every_name_is_given(names: set[str]) -> None:
    asked = {name for _, expression in expressions() for name in NAME.findall(expression)}
    assert len(asked) > 30
    assert asked - names == set()


def test_every_name_on_the_page_is_given(names: set[str]) -> None:
    """`…_x` stands for a sister of the last whole name of its row."""
    page = (ROOT / "docs/monitoring.md").read_text()
    rows = re.findall(r"^\| .+ \|$", page[page.index("## What there is") :], re.MULTILINE)
    missing, seen = [], 0
    for row in rows:
        whole = ""
        for name in re.findall(r"`(…?(?:[a-z]+_)?[a-z_]*_[a-z_]+\*?)(?:\{[^`]*)?`", row):
            seen += 1
            if not name.startswith("…"):
                whole = name
            stems = [whole[: at.start()] for at in re.finditer("_", whole)]
            meant = [stem + name[1:] for stem in stems] if name.startswith("…") else [name.rstrip("*")]
            if not any(
                given == each or given.startswith(f"{each}_") or (name[-1] == "*" and given.startswith(each))
                for each in meant
                for given in names
            ):
                missing.append(name)
    assert seen > 50
    assert missing == []


def test_the_dashboard_is_what_the_script_makes() -> None:
    subprocess.run([sys.executable, str(ROOT / "scripts/make_dashboard.py"), "--check"], check=True, timeout=30)


def test_the_operations_page_explains_every_alert() -> None:
    alerts = {rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]}
    explained = set(re.findall(r"\bMoldau[A-Z]\w+", (ROOT / "docs/operations.md").read_text()))
    assert explained == alerts


def test_every_alert_says_what_to_do() -> None:
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            assert rule["labels"]["severity"] in ("warning", "critical")
            assert {"summary", "description"} == rule["annotations"].keys()
