"""Rates and token buckets, by Kafka's arithmetic."""

import pytest

from moldau.broker.quotas.rates import Rate, TokenBucket, Windows

WINDOWS = Windows(11, 1_000.0)


def test_a_burst_is_measured_as_if_the_silence_before_belonged_to_it() -> None:
    rate = Rate(WINDOWS)
    rate.record(10_000, 500)
    assert rate.span_ms(500) == 10_000
    assert rate.per_second(500) == 1_000
    assert rate.wait_ms(1_000, 500) == 0
    assert rate.wait_ms(500, 500) == 10_000, "twice the limit: as long again as was measured"


def test_what_is_older_than_the_windows_is_forgotten() -> None:
    rate = Rate(WINDOWS)
    for second in range(30):
        rate.record(100, second * 1_000)
    assert rate.per_second(29_000) == pytest.approx(100, rel=0.1)
    rate.record(0, 29_999)
    assert rate.per_second(39_998) < 10
    assert rate.per_second(45_000) == 0
    assert rate.is_idle(45_000)


def test_waiting_brings_the_rate_to_the_limit() -> None:
    rate = Rate(WINDOWS)
    rate.record(15_000, 0)
    waits_ms = rate.wait_ms(1_000, 0)
    assert waits_ms == 5_000
    assert rate.per_second(10_000) == 1_500, "ten windows are taken to have passed already"
    assert rate.per_second(10_999) < 1_500


def test_a_steady_sender_who_waits_stays_at_the_limit() -> None:
    rate, now_ms, sent = Rate(WINDOWS), 0.0, 0.0
    while now_ms < 60_000:
        rate.record(50_000, now_ms)
        sent += 50_000
        now_ms += 1 + rate.wait_ms(100_000, now_ms)
    assert sent / 60 == pytest.approx(100_000, rel=0.2), "the first ten seconds' worth may come at once"


def test_a_bucket_is_full_at_first_and_may_go_into_debt() -> None:
    bucket = TokenBucket(11_000)
    assert bucket.wait_ms(2, 1_000_000) == 0
    bucket.take(20, 2, 1_000_000)
    assert bucket.wait_ms(2, 1_000_000) == 0, "22 may come at once"
    bucket.take(10, 2, 1_000_000)
    assert bucket.wait_ms(2, 1_000_000) == 4_000
    assert bucket.wait_ms(2, 1_003_000) == 1_000
    assert bucket.wait_ms(2, 1_004_000) == 0


def test_a_burst_after_silence_waits_as_long_by_either() -> None:
    rate, bucket = Rate(WINDOWS), TokenBucket(10_000)
    for size in (4_000, 5_000, 3_000, 8_000):
        rate.record(size, 0)
        bucket.take(size, 1_000, 0)
        assert bucket.wait_ms(1_000, 0) == rate.wait_ms(1_000, 0)


def test_a_bucket_lets_through_what_it_should_after_the_burst() -> None:
    bucket, now_ms, sent = TokenBucket(10_000), 0.0, 0.0
    while now_ms < 45_000:
        bucket.take(70_000, 1_000_000, now_ms)
        sent += 70_000 if now_ms >= 15_000 else 0
        now_ms += 3 + bucket.wait_ms(1_000_000, now_ms)
    assert sent / 30 == pytest.approx(1_000_000, rel=0.01)


def test_a_bucket_does_not_overflow() -> None:
    bucket = TokenBucket(2_000)
    bucket.take(1, 1, 0)
    bucket.take(1, 1, 100_000)
    assert bucket.wait_ms(1, 100_000) == 0
    bucket.take(2, 1, 100_000)
    assert bucket.wait_ms(1, 100_000) == 1_000
