"""What every command prints and how it ends, word for word: the transcripts in `golden`. No command is without one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from moldau.testing import Broker
from tests.cli.test_bad_input import leaves
from tests.support.command_tour import ELSEWHERE, PARTS, SETTINGS, Tour, golden, write_if_asked


@pytest.fixture(scope="module")
def transcripts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Tour, dict[str, str]]]:
    with Broker(SETTINGS) as broker:
        tour = Tour(broker.bootstrap_servers, "cli-m-tour", tmp_path_factory.mktemp("tour"))
        yield tour, {part.__name__: tour.walk(part) for part in PARTS}


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_commands_say_what_they_said(part: Callable[[Tour], None], transcripts: tuple[Tour, dict[str, str]]) -> None:
    said = transcripts[1][part.__name__]
    write_if_asked(part, said)
    assert said == golden(part)


def test_no_command_is_without_a_transcript(transcripts: tuple[Tour, dict[str, str]]) -> None:
    walked = transcripts[0].commands
    missing = [
        leaf
        for leaf in leaves()
        if not any(each == leaf or each.startswith(f"{leaf} ") for each in walked)
        and leaf not in ELSEWHERE
        and leaf.partition(" ")[0] not in ELSEWHERE
    ]
    assert missing == []
