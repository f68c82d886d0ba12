"""Ten thousand topics and five thousand groups: pages come from the snapshot, a page at a time, and ask nobody."""

from collections.abc import Iterator
from typing import Any, NoReturn

import pytest

from moldau.console.cluster.history import History
from moldau.console.cluster.model import Broker, Group, Partition, Position, Snapshot, Topic
from tests.console.support import Client, console

TOPICS, GROUPS = 10_000, 5_000


def large_snapshot() -> Snapshot:
    topics = {}
    for number in range(TOPICS):
        name = f"team-{number % 40}.topic-{number:05d}"
        partitions = tuple(Partition(index, 1 + index, (1, 2, 3), (1, 2, 3), (), 0, number) for index in range(3))
        topics[name] = Topic(name, False, partitions, number * 1_000, float(number % 500), number % 90, ())
    names = list(topics)
    groups = {}
    for number in range(GROUPS):
        name = f"group-{number:05d}"
        positions = {(names[number], index): Position(number // 2, number, "") for index in range(3)}
        groups[name] = Group(name, "consumer", "Stable", "uniform", 1, (), positions, number, 0.5, "ok")
    brokers = {
        number: Broker(number, "10.0.0.1", 9092, "", True, TOPICS, TOPICS * 3, 0, (), 1.0) for number in (1, 2, 3)
    }
    return Snapshot(7, 1_700_000_000_000, 1.0, "cluster", 1, brokers, dict(sorted(topics.items())), groups, None)


@pytest.fixture(scope="module")
def large() -> Iterator[Client]:
    # Nobody listens there, and nobody is asked.
    with console("127.0.0.1:1", refresh_s=3_600.0) as client:
        client.house.watcher.snapshot = large_snapshot()
        yield client


@pytest.fixture
def nobody_asks(large: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: Any, **__: Any) -> NoReturn:
        raise AssertionError("a page asked the cluster while it was rendered")

    monkeypatch.setattr(large.house, "ask", refuse)


@pytest.mark.usefixtures("nobody_asks")
def test_pages_are_rendered_from_the_snapshot(large: Client) -> None:
    paths = [
        "/",
        "/topics",
        "/groups",
        "/brokers",
        "/topics/team-1.topic-00001",
        "/group?name=group-00007",
        "/happened",
        "/search?q=topic",
        "/api/topics",
        "/api/groups",
        "/api/overview",
        "/dead-letters",
        "/brokers/2",
        "/topics/team-1.topic-00001/messages",
        "/topics/team-1.topic-00001/settings",
    ]
    for path in paths:
        answer = large.get(path)
        assert answer.status_code == 200, path
        assert len(answer.content) < 150_000, path


@pytest.mark.usefixtures("nobody_asks")
def test_lists_are_cut_searched_and_sorted_on_the_server(large: Client) -> None:
    first = large.get("/api/topics").json()
    assert (first["total"], first["pages"], len(first["topics"])) == (TOPICS, 200, 50)
    last = large.get("/api/topics?page=200").json()
    assert last["topics"][-1]["name"] == "team-9.topic-09969"
    assert large.get("/api/topics?page=999").json()["page"] == 200
    found = large.get("/api/topics?q=TEAM-7. 01287").json()["topics"]
    assert [topic["name"] for topic in found] == ["team-7.topic-01287"]
    biggest = large.get("/api/topics?sort=-size&per_page=2").json()["topics"]
    assert [topic["size_bytes"] for topic in biggest] == [9_999_000, 9_998_000]
    behind = large.get("/api/groups?sort=-lag").json()["groups"]
    assert behind[0]["name"] == "group-04999"
    page = large.get("/topics?q=team-3.&sort=-rate", headers={"hx-request": "true", "hx-target": "live"}).text
    assert page.count("<tr>") == 51
    assert "<html" not in page


def test_history_is_bounded_in_points_and_in_series() -> None:
    history = History(ticks=5, series_max=3)
    for tick in range(12):
        history.note(tick * 1_000, {"steady": tick, f"once-{tick}": 1.0})
    assert history.times_ms() == [7_000, 8_000, 9_000, 10_000, 11_000]
    assert history.values("steady") == [7, 8, 9, 10, 11]
    assert history.values("nobody") == [None] * 5
    assert len(history) <= 3
    for tick in range(12, 20):
        history.note(tick * 1_000, {"steady": tick})
    assert history.names() == ["steady"]
