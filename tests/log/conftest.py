"""What most tests of this room begin with: a disk in memory, time that stands still, and a context of both."""

import pytest

from moldau.log import LogContext
from tests.log.helpers import ManualClock, sim_context
from tests.support.sim_disk import SimDisk


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


@pytest.fixture
def context(disk: SimDisk, clock: ManualClock) -> LogContext:
    return sim_context(disk, clock)
