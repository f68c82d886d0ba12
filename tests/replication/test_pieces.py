"""The small pieces: fetch sessions, the choice of a replica to read from, throttles."""

from moldau.replication.follower import FollowedPartition, Next, Resume, decide, resume_offset
from moldau.replication.leader import LeaderState, Role
from moldau.replication.selection import ReplicaView, closest_replica
from moldau.replication.session import FetchFrom, FetchPlan, FollowerSession, Key
from moldau.replication.throttle import ReplicationQuota, is_throttled
from moldau.wire import ErrorCode

_A, _B = (b"a" * 16, 0), (b"b" * 16, 3)


def _wanted(offset: int) -> FetchFrom:
    return FetchFrom(leader_epoch=1, fetch_offset=offset, last_fetched_epoch=0, log_start_offset=0, max_bytes=10)


def _plan(session: FollowerSession, positions: dict[Key, FetchFrom]) -> FetchPlan:
    return session.plan(positions, [_A, _B])


def test_a_session_names_all_partitions_once_and_then_what_changed() -> None:
    session = FollowerSession()
    first = _plan(session, {_A: _wanted(0), _B: _wanted(0)})
    assert (first.session_id, first.session_epoch, len(first.wanted), first.forgotten) == (0, 0, 2, [])
    assert session.on_response(ErrorCode.NONE, 77)
    second = _plan(session, {_A: _wanted(5), _B: _wanted(0)})
    assert second == (77, 1, [(_A, _wanted(5))], [])
    assert session.on_response(ErrorCode.NONE, 77)
    assert _plan(session, {_A: _wanted(5)}) == (77, 2, [], [_B])
    assert session.on_response(ErrorCode.NONE, 77)
    assert _plan(session, {_A: _wanted(5), _B: _wanted(0)}) == (77, 3, [(_B, _wanted(0))], [])


def test_a_session_starts_over_after_an_error_and_closes_the_former_one_after_a_failure() -> None:
    session = FollowerSession()
    _plan(session, {_A: _wanted(0)})
    session.on_response(ErrorCode.NONE, 77)
    _plan(session, {_A: _wanted(1)})
    session.on_failure()
    assert _plan(session, {_A: _wanted(1)}) == (77, 0, [(_A, _wanted(1))], [])
    session.on_response(ErrorCode.NONE, 78)
    _plan(session, {_A: _wanted(1)})
    assert not session.on_response(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0)
    assert _plan(session, {_A: _wanted(1)}) == (0, 0, [(_A, _wanted(1))], [])


def test_a_leader_without_room_for_sessions_gets_full_requests() -> None:
    session = FollowerSession()
    for _ in range(3):
        assert len(_plan(session, {_A: _wanted(0)}).wanted) == 1
        assert session.on_response(ErrorCode.NONE, 0)


def test_consumers_are_sent_to_their_rack() -> None:
    leader = ReplicaView(1, "east", 100, 0)
    near, nearer = ReplicaView(2, "west", 90, 5), ReplicaView(3, "west", 95, 50)
    assert closest_replica("west", 1, [leader, near, nearer]) == 3
    assert closest_replica("west", 1, [leader, near, nearer._replace(log_end_offset=90)]) == 2
    assert closest_replica("east", 1, [leader, near]) == 1
    assert closest_replica("north", 1, [leader, near]) == 1
    assert closest_replica("", 1, [leader._replace(rack=None), near._replace(rack="")]) == 1


def test_throttles_hold_the_average_of_the_last_seconds() -> None:
    quota = ReplicationQuota(bytes_per_second=1_000)
    assert not quota.is_exceeded(0.0)
    quota.record(10_000, 0.0)
    assert not quota.is_exceeded(500.0)
    quota.record(1, 500.0)
    assert quota.is_exceeded(500.0)
    assert not quota.is_exceeded(10_500.0)
    assert not quota.is_exceeded(60_000.0)
    quota.record(50_000, 60_000.0)
    assert quota.is_exceeded(70_000.0)
    assert not quota.is_exceeded(71_001.0)


def test_throttled_replicas_are_named_by_partition_and_broker() -> None:
    assert is_throttled(("0:1", "1:2"), 1, 2)
    assert not is_throttled(("0:1", "1:2"), 1, 1)
    assert is_throttled(("*",), 9, 9)
    assert not is_throttled((), 0, 0)


def test_answers_are_sorted_out() -> None:
    assert decide(ErrorCode.NONE, None) is Next.APPEND
    assert decide(ErrorCode.NONE, (1, 5)) is Next.TRUNCATE
    assert decide(ErrorCode.OFFSET_OUT_OF_RANGE, None) is Next.FIND_OFFSET
    assert decide(ErrorCode.FENCED_LEADER_EPOCH, None) is Next.STOP
    assert decide(ErrorCode.UNKNOWN_LEADER_EPOCH, None) is Next.BACK_OFF
    assert decide(ErrorCode.UNKNOWN_TOPIC_ID, None) is Next.BACK_OFF


def test_a_leader_that_refuses_is_asked_again_soon_and_then_ever_later() -> None:
    followed = FollowedPartition(leader_epoch=1, fetch_offset=0, last_fetched_epoch=-1)
    pauses = []
    for _ in range(10):
        followed.refused(now_ms=500, backoff_ms=1000)
        pauses.append(followed.ready_at_ms - 500)
    assert pauses == [10, 20, 40, 80, 160, 320, 640, 1000, 1000, 1000]
    followed.refusals = 0
    followed.refused(now_ms=500, backoff_ms=5)
    assert followed.ready_at_ms == 505, "never longer than the setting says"


def test_where_to_go_on_when_the_offset_is_not_in_the_leaders_log() -> None:
    assert resume_offset(10, 0, 7) == Resume(7, start_over=False)
    assert resume_offset(10, 20, 30) == Resume(20, start_over=True)
    assert resume_offset(10, 5, 30) == Resume(10, start_over=False)


def test_the_low_watermark_counts_replicas_that_are_alive() -> None:
    lead = LeaderState(1, Role((1, 2, 3), (1, 2, 3), 0, 0), 10, 0.0, lambda *_: True)
    lead.on_fetch(2, 5, 10, 4, 10, 0.0)
    lead.on_fetch(3, 5, 10, 2, 10, 0.0)
    assert lead.low_watermark(6, lambda _: True) == 2
    assert lead.low_watermark(6, lambda broker_id: broker_id != 3) == 4
    assert lead.low_watermark(6, lambda _: False) == 6
