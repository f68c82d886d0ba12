"""`--console` on `serve`, `cluster` and the demo: a console comes with them, shows them, and goes with them."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from rich.console import Console

from moldau.demo.__main__ import browser
from moldau.testing import Broker
from tests.cli.test_cluster import end, free_ports
from tests.support.broker_process import QUICK, eventually_refuses, read_ready
from tests.support.clients import wait_for

pytestmark = pytest.mark.long
SECONDS = 60


def _overview(address: str) -> str:
    with urllib.request.urlopen(f"{address}/api/overview", timeout=SECONDS) as answer:
        return str(answer.read().decode())


def _shows_a_broker(address: str) -> bool:
    """What a console knows is what its snapshot has, and the first one takes a moment."""
    return re.search(r'"brokers(_up)?": ?1\b', _overview(address)) is not None


@pytest.mark.parametrize("verb", ["serve", "cluster"])
def test_a_console_comes_and_goes_with_its_brokers(verb: str, tmp_path: Path) -> None:
    where = ["--listen", "127.0.0.1:0"]
    if verb == "cluster":  # whose console has to log in
        where = ["--secure", "--nodes", "1", "--base-port", str(free_ports())]
    command = [sys.executable, "-m", "moldau", verb, "--data-dir", str(tmp_path / "data"), "--console", "0", *where]
    told = tmp_path / "told"
    with told.open("w") as stderr:
        settings = [f"--set={key}={value}" for key, value in QUICK.items()]
        process = subprocess.Popen([*command, *settings], stdout=subprocess.PIPE, stderr=stderr, text=True)
    try:
        read_ready(process)
        (address,) = wait_for(lambda: re.findall(r"ready (http://\S+)", told.read_text()), "the console", SECONDS)
        wait_for(lambda: _shows_a_broker(address), "the console shows the broker", SECONDS)
    finally:
        code, _ = end(process)
    assert code == 0
    assert eventually_refuses(int(address.rpartition(":")[2]))


def test_the_demo_shows_itself_in_one() -> None:
    said = io.StringIO()
    with Broker() as broker, browser(broker.bootstrap_servers, Console(file=said, width=200)):
        (address,) = re.findall(r"http://\S+", said.getvalue())
        wait_for(lambda: _shows_a_broker(address), "the console shows the broker", SECONDS)
