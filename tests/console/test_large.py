"""Ten thousand topics and five thousand groups: pages come from the snapshot, a page at a time, and ask nobody."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NoReturn

import pytest

from moldau.console.cluster import access, admin
from moldau.console.cluster.history import History
from moldau.console.cluster.model import Broker, Group, Member, Partition, Position, Snapshot, Topic
from tests.console.support import Client, console, fragment

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


_WIDE = "team-0.topic-00000"
_READER = "group-00000"


@pytest.fixture
def wide(large: Client, monkeypatch: pytest.MonkeyPatch) -> Client:
    """A topic of many partitions that everybody reads, a group with many members, many topics of dead letters."""
    snapshot = large_snapshot()
    topics, groups = dict(snapshot.topics), dict(snapshot.groups)
    partitions = tuple(Partition(index, 1, (1, 2), (1,), (), 0, 9) for index in range(1_000))
    topics[_WIDE] = Topic(_WIDE, False, partitions, 1, 1.0, 1, tuple(groups))
    for number in range(300):
        name = f"team-{number:03d}-dlt"
        topics[name] = Topic(name, False, partitions[:1], 1, 1.0, None, ())
    members = tuple(Member(f"m-{number}", "", f"c-{number}", "/10.0.0.1", ()) for number in range(700))
    positions = {(_WIDE, index): Position(1, index, "") for index in range(1_000)}
    groups[_READER] = replace(groups[_READER], members=members, positions=positions)
    monkeypatch.setattr(large.house.watcher, "snapshot", replace(snapshot, topics=topics, groups=groups))
    return large


@pytest.mark.usefixtures("nobody_asks")
@pytest.mark.parametrize(
    ("path", "last", "has", "total"),
    [
        (f"/topics/{_WIDE}", "page=20", ">999<", "1,000 partitions"),
        (f"/group?name={_READER}", "page=20", 'partition=1"', "1,000 partitions"),
        (f"/group?name={_READER}", "members=14", "c-699", "700 members"),
        (f"/group?name={_READER}&q={_WIDE}-77", "page=1", ">776<", "Offsets"),
        ("/brokers/1", "page=999", "team-299-dlt", "partitions"),
        ("/brokers/2", "short=26", "team-299-dlt", "1,300 partitions"),
        ("/brokers/1?q=topic-00077", "page=1", "team-37.topic-00077", "1 partition"),
        ("/dead-letters", "page=6", "team-299-dlt", "300 topics"),
        ("/dead-letters?q=299", "page=1", "team-299-dlt", "1 topic"),
        (f"/groups?topic={_WIDE}", "page=100", "group-04999", "5,000 groups"),
    ],
)
def test_long_lists_inside_of_pages_are_turned_too(wide: Client, path: str, last: str, has: str, total: str) -> None:
    """The last of each is on its last page, the first page says how many there are, and none is long."""
    first = wide.get(path)
    assert (first.status_code, total in first.text) == (200, True), first.text[:2_000]
    assert len(first.content) < 150_000
    end = wide.get(path + ("&" if "?" in path else "?") + last).text
    assert has in end
    if "q=" not in path:
        assert has not in first.text


_LONG: dict[str, tuple[str, Callable[[int], Any]]] = {
    "/acls": ("moldau.console.cluster.access.acls", lambda n: access.Acl(2, f"t-{n:04d}", 3, "User:a", "*", 3, 3)),
    "/users": ("moldau.console.cluster.access.scram_users", lambda n: access.ScramUser(f"t-{n:04d}", ((1, 9),))),
    "/quotas": (
        "moldau.console.cluster.access.quotas",
        lambda n: access.Quota((("user", f"t-{n:04d}"),), (("request_percentage", 1.0),)),
    ),
    "/transactions": (
        "moldau.console.cluster.admin.transactions",
        lambda n: admin.Listing(f"t-{n:04d}", n, "Empty", 1),
    ),
    "/reassignments": (
        "moldau.console.cluster.admin.reassignments",
        lambda n: admin.Reassignment(f"t-{n:04d}", 0, (1,), (2,), (1,)),
    ),
}


@pytest.mark.parametrize("path", _LONG)
def test_long_lists_that_are_asked_for_are_turned_too(
    large: Client, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, one = _LONG[path]

    def many(_: Any, pattern: str = "") -> list[Any]:
        return [each for each in map(one, range(2_000)) if pattern in str(each)]

    monkeypatch.setattr(name, many)
    target = "moving" if path == "/reassignments" else "rows"
    page = fragment(large, f"{path}?page=40", target)
    assert ("t-1999" in page, "t-0000" in page, "page 40 of 40" in page) == (True, False, True)
    assert page.count("<tr>") == 51
    found = fragment(large, f"{path}?q=t-1234", target)
    assert ("t-1234" in found, found.count("<tr>")) == (True, 2)
    told = large.get(f"/api{path}?q=t-1234").json()
    assert (told["total"], "t-1234" in str(told)) == (1, True)
    assert large.get(f"/api{path}?per_page=7&page=2").json()["pages"] == 286


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
