"""The scenarios in `scenarios/*.txt`. See `scenario` for how to read and how to rewrite them."""

import os
from pathlib import Path

import pytest

from tests.groups.scenario import play

FOLDER = Path(__file__).parent / "scenarios"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    written, happened = play(path)
    if os.environ.get("MOLDAU_REWRITE_SCENARIOS"):
        path.write_text(happened)
    else:
        assert happened == written


def test_scenarios_exist() -> None:
    assert len(list(FOLDER.glob("*.txt"))) >= 20
