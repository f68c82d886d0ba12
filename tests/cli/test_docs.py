"""What README and docs show is run: every Python block, and every line of the console blocks but those of one list."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from moldau import spark, testing, toolkit
from moldau.broker.config import load_broker_config
from moldau.broker.config.properties import parse_properties
from moldau.testing import Broker
from moldau.toolkit import db, delays
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
# Lines of console blocks that are not run here, and who tries them instead; of each `moldau` line, command and options
# are asked for by name.
_LEFT_OUT = {
    r"moldau serve\b": "ends by Ctrl-C: tests/cli/test_serve.py",
    r"moldau cluster\b": "starts processes that stay: tests/cli/test_cluster.py",
    r"moldau console( --|$)": "ends by Ctrl-C: tests/interop/test_console.py",
    r"moldau console-user": "asks on a terminal: tests/console/test_files.py",
    r"moldau format": "names a file that is not there: tests/security/test_commands.py",
    r"moldau token": "wants a login: tests/cli/test_token_commands.py",
    r"moldau user add alice$": "asks on a terminal: tests/security/test_commands.py",
    r"moldau pipeline (run|status|init)": "wants Spark, or a run: tests/cli/test_pipeline_commands.py",
    r"moldau pipeline (test|replay|backfill|redrive)": "wants trials, or a past: tests/spark/test_pipeline_tools.py",
    r"moldau relay": "ends by Ctrl-C: tests/toolkit/test_relay.py",
    r"moldau dlq": "wants dead letters: tests/toolkit/test_tools.py",
    r"moldau registry": "wants a registry: tests/cli/test_registry.py",
    r"moldau lag": "wants groups, or does not end: tests/toolkit/test_running.py",
    r"pip install": "what is installed is installed: scripts/check_package.py",
    r"^make ": "takes minutes: Makefile",
    r"-m tests\.simulation": "takes minutes: tests/simulation/test_seeds.py",
    r"^spark-submit .*moldau-env": "wants a cluster of Spark's: tests/interop/test_spark_pack.py",
    r"systemctl .* moldau": "wants systemd: tests/broker/node/test_systemd.py",
}
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


def lines(block: Block) -> list[str]:
    """What a reader types, with what he continues on the next line."""
    joined = block.text.replace("\\\n", " ")
    return [line[2:].partition(" #")[0].strip() for line in joined.splitlines() if line.startswith("$ ")]


def is_left_out(line: str) -> bool:
    return any(re.search(pattern, line) for pattern in _LEFT_OUT)


def programs(page: Path) -> list[list[str]]:
    """What a reader would run, in the order of the page."""
    found = []
    for block in blocks(page):
        if block.language == "console":
            found += [["bash", "-o", "pipefail", "-c", line] for line in lines(block) if not is_left_out(line)]
        elif block.language == "python" and not _IS_TEST.search(block.text) and page.name not in _ELSEWHERE:
            found.append([sys.executable, "-c", block.text])
    return found


def at_home(text: str, broker: Broker) -> str:
    """With the addresses of this broker, and the programs of this environment."""
    address = broker.node.http_address
    assert address is not None
    for shown, here in (
        ("127.0.0.1:9092", broker.bootstrap_servers),
        ("kafka1.example.org:9092", broker.bootstrap_servers),
        ("kafka1.example.org:9404", f"{address[0]}:{address[1]}"),
        ("curl -s ", "curl -sSf "),
        ("/opt/moldau/bin/moldau", "moldau"),
    ):
        text = text.replace(shown, here)
    return text


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
    settings = {"moldau.http.listener": "0", **_SETTINGS.get(page.name, {})}
    with Broker(settings, data_dir=str(tmp_path / "moldau-data")) as broker:
        environment = os.environ | {"PATH": path, "MOLDAU_BOOTSTRAP_SERVER": broker.bootstrap_servers}
        environment["MOLDAU_HOME"] = str(tmp_path / "home")
        for program in programs(page):
            done = subprocess.run(
                [at_home(word, broker) for word in program],
                capture_output=True,
                text=True,
                cwd=tmp_path,
                env=environment,
                timeout=_SPARK_SECONDS,
                check=False,
            )
            assert done.returncode == 0, (program, done.stderr)


_TOOLKIT = sorted((ROOT / "docs" / "toolkit").glob("*.md"))
_LINES = [
    line
    for page in (*PAGES, *_TOOLKIT)
    for block in blocks(page)
    if block.language == "console"
    for line in lines(block)
]


def test_what_is_left_out_is_shown_and_tried_elsewhere() -> None:
    for pattern, reason in _LEFT_OUT.items():
        assert any(re.search(pattern, line) for line in _LINES), f"no page shows {pattern} any more"
        where = ROOT / reason.rpartition(": ")[2]
        words = re.findall(r"[a-z-]{3,}", pattern.removeprefix("moldau "))
        assert any(word in where.read_text() for word in words), (pattern, where)


def test_no_page_of_the_toolkit_has_a_line_that_nobody_tries() -> None:
    """Their Python is run by tests/toolkit/test_docs.py, their commands are tried elsewhere, all of them."""
    shown = [
        line for page in _TOOLKIT for block in blocks(page) if block.language == "console" for line in lines(block)
    ]
    assert shown
    assert [line for line in shown if not is_left_out(line)] == []


def test_lines_that_are_left_out_are_not_misspelt(moldau: Command) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for line in filter(is_left_out, _LINES):
        for named in re.findall(r"\[([\w,]+)\]", line):
            assert set(named.split(",")) <= extras.keys(), line
        for target in re.findall(r"^make ([a-z-]+)", line):
            assert target in targets, line
        if line.startswith("moldau "):
            see_options(moldau, shlex.split(line)[1:])


def mentioned(page: Path) -> set[str]:
    """Commands inside of the prose, and those set off by blanks; `…` stands for a command of the reader's."""
    prose = _BLOCK.sub("", page.read_text())
    spans = re.findall(r"`(moldau [^`]+)`", prose) + re.findall(r"^ {4,}(moldau .+)$", prose, re.MULTILINE)
    lines = {part.strip() for span in spans for part in " ".join(span.split()).split("|") if "…" not in span}
    return {line for line in lines if not line.startswith("moldau --")}


@pytest.mark.parametrize("page", [each for each in (*PAGES, *_TOOLKIT) if mentioned(each)], ids=lambda page: page.stem)
def test_commands_in_the_prose_are_not_misspelt(page: Path, moldau: Command) -> None:
    for line in sorted(mentioned(page)):
        see_options(moldau, shlex.split(line)[1:])


def see_options(moldau: Command, words: list[str]) -> None:
    """Command and options are there, as its help says."""
    command, after = words[:1], words[1:2]
    told = moldau.ok(*command, "--help").out
    if "COMMAND [ARGS]" in told and after and not after[0].startswith("-"):
        command += after
        told = moldau.ok(*command, "--help").out
    options = [word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)]
    assert [each for each in options if not re.search(rf"{each}(?![\w-])", told)] == [], words


@pytest.mark.parametrize("page", [*PAGES, *_TOOLKIT], ids=lambda page: page.stem)
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


@pytest.mark.parametrize("room", [testing, toolkit, db, delays, spark], ids=lambda room: str(room.__name__))
def test_everything_public_is_in_the_reference(room: ModuleType) -> None:
    page = ROOT / "docs" / "reference" / f"{room.__name__.split('.')[1]}.md"
    named = set(re.findall(rf"^::: {re.escape(room.__name__)}\.(\w+)$", page.read_text(), re.MULTILINE))
    assert named - {"pytest_plugin"} == set(room.__all__)
    assert [name for name in room.__all__ if not getattr(room, name).__doc__] == []


def test_the_loggers_that_the_docs_name_are_there(moldau: Command) -> None:
    text = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    (levels,) = re.findall(r"^moldau\.log\.levels=(.*)$", text, re.MULTILINE)
    named = {f"moldau.{each.partition('=')[0]}" for each in levels.split(",")}
    named |= set(re.findall(r"`(moldau\.broker\.\w+)` at\s+DEBUG", text))
    assert len(named) == 2
    there = {row["setting"] for row in moldau.ok("config", "describe", "broker-logger", "1", "--json").json}
    assert named <= there
    for name in named:
        moldau.ok("config", "set", "broker-logger", "1", f"{name}=INFO")


def test_every_script_of_kafka_is_in_the_tables() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    scripts = [name for name in TOOLS if name.startswith("kafka-")]
    assert [name for name in scripts if not re.search(rf"`{name}[` ]", text)] == []
