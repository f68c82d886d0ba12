"""Counting what a long request mentions: right, and without a dict that grows for long."""

import pytest

from moldau.broker.requests.mentions import Mentions


@pytest.mark.parametrize("expected", [0, 3, 20_000])
def test_mentions_are_counted_and_taken_once(expected: int) -> None:
    mentions = Mentions(expected)
    assert [mentions.add(key) for key in ("a", "b", "a", ("a", 1))] == [1, 1, 2, 1]
    assert [mentions.take(key) for key in ("a", "a", "b", ("a", 1), "c")] == [2, 0, 1, 1, 0]


def test_no_dict_grows_large() -> None:
    mentions = Mentions(200_000)
    for number in range(200_000):
        mentions.add(("topic", number))
    assert max(len(part) for part in mentions._parts) < 2_000
