"""What README and docs show is run: every Python block, and every `moldau` line of the console blocks."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from moldau.testing import Broker
from tests.cli.running import Command
from tests.interop.apache_kafka import TOOLS

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    *(each for folder in (".", "start", "how") for each in sorted((ROOT / "docs" / folder).glob("*.md"))),
]
_BLOCK = re.compile(r"^```(python|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    name: str
    language: str
    text: str


def blocks() -> list[Block]:
    return [
        Block(f"{page.name}-{number}", found[1], found[2])
        for page in PAGES
        for number, found in enumerate(_BLOCK.finditer(page.read_text()))
    ]


# These do not end by themselves, or want a run, trials or dead letters that there are not (tests/spark and tests/cli
# try them); and what is installed is installed.
_LEFT_OUT = re.compile(
    r"moldau (serve|cluster|console|pipeline (run|status|test|init|replay|backfill|redrive))|pip install|make "
)
_SPARK_SECONDS = 150


def commands(block: Block) -> list[str]:
    """Its `moldau` lines that can be run against the broker of the test."""
    lines = [line[2:].partition(" #")[0].strip() for line in block.text.splitlines() if line.startswith("$ ")]
    return [line for line in lines if re.search(r"\bmoldau\b", line) and not _LEFT_OUT.search(line)]


def save_files(folder: Path) -> None:
    """The YAML blocks of the pages, under the names they give themselves."""
    for page in PAGES:
        for found in re.finditer(r"^```yaml\n(name: (\w+)\n.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            (folder / f"{found[2]}.yaml").write_text(found[1])


PYTHON = [block for block in blocks() if block.language == "python"]
CONSOLE = [block for block in blocks() if block.language == "console" and commands(block)]


def test_there_is_something_to_run() -> None:
    assert PYTHON
    assert CONSOLE


@pytest.mark.timeout(2 * _SPARK_SECONDS)
@pytest.mark.parametrize("block", PYTHON, ids=[block.name for block in PYTHON])
def test_python_blocks_run(block: Block, tmp_path: Path) -> None:
    with Broker() as broker:
        text = block.text.replace("127.0.0.1:9092", broker.bootstrap_servers)
        done = subprocess.run(
            [sys.executable, "-c", text],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=_SPARK_SECONDS,
            check=False,
        )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("block", CONSOLE, ids=[block.name for block in CONSOLE])
def test_console_blocks_run(block: Block, tmp_path: Path) -> None:
    save_files(tmp_path)
    with Broker() as broker:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = os.environ | {"PATH": path, "MOLDAU_BOOTSTRAP_SERVER": broker.bootstrap_servers}
        environment["MOLDAU_HOME"] = str(tmp_path / "home")
        for command in commands(block):
            done = subprocess.run(
                ["bash", "-o", "pipefail", "-c", command],
                capture_output=True,
                text=True,
                cwd=tmp_path,
                env=environment,
                timeout=50,
                check=False,
            )
            assert done.returncode == 0, (command, done.stderr)


def test_the_files_that_the_architecture_names_are_there() -> None:
    named = set(re.findall(r"`((?:\w+/)+\w+\.py)`", (ROOT / "docs" / "ARCHITECTURE.md").read_text()))
    rooms = (ROOT / "src" / "moldau", ROOT / "src" / "moldau" / "broker", ROOT)
    assert len(named) > 60
    assert not [path for path in sorted(named) if not any((room / path).exists() for room in rooms)]


def test_the_loggers_that_the_docs_name_are_there(moldau: Command) -> None:
    text = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    (levels,) = re.findall(r"^moldau\.log\.levels=(.*)$", text, re.MULTILINE)
    named = {f"moldau.{each.partition('=')[0]}" for each in levels.split(",")}
    named |= set(re.findall(r"`(moldau\.broker\.\w+)` for one", text))
    assert len(named) == 2
    there = {row["setting"] for row in moldau.ok("config", "describe", "broker-logger", "1", "--json").json}
    assert named <= there
    for name in named:
        moldau.ok("config", "set", "broker-logger", "1", f"{name}=INFO")


def test_every_script_of_kafka_is_in_the_tables() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    scripts = [name for name in TOOLS if name.startswith("kafka-")]
    assert [name for name in scripts if not re.search(rf"`{name}[` ]", text)] == []
