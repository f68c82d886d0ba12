"""A11: an empty answer is not "nothing left". What the reader makes of what a broker says, or does not say."""

import pytest

from moldau.client.connection import ClientError
from moldau.client.settings import parse_client_settings
from moldau.spark.fetch_client import read_range
from moldau.spark.ranges import DataLost, FetchSettings, RangeToRead
from moldau.wire import ErrorCode
from moldau.wire.fetch import FetchedPartition, FetchFrame
from tests.spark.scripted_peer import Said, ScriptedPeer, records, said

NOTHING = said(reached=20)


def read(peer: ScriptedPeer, start: int = 0, end: int = 20, **settings: object) -> list[int]:
    client = parse_client_settings({"bootstrap.servers": f"127.0.0.1:{peer.port}"})
    chosen = FetchSettings(client, **settings)  # type: ignore[arg-type]  # any of them
    found: list[int] = []
    for columns in read_range(RangeToRead("t", 0, start, end, ("127.0.0.1", peer.port)), chosen):
        found += columns.offsets.tolist()
    return found


@pytest.mark.parametrize("policy", ["delete", "compact"])
@pytest.mark.parametrize("committed", [False, True])
def test_records_that_come_after_an_empty_answer_are_read(policy: str, committed: bool) -> None:
    first, second = said(records(0, 9), reached=20), said(records(10, 19), reached=20)

    def go_on(request: FetchFrame) -> Said:
        return second if request.topics[0][1][0][2] == 10 else first

    with ScriptedPeer(NOTHING, first, NOTHING, otherwise=go_on, policy=policy) as peer:
        assert read(peer, read_committed=committed) == list(range(20))


def test_a_throttled_answer_of_apache_kafka_is_asked_again() -> None:
    """It names no partition, only for how long it will not answer."""
    with ScriptedPeer(20, 1, said(records(0, 9), reached=20), 5, said(records(10, 19), reached=20)) as peer:
        assert read(peer) == list(range(20))
        assert peer.offsets == [0, 0, 0, 10, 10]


def test_a_client_that_is_throttled_for_good_says_so() -> None:
    with ScriptedPeer(1) as peer, pytest.raises(ClientError, match="throttles this client"):
        read(peer, timeout_s=0.2)


def test_a_compacted_log_without_an_end_is_believed_when_it_says_so_again() -> None:
    """The cleaner left nothing at all below the high watermark: there is nothing to wait for."""
    with ScriptedPeer(said(records(0, 9), reached=20), NOTHING, policy="compact,delete") as peer:
        assert read(peer) == list(range(10))
        assert peer.offsets.count(10) >= 3


def test_a_batch_beyond_the_range_ends_it_at_once() -> None:
    with ScriptedPeer(said(records(0, 9), reached=30), said(records(25, 29), reached=30)) as peer:
        assert read(peer) == list(range(10))
        assert peer.offsets == [0, 10]


def test_what_is_not_committed_shows_the_gap_below_it() -> None:
    """An open transaction begins at 20, and below it the cleaner took everything: no broker would give more."""

    def answer(request: FetchFrame) -> Said:
        return NOTHING if request.isolation_level else said(records(20, 24), reached=30, stable=20)

    with ScriptedPeer(otherwise=answer) as peer:
        assert read(peer, start=10, read_committed=True) == []
        assert len(peer.offsets) == 2


@pytest.mark.parametrize("policy", ["delete", ErrorCode.TOPIC_AUTHORIZATION_FAILED])
def test_records_that_never_come_are_lost_and_not_passed_over(
    policy: str | ErrorCode, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing takes records off the end of a log that is not compacted."""
    with ScriptedPeer(said(records(0, 9), reached=20), NOTHING, policy=policy) as peer:
        with pytest.raises(DataLost, match=r"t-0 \[0, 20\) has no records from 10 on .* failOnDataLoss"):
            read(peer, timeout_s=0.5)
        assert read(peer, start=10, timeout_s=0.5, fail_on_data_loss=False) == []
        assert "has no records from 10 on" in caplog.text


def test_a_log_that_ends_before_the_range_is_lost_data(caplog: pytest.LogCaptureFixture) -> None:
    with ScriptedPeer(said(reached=5)) as peer:
        with pytest.raises(DataLost, match="the partition ends at 5"):
            read(peer, start=10, timeout_s=0.2)
        assert read(peer, start=10, timeout_s=0.2, fail_on_data_loss=False) == []
        assert "the partition ends at 5" in caplog.text


def test_a_log_that_has_not_reached_the_range_yet_is_waited_for() -> None:
    """A new leader whose high watermark is behind what the former one told."""
    with ScriptedPeer(said(reached=5), said(reached=9), said(records(10, 19), reached=20)) as peer:
        assert read(peer, start=10) == list(range(10, 20))


def test_a_batch_larger_than_what_was_asked_for_is_asked_for_again() -> None:
    whole = records(0, 19)
    cut = said(whole[:100], reached=20)
    with ScriptedPeer(cut, cut, said(whole, reached=20)) as peer:
        assert read(peer, max_bytes=100) == list(range(20))
        assert peer.bytes_max == [100, 200, 400]


def test_offsets_before_the_log_are_lost_or_skipped() -> None:
    gone = FetchedPartition(0, ErrorCode.OFFSET_OUT_OF_RANGE)
    with ScriptedPeer(gone, said(records(15, 19), reached=20), earliest=15) as peer:
        assert read(peer, fail_on_data_loss=False) == list(range(15, 20))
    with ScriptedPeer(gone, earliest=15) as peer, pytest.raises(DataLost, match="offsets 0 to 15 of t-0"):
        read(peer)
