"""Requests that name very many topics, of which most are refused: each name is looked at a few times, however many.

Counted are comparisons and hashes of names, not time: looking for each in a list of those refused is quadratic.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from moldau.broker.requests.handlers import describe_topic_partitions, offset_fetch, produce
from moldau.timers.turns import at_once
from moldau.wire import ErrorCode
from moldau.wire import messages as m
from moldau.wire.produce import ProduceFrame

FEW, MANY = 300, 1_200
LINEAR = 1.5
"""Four times the names may cost so much more than four times as much."""


class Name(str):
    """Counts how often it is looked at."""

    __slots__ = ()
    looks = 0

    def __eq__(self, other: object) -> bool:
        Name.looks += 1
        return str.__eq__(self, other)

    def __lt__(self, other: str) -> bool:
        Name.looks += 1
        return str.__lt__(self, other)

    def __hash__(self) -> int:
        Name.looks += 1
        return str.__hash__(self)


def names(count: int) -> list[Name]:
    """Each twice, not the same object."""
    return [Name(f"none-{number % (count // 2)}") for number in range(count)]


def may_see_some(name: str) -> bool:
    return str(name).endswith("7")


def looks_at_produce(count: int, monkeypatch: pytest.MonkeyPatch) -> int:
    taken: list[Any] = []
    monkeypatch.setattr(produce, "_append", lambda *args: taken.append(args))
    topics = [(name, [(0, None)]) for name in names(count)]
    refused = [each for each in topics if not may_see_some(each[0])]
    request = ProduceFrame(None, 1, 1_000, cast("Any", topics))
    Name.looks = 0
    split = produce._split(request, cast("Any", refused))
    produce._take_rest(cast("Any", None), cast("Any", None), split, None)
    ((_, _, whole, errors, _),) = taken
    assert len(whole.topics) == count
    assert {each.error for each in errors.values()} == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    return Name.looks


def looks_at_offset_fetch(count: int, _: pytest.MonkeyPatch) -> int:
    kind = m.OffsetFetchRequest
    topics = [kind.OffsetFetchRequestTopics(name, partition_indexes=[0]) for name in names(count)]
    group = kind.OffsetFetchRequestGroup("g", topics=topics)
    Name.looks = 0
    refused = offset_fetch._take_out_refused(group, may_see_some)
    looks = Name.looks
    assert group.topics is not None
    assert len(refused) + len(group.topics) == count
    return looks


def looks_at_describe(count: int, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(describe_topic_partitions, "may", lambda *_, **__: may_see_some)
    monkeypatch.setattr(describe_topic_partitions, "authorized_operations", lambda *_: 0)
    broker = SimpleNamespace(image=SimpleNamespace(topics={}), config=SimpleNamespace(get_int=lambda _: 2_000))
    kind = m.DescribeTopicPartitionsRequest
    request = kind([kind.TopicRequest(name) for name in names(count)])
    Name.looks = 0
    answer = at_once(describe_topic_partitions.handle(cast("Any", broker), cast("Any", None), request))
    looks = Name.looks
    assert len(answer.topics) == count // 2
    return looks


@pytest.mark.parametrize("looks_at", [looks_at_produce, looks_at_offset_fetch, looks_at_describe])
def test_refusing_very_many_names_is_linear(looks_at: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    few = looks_at(FEW, monkeypatch)
    many = looks_at(MANY, monkeypatch)
    assert many <= (few + FEW) * (MANY // FEW) * LINEAR
