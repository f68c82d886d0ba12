"""How requests are timed: what stands for others, what was waiting, what is slow, and where errors are found."""

import logging
from typing import Any

import pytest

from moldau.broker.node.log_output import RateLimit
from moldau.broker.request_times import SAMPLED_MASK, RequestTimes
from moldau.seams.network import Payload
from moldau.wire import ErrorCode
from moldau.wire import messages as m


class Slot:
    def __init__(self) -> None:
        self.said: list[object] = []

    def complete(self, payload: Payload) -> None:
        self.said.append(payload)

    def complete_nothing(self) -> None:
        self.said.append(None)

    def close(self, reason: str) -> None:
        self.said.append(reason)


class Request:
    def __init__(self) -> None:
        self.slot: Any = Slot()

    def __repr__(self) -> str:
        return "Produce v9 from 'me'"


class Clock:
    now_ms = 1_000.0

    def __call__(self) -> float:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_answered_at_once_it_stands_for_those_that_were_not_measured(clock: Clock) -> None:
    times, call = RequestTimes("Produce", clock, is_sampled=True), Request()
    times.begin(call)
    clock.now_ms += 2
    call.slot.complete([b"answer"])
    times.handled(call)
    assert times.total.count == SAMPLED_MASK + 1
    assert times.total.sum == pytest.approx(0.002 * (SAMPLED_MASK + 1))
    assert times.local_seconds == pytest.approx(times.total.sum)
    assert times.remote_seconds == 0


def test_of_other_apis_everyone_counts_for_itself(clock: Clock) -> None:
    times, call = RequestTimes("Metadata", clock, is_sampled=False), Request()
    times.begin(call)
    call.slot.complete_nothing()
    assert times.total.count == 1


@pytest.mark.parametrize("is_measured_before", [True, False])
def test_what_waits_counts_for_itself_and_waiting_is_told_apart(clock: Clock, is_measured_before: bool) -> None:
    times, call = RequestTimes("Produce", clock, is_sampled=True), Request()
    inner = call.slot
    if is_measured_before:
        times.begin(call)
        clock.now_ms += 1
    times.waits(call, clock.now_ms)
    clock.now_ms += 50
    call.slot.complete([b"later"])
    assert inner.said == [[b"later"]]
    assert times.total.count == 1
    assert times.local_seconds == pytest.approx(0.001 if is_measured_before else 0)
    assert times.remote_seconds == pytest.approx(0.05)


def test_a_connection_that_ends_is_no_answer(clock: Clock) -> None:
    times, call = RequestTimes("Produce", clock, is_sampled=True), Request()
    times.begin(call)
    inner = call.slot._slot
    call.slot.close("gone")
    assert (times.total.count, inner.said) == (0, ["gone"])


@pytest.mark.parametrize(("api", "is_told"), [("Produce", True), ("Fetch", False), ("JoinGroup", False)])
def test_slow_requests_are_told_of_but_not_waiting_for_others(
    clock: Clock, caplog: pytest.LogCaptureFixture, api: str, is_told: bool
) -> None:
    times, call = RequestTimes(api, clock, is_sampled=True), Request()
    times.slow_ms = 1_000
    times.waits(call, clock.now_ms)
    clock.now_ms += 1_500
    with caplog.at_level(logging.WARNING):
        call.slot.complete([])
    said = "Produce was slow: 1500 ms, of which 1500 ms were spent waiting: Produce v9 from 'me'"
    assert [each.getMessage() for each in caplog.records] == ([said] if is_told else [])
    assert times.slow == int(is_told)


def test_slow_requests_of_one_api_do_not_hide_those_of_another(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """Lines are limited by their texts, before anything is filled in."""
    limit = RateLimit(said_max=2, now=lambda: 0.0)
    with caplog.at_level(logging.WARNING):
        for api in ("Produce", "Produce", "Produce", "Metadata"):
            times, call = RequestTimes(api, clock, is_sampled=False), Request()
            times.slow_ms = 1_000
            times.waits(call, clock.now_ms)
            clock.now_ms += 1_500
            call.slot.complete([])
    said = [each.getMessage().split()[0] for each in caplog.records if limit.filter(each)]
    assert said == ["Produce", "Produce", "Metadata"]


def test_errors_are_found_wherever_an_answer_has_them(clock: Clock) -> None:
    times = RequestTimes("any", clock, is_sampled=False)
    topic = m.MetadataResponse.MetadataResponseTopic
    partition = m.MetadataResponse.MetadataResponsePartition
    times.count_errors(
        m.MetadataResponse(
            topics=[
                topic(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
                topic(partitions=[partition(error_code=ErrorCode.LEADER_NOT_AVAILABLE), partition()]),
            ]
        )
    )
    times.count_errors(m.HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    times.count_errors(m.HeartbeatResponse())
    assert times.errors == {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 1,
        ErrorCode.LEADER_NOT_AVAILABLE: 1,
        ErrorCode.REBALANCE_IN_PROGRESS: 1,
    }


def test_at_debug_requests_are_named_by_api(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """By API also for the limit on lines, which goes by the text before anything is filled in."""
    texts = set()
    for name in ("Metadata", "OffsetCommit"):
        for level in (logging.INFO, logging.DEBUG):
            with caplog.at_level(level, "moldau.broker.request_times"):
                times, call = RequestTimes(name, clock, is_sampled=False), Request()
                times.begin(call)
                clock.now_ms += 2
                times.waits(call, clock.now_ms)
                clock.now_ms += 3
                call.slot.complete([b"answer"])
        texts.add(str(caplog.records[-1].msg))
    assert [each.getMessage() for each in caplog.records] == [
        f"{name} took 5.0 ms, 3.0 of them waiting: Produce v9 from 'me'" for name in ("Metadata", "OffsetCommit")
    ]
    assert len(texts) == 2
