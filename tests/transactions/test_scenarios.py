"""Every scenario file says what it shows. After a change that is meant, MOLDAU_REWRITE_SCENARIOS=1 rewrites the
answers; read the difference before you commit it."""

import os
from pathlib import Path

import pytest

from tests.transactions.scenario import replay_file

_FILES = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    replayed = replay_file(path)
    if os.environ.get("MOLDAU_REWRITE_SCENARIOS"):
        path.write_text(replayed)
    assert path.read_text() == replayed


def test_there_are_scenarios() -> None:
    assert len(_FILES) >= 15
