"""A broker is up in milliseconds because it loads little: what is named here takes long, and is loaded when needed."""

import subprocess
import sys

_NOT_AT_START = {
    "argparse",
    "confluent_kafka",
    "crc32c",  # only its compiled half
    "email",
    "importlib.metadata",
    "moldau.broker.coordinators.groups",
    "moldau.broker.coordinators.transactions",
    "moldau.log.cleaner.cleaner",
    "numpy",
    "pyarrow",
    "rich",
    "secrets",
    "shutil",
    "typer",
}


def test_a_broker_starts_without_what_it_does_not_need_yet() -> None:
    program = "import sys, moldau.cli.serving, moldau.broker.node.node; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert "moldau.broker.node.node" in loaded
    assert not _NOT_AT_START.intersection(loaded)
