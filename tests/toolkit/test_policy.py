"""Retries, delays, headers, partitions: the decisions without anything around them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.records.murmur2 import murmur2
from moldau.toolkit import Breaker, Retry, SetupError, Undecodable
from moldau.toolkit.durations import milliseconds
from moldau.toolkit.letters import Origin, attempts_of, due_wall_ms, for_dead_letter, for_retry, foreign, origin_of
from moldau.toolkit.partitioners import by_key, round_robin
from moldau.toolkit.policy import BreakerState, Die, RetryLater, RetryNow, after_failure

ORIGIN = Origin("orders", 3, 1 << 40, 1_700_000_000_000, "CreateTime")


@pytest.mark.parametrize(
    ("text", "found"),
    [("500ms", 500), ("10s", 10_000), ("1m 30s", 90_000), ("2h", 7_200_000), (1.5, 1_500), ("1d", 86_400_000)],
)
def test_durations(text: str | float, found: int) -> None:
    assert milliseconds(text) == found


@pytest.mark.parametrize("text", ["", "10", "ten seconds", "-1s", -1, "1s!", float("nan")])
def test_what_is_no_duration(text: str | float) -> None:
    with pytest.raises(ValueError, match="is no duration"):
        milliseconds(text)


def test_in_place_then_through_topics_then_dead() -> None:
    retry = Retry(now=2, later=["10s", "1m"], backoff="100ms")
    error = ValueError()
    assert after_failure(retry, 1, None, error) == RetryNow(100, parked=False)
    assert after_failure(retry, 2, None, error) == RetryNow(200, parked=False)
    assert after_failure(retry, 3, None, error) == RetryLater(0, 10_000)
    assert after_failure(retry, 1, 0, error) == RetryLater(1, 60_000)
    assert after_failure(retry, 1, 1, error) == Die()
    assert after_failure(retry, 1, None, Undecodable()) == Die()
    assert after_failure(Retry(never=(KeyError,)), 1, None, KeyError()) == Die()
    assert after_failure(Retry(now=100), 90, None, error) == RetryNow(10_000, parked=False)


def test_in_order_it_waits_in_place() -> None:
    retry = Retry(now=1, later=["10s"], keep_order=True)
    assert after_failure(retry, 2, None, ValueError()) == RetryNow(10_000, parked=True)
    assert after_failure(retry, 3, None, ValueError()) == Die()


def test_a_breaker_opens_by_run_and_by_ratio_and_closes_with_a_success() -> None:
    state = BreakerState(Breaker(consecutive=3, ratio=0.5, window=10, pause="30s"))
    assert [state.allows_death(0) for _ in range(3)] == [True, True, False]
    assert not state.may_start(29_999, 0)
    assert not state.may_start(30_000, 1)
    assert state.may_start(30_000, 0)
    assert not state.allows_death(30_000)  # the trial died too
    assert state.may_start(60_000, 0)
    state.lived()
    assert state.may_start(60_000, 5)
    fates = []
    for _ in range(9):
        state.lived()
        fates.append(state.allows_death(0))
    assert fates[:4] == [True] * 4
    assert False in fates


def test_a_trace_does_not_grow_with_retries() -> None:
    """spring-kafka#1994, #2549: headers accumulated until the record was too large."""
    sent = [("moldau-id", b"1"), ("x", b"1"), ("x", None)]
    headers: list[tuple[str, bytes | None]] = list(sent)
    sizes = []
    for attempt in range(2, 12):
        try:
            raise ValueError("x" * 100_000)
        except ValueError as error:
            headers = for_retry(headers, origin_of(headers, ORIGIN), "g", error, attempt, 1_700_000_000_000)
        sizes.append(sum(len(name) + len(value or b"") for name, value in headers))
        assert attempts_of(headers) == attempt
    assert len(set(sizes)) == 1
    assert sizes[0] < 8_000
    assert foreign(headers) == sent
    assert origin_of(headers, Origin("other", 0, 0, 0, "")) == ORIGIN
    dead = for_dead_letter(headers, ORIGIN, "g", ValueError("no"), 12)
    assert foreign(dead) == sent
    assert len({name for name, _ in dead}) == len(dead) - 1  # only the sender's own x is there twice


@given(st.integers(-(2**63), 2**63 - 1))
def test_numbers_in_headers_are_javas(number: int) -> None:
    headers = for_retry([], ORIGIN, "g", ValueError(), 2, number)
    assert due_wall_ms(headers) == number


def test_murmur2_is_javas() -> None:
    # From Kafka's own unit test of its hash.
    known = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    for data, signed in known.items():
        assert murmur2(data) == signed & 0xFFFFFFFF
    assert by_key("t", b"foobar", 7) == (-790332482 & 0x7FFFFFFF) % 7
    assert by_key("t", None, 7) is None


def test_round_robin_goes_through_all() -> None:
    turn = round_robin()
    assert sorted(turn("t", b"same", 3) or 0 for _ in range(3)) == [0, 1, 2]


def test_settings_that_make_no_sense_are_said() -> None:
    with pytest.raises(SetupError, match="0 or more"):
        Retry(now=-1)
    with pytest.raises(SetupError, match="ratio"):
        Breaker(ratio=0)


def test_decisions_are_told_in_words() -> None:
    assert RetryNow(200, parked=False).in_words == "tried again in 200 ms"
    assert RetryLater(1, 60_000).in_words == "sent to retry topic 1, for 60000 ms"
    assert Die().in_words == "no attempt is left"
