"""`make attack` in small: every move, nobody hurt. How long others waited is left to the large one."""

import pytest

from tests.attack.moves import MOVES
from tests.attack.run import attack

SMALL = {"every api": 0.1, "every list": 0.006, "huge lists": 0.02, "large topic": 0.1, "pipelines": 0.1}


@pytest.mark.timeout(180)
def test_a_bystander_notices_nothing() -> None:
    report = attack({move: SMALL.get(move, 0.05) for move in MOVES})
    assert not report.complaints(with_latency=False)
    assert report.writes
