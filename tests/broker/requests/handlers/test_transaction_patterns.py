"""A pattern over transactional ids that are long, many, or of any characters there are: bounded, and in slices."""

from typing import TypeVar

from moldau.broker.requests.handlers.list_transactions import DISTINCT_MAX, _batches, _match
from moldau.groups.regex import Regex
from moldau.timers.turns import Slices

T = TypeVar("T")


def carry_out(work: Slices[T]) -> tuple[T, int]:
    """The result, and in how many slices it came."""
    slices = 1
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result, slices
        slices += 1


def test_an_id_of_too_many_characters_meets_no_pattern() -> None:
    most, too_many = ("".join(map(chr, range(1_000, 1_000 + count))) for count in (DISTINCT_MAX, DISTINCT_MAX + 1))
    batches, _ = carry_out(_batches(["plain", most, too_many]))
    assert [name for _, names in batches for name in names] == ["plain", most]


def test_ids_of_many_alphabets_are_matched_apart() -> None:
    names = ["".join(map(chr, range(start, start + 500))) for start in range(1_000, 5_000, 500)]
    batches, _ = carry_out(_batches(names))
    assert len(batches) == 4
    assert [name for _, batch in batches for name in batch] == names


def test_long_ids_are_matched_in_slices() -> None:
    names = [f"{number:06}" + "ab" * 10_000 for number in range(20)]
    (batch,), slices = carry_out(_batches(names))
    assert slices > 3
    matching: set[str] = set()
    _, slices = carry_out(_match(Regex(".*(a|b)*a(a|b){21}", batch[0]), batch[1], matching))
    assert matching == set(names)
    assert slices > 20
