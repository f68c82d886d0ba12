"""What README and docs show is run: every Python block, and every `moldau` line of the console blocks."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from moldau.testing import Broker

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
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


def commands(block: Block) -> list[str]:
    """Its `moldau` lines, but for `moldau serve`: the test has a broker running."""
    lines = [line[2:].partition(" #")[0].strip() for line in block.text.splitlines() if line.startswith("$ ")]
    return [line for line in lines if re.search(r"\bmoldau\b", line) and "moldau serve" not in line]


PYTHON = [block for block in blocks() if block.language == "python"]
CONSOLE = [block for block in blocks() if block.language == "console" and commands(block)]


def test_there_is_something_to_run() -> None:
    assert PYTHON
    assert CONSOLE


@pytest.mark.parametrize("block", PYTHON, ids=[block.name for block in PYTHON])
def test_python_blocks_run(block: Block, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", block.text], capture_output=True, text=True, cwd=tmp_path, timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("block", CONSOLE, ids=[block.name for block in CONSOLE])
def test_console_blocks_run(block: Block, tmp_path: Path) -> None:
    with Broker() as broker:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = os.environ | {"PATH": path, "MOLDAU_BOOTSTRAP_SERVER": broker.bootstrap_servers}
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
