"""A short run of the torture; the long one is `make torture`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.torture.run import torture


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_processes_that_are_killed_frozen_and_cut_off_keep_their_promises(tmp_path: Path) -> None:
    report = torture(tmp_path, seed=1, seconds=15)
    assert report.wrong == [], str(report)
    assert report.acked > 100
    assert report.committed > 5
