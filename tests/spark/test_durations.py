"""Lengths of time in pipelines."""

import pytest

from moldau.spark.pipelines.durations import is_duration, seconds_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2 seconds", 2), ("1 hour 30 minutes", 5400), ("1.5 days", 129_600), ("250 milliseconds", 0.25)],
)
def test_a_length_of_time(text: str, seconds: float) -> None:
    assert is_duration(text)
    assert seconds_of(text) == seconds


def test_every_unit_that_is_accepted_is_understood() -> None:
    assert seconds_of("1 week 1 second 1 microsecond") == 604_801.000001


@pytest.mark.parametrize("text", ["", "2", "seconds", "two seconds", "2 fortnights", "2seconds", "-1 seconds"])
def test_what_is_none(text: str) -> None:
    assert not is_duration(text)
