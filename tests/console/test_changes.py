"""What the console remembers of what happened: brokers and the controller outlive what followed of them."""

import re
from dataclasses import replace

from moldau.console.cluster.changes import CAUSES_KEPT, KEPT, Change, Changes
from moldau.console.cluster.model import EMPTY, Broker, Partition, Quorum, Snapshot, Topic
from moldau.console.views import Views

LINES = 12


def _broker(number: int, *, is_up: bool = True) -> Broker:
    return Broker(number, "10.0.0.1", 9092, "", is_up, 0, 0, 0, (), 0.0)


def _snapshot(
    number: int, leaders: list[int], isrs: list[tuple[int, ...]], *, away: int = 0, controller: int = 1
) -> Snapshot:
    partitions = tuple(
        Partition(index, leader, (1, 2, 3), isr, (), 0, 0)
        for index, (leader, isr) in enumerate(zip(leaders, isrs, strict=True))
    )
    brokers = {each: _broker(each, is_up=each != away) for each in (1, 2, 3)}
    topics = {"orders": Topic("orders", False, partitions, None, 0.0, None, ())}
    quorum = Quorum(controller, number, 0, ())
    return replace(EMPTY, number=number, at_ms=number * 1_000, brokers=brokers, topics=topics, quorum=quorum)


def _texts(changes: list[Change]) -> list[str]:
    return [change.text for change in changes]


def test_what_followed_in_the_same_look_is_told_in_a_line_of_each_sort() -> None:
    changes = Changes()
    before = _snapshot(1, [3] * 30 + [1] * 7 + [2] * 3, [(1, 2, 3)] * 40)
    changes.note(before, _snapshot(2, [1] * 30 + [2] * 10, [(1, 2)] * 40, away=3, controller=2))
    assert _texts(changes.in_brief(LINES)) == [
        "broker 3 is away",
        "the active controller is 2, no longer 1",
        "40 partitions lost replicas in sync on broker 3",
        "37 leaders moved: 30 from broker 3, 7 from broker 1",
    ]
    everything = _texts(changes.everything())
    assert everything[:2] == ["broker 3 is away", "the active controller is 2, no longer 1"]
    assert len(everything) == 2 + 40 + 37
    assert "orders-29 is led by 1, before by 3" in everything
    assert "orders-39: replica 3 fell out of sync" in everything


def test_what_followed_in_many_looks_does_not_push_its_cause_away() -> None:
    changes = Changes()
    was = _snapshot(1, [3] * 200, [(1, 2, 3)] * 200)
    for look in range(40):  # five partitions a look lose the replica, and other five of them their leader
        leaders = [1 if index < look * 5 else 3 for index in range(200)]
        isrs: list[tuple[int, ...]] = [(1, 2) if index < (look + 1) * 5 else (1, 2, 3) for index in range(200)]
        now = _snapshot(2 + look, leaders, isrs, away=3)
        changes.note(was, now)
        was = now
    shown = changes.in_brief(LINES)
    assert len(shown) == LINES
    assert shown[-1].text == "broker 3 is away"
    assert {each.text for each in shown[:2]} == {
        "5 partitions lost replicas in sync on broker 3",
        "5 leaders moved from broker 3",
    }
    everything = _texts(changes.everything())
    assert len(everything) == 1 + 200 + 195
    assert everything[-6] == "broker 3 is away"  # above what was seen with it


def test_few_of_a_sort_are_told_one_by_one() -> None:
    changes = Changes()
    changes.note(_snapshot(1, [3, 3], [(1, 2, 3)] * 2), _snapshot(2, [1, -1], [(1, 2, 3), (1, 2)]))
    assert _texts(changes.in_brief(LINES)) == _texts(changes.everything())
    assert set(_texts(changes.in_brief(LINES))) == {
        "orders-0 is led by 1, before by 3",
        "orders-1: replica 3 fell out of sync",
        "orders-1 has no leader",
    }


def test_brokers_that_come_and_go_leave_half_of_the_lines_to_the_rest() -> None:
    changes = Changes()
    was = _snapshot(1, [1], [(1, 2, 3)])
    changes.note(was, was := _snapshot(2, [2], [(1, 2, 3)]))
    for look in range(2 * CAUSES_KEPT):
        changes.note(was, was := _snapshot(3 + look, [2], [(1, 2, 3)], away=3 if look % 2 == 0 else 0))
    shown = _texts(changes.in_brief(LINES))
    assert shown[0] == "broker 3 is back"
    assert shown[-1] == "orders-0 is led by 2, before by 1"
    assert len(shown) == 1 + LINES // 2
    assert len(changes.everything()) == CAUSES_KEPT + 1


def test_memory_is_bounded_and_the_number_of_many_is_right_all_the_same() -> None:
    changes = Changes()
    count = 5 * KEPT
    changes.note(_snapshot(1, [3] * count, [(1,)] * count), _snapshot(2, [-1] * count, [(1,)] * count, away=3))
    assert _texts(changes.in_brief(LINES)) == [
        "broker 3 is away",
        f"{count:,} partitions have no leader after broker 3",
    ]
    assert len(changes.everything()) == 1 + KEPT
    assert changes.in_brief(LINES, frozenset({"topic"}))[1:] == []


def test_a_change_is_not_drawn_as_a_warning_of_the_page() -> None:
    """`note` is the name of a level, and of the yellow box that pages warn with."""
    changes = [Change(1, "leader", level, "moved") for level in ("good", "note", "bad")]
    drawn = Views().fragment("happened_list.html", changes=changes)
    assert re.findall(r'<li class="([^"]*)"', drawn) == ["is-good", "is-note", "is-bad"]
