"""When the process looks for garbage: never at everything while a large request is under way."""

import pytest

from moldau.cli.collector import Collector

QUICK, LARGE = 1_000, 1_000_000
MINUTE_MS = 60_000


class FakeGc:
    """Notes what it is told to do."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.blocks = 0
        self.middle_collections = 0

    def collect(self) -> int:
        self.done.append("collect")
        self.middle_collections = 0
        return 0

    def freeze(self) -> None:
        self.done.append("freeze")

    def unfreeze(self) -> None:
        self.done.append("unfreeze")

    def get_count(self) -> tuple[int, int, int]:
        return 0, 0, self.middle_collections


@pytest.fixture
def fake() -> FakeGc:
    return FakeGc()


@pytest.fixture
def collector(fake: FakeGc) -> Collector:
    fake.blocks = 500_000  # of a node that has started
    made = Collector(0.0, collector=fake, count_blocks=lambda: fake.blocks)
    assert fake.done == ["freeze"]
    fake.done.clear()
    return made


def grow(fake: FakeGc, blocks: int) -> None:
    fake.blocks += blocks
    fake.middle_collections += 20


def test_nothing_happened(fake: FakeGc, collector: Collector) -> None:
    collector.look(1_000)
    assert fake.done == []


def test_a_little_is_looked_at_soon(fake: FakeGc, collector: Collector) -> None:
    grow(fake, QUICK)
    collector.look(1_000)
    collector.look(2_000)
    assert fake.done == ["collect"]


def test_a_large_request_is_waited_for(fake: FakeGc, collector: Collector) -> None:
    grow(fake, LARGE)
    collector.look(1_000)
    collector.look(30_000)
    assert fake.done == []
    fake.blocks -= LARGE
    collector.look(31_000)
    assert fake.done == ["collect"]


def test_one_large_request_after_the_other(fake: FakeGc, collector: Collector) -> None:
    """The minute begins anew with each."""
    for number in range(10):
        grow(fake, LARGE)
        collector.look(number * 50_000)
        fake.blocks -= LARGE
        fake.middle_collections = 0
        collector.look(number * 50_000 + 40_000)
    assert fake.done == []


def test_what_stays_is_looked_at_once_more(fake: FakeGc, collector: Collector) -> None:
    grow(fake, LARGE)
    collector.look(1_000)
    collector.look(1_000 + MINUTE_MS)
    assert fake.done == ["collect", "freeze"]
    fake.done.clear()
    grow(fake, QUICK)
    collector.look(2_000 + MINUTE_MS)
    assert fake.done == ["collect"], "what is new is little again"


def test_a_thorough_look_every_hour(fake: FakeGc, collector: Collector) -> None:
    collector.look(60 * MINUTE_MS)
    collector.look(61 * MINUTE_MS)
    assert fake.done == ["unfreeze", "collect", "freeze"]
