"""What README and docs show is run: every Python block, and every `moldau` line of the console blocks."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from moldau.broker.config import load_broker_config
from moldau.broker.config.properties import parse_properties
from moldau.testing import Broker
from tests.cli.running import Command
from tests.interop.apache_kafka import TOOLS

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    *(each for folder in (".", "start", "how") for each in sorted((ROOT / "docs" / folder).glob("*.md"))),
]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# Run here, or by the tests of their room: YAML is pipelines (tests/spark), saved here for the commands that use them.
_RUN = ("python", "console", "properties", "yaml")
# Shown, and not run: what was there before Moldau or needs another server, what is printed, files of another kind.
_SHOWN = ("py", "text", "ini")
# Test files are run by pytest: tests/testing/test_docs.py.
_ELSEWHERE = ("pyspark.md",)  # its Python runs where there is a Spark session already: tests/spark/test_notebook.py
_IS_TEST = re.compile(r"^def test_|^@pytest", re.MULTILINE)
# These do not end by themselves, ask on a terminal, or want a run, trials, dead letters, a login or a file that there
# are not (tests/spark, tests/cli and tests/security try them); and what is installed is installed.
_LEFT_OUT = re.compile(
    r"moldau (serve|cluster|console|format|token|user add alice"
    r"|pipeline (run|status|test|init|replay|backfill|redrive))|pip install|make |systemctl|example\.org"
)
_SPARK_SECONDS = 150
# What the broker of a page has to have.
_SETTINGS = {
    "security.md": {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
}
_NODE = {
    "node.id": "1",
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
    "controller.quorum.voters": "1@127.0.0.1:9093",
}


class Block(NamedTuple):
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(found[1], found[2]) for found in _BLOCK.finditer(page.read_text())]


def commands(block: Block) -> list[str]:
    """Its `moldau` lines that can be run against the broker of the test."""
    lines = [line[2:].partition(" #")[0].strip() for line in block.text.splitlines() if line.startswith("$ ")]
    return [line for line in lines if re.search(r"\bmoldau\b", line) and not _LEFT_OUT.search(line)]


def programs(page: Path) -> list[list[str]]:
    """What a reader would run, in the order of the page."""
    found = []
    for block in blocks(page):
        if block.language == "console":
            found += [["bash", "-o", "pipefail", "-c", command] for command in commands(block)]
        elif block.language == "python" and not _IS_TEST.search(block.text) and page.name not in _ELSEWHERE:
            found.append([sys.executable, "-c", block.text])
    return found


def save_files(folder: Path) -> None:
    """The YAML blocks of the pages, under the names they give themselves."""
    for page in PAGES:
        for found in re.finditer(r"^```yaml\n(name: (\w+)\n.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            (folder / f"{found[2]}.yaml").write_text(found[1])


RUN = [page for page in PAGES if programs(page)]


def test_there_is_something_to_run() -> None:
    assert len(RUN) > 8


@pytest.mark.timeout(2 * _SPARK_SECONDS)
@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_what_a_page_shows_runs_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    save_files(tmp_path)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with Broker(_SETTINGS.get(page.name), data_dir=str(tmp_path / "moldau-data")) as broker:
        environment = os.environ | {"PATH": path, "MOLDAU_BOOTSTRAP_SERVER": broker.bootstrap_servers}
        environment["MOLDAU_HOME"] = str(tmp_path / "home")
        for program in programs(page):
            done = subprocess.run(
                [word.replace("127.0.0.1:9092", broker.bootstrap_servers) for word in program],
                capture_output=True,
                text=True,
                cwd=tmp_path,
                env=environment,
                timeout=_SPARK_SECONDS,
                check=False,
            )
            assert done.returncode == 0, (program, done.stderr)


@pytest.mark.parametrize("page", [*PAGES, *(ROOT / "docs" / "toolkit").glob("*.md")], ids=lambda page: page.stem)
def test_every_block_says_what_it_is(page: Path) -> None:
    """One without a language is one that nobody runs, and nobody knows."""
    assert [each for each in blocks(page) if each.language not in (*_RUN, *_SHOWN)] == []
    assert [
        line
        for block in blocks(page)
        if block.language == "console"
        for line in block.text.splitlines()[:1]
        if not line.startswith("$ ")
    ] == []


@pytest.mark.parametrize(
    "page", [each for each in PAGES if "```properties" in each.read_text()], ids=lambda each: each.stem
)
def test_settings_that_are_shown_are_taken(page: Path) -> None:
    shown = [parse_properties(block.text) for block in blocks(page) if block.language == "properties"]
    for number, settings in enumerate(shown):
        if page.name == "security.md" and number > 0:
            settings = shown[0] | settings  # listeners are shown first, and meant below
        if page.name == "security.md":
            settings = {"sasl.enabled.mechanisms": "SCRAM-SHA-512"} | settings
        is_alone = "listeners" in settings and "CONTROLLER" not in settings["listeners"]
        load_broker_config(settings if is_alone else _NODE | settings)


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
