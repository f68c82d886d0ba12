"""Every scenario file says what it shows. After a change that is meant, MOLDAU_REWRITE_SCENARIOS=1 rewrites the
answers; read the difference before you commit it."""

import os
from pathlib import Path

import pytest

from moldau.replication.leader import LeaderState
from tests.replication.scenario import replay_file
from tests.replication.world import CheckFailed

_FOLDER = Path(__file__).parent / "scenarios"
_FILES = sorted(_FOLDER.glob("*.txt"))


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    replayed = replay_file(path)
    if os.environ.get("MOLDAU_REWRITE_SCENARIOS"):
        path.write_text(replayed)
    assert path.read_text() == replayed


@pytest.mark.parametrize("name", ["notes_lost_record", "notes_diverged_replicas"])
def test_the_notes_scenarios_fail_when_followers_cut_at_their_high_watermark(name: str) -> None:
    """FEATURES R4: that is what leader epochs are for."""
    with pytest.raises(CheckFailed):
        replay_file(_FOLDER / f"{name}.txt", truncate_by_high_watermark=True)


def test_fetches_of_a_former_epoch_must_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    real = LeaderState._forget_fetches

    def broken(self: LeaderState, now_ms: float) -> None:
        known = {broker_id: remote.log_end_offset for broker_id, remote in self.remotes.items()}
        real(self, now_ms)
        for broker_id, log_end_offset in known.items():
            self.remotes[broker_id].log_end_offset = log_end_offset

    monkeypatch.setattr(LeaderState, "_forget_fetches", broken)
    with pytest.raises(CheckFailed):
        replay_file(_FOLDER / "missed_epochs.txt")


def test_there_are_scenarios() -> None:
    assert len(_FILES) >= 12
