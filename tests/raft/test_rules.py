"""Single rules of the protocol, each named after where it is written down."""

from __future__ import annotations

import json

import pytest

from moldau.raft import (
    Address,
    BeginQuorumEpoch,
    ElectionState,
    EndQuorumEpoch,
    Fetch,
    Persist,
    Raft,
    RaftSettings,
    RaftViolation,
    ReplicaKey,
    Send,
    Vote,
    Voter,
    VoterHistory,
    VoterSet,
    decode_quorum_state,
    encode_quorum_state,
)
from moldau.raft.election_state import CorruptQuorumState
from moldau.raft.leader import Leader
from moldau.raft.roles import Ballots, Follower, Unattached
from moldau.raft.voters import static_voters
from moldau.seams.randomness import SeededRandom
from moldau.wire import ErrorCode
from tests.raft.cluster import Entry, MemoryLog

THREE = static_voters([(1, "one", 1), (2, "two", 2), (3, "three", 3)], "C")
ME, TWO, THIRD = ReplicaKey(1, b"d" * 16), ReplicaKey(2), ReplicaKey(3)


def replica(state: ElectionState, *epochs: int) -> Raft:
    log = MemoryLog([Entry(epoch, None) for epoch in epochs], flushed=len(epochs))
    raft = Raft(ME, log, VoterHistory(THREE), RaftSettings(), SeededRandom(1))
    raft.start(0.0, state)
    raft.take_effects()
    return raft


def vote(
    candidate: ReplicaKey, epoch: int, last_epoch: int = 9, end_offset: int = 9, *, pre_vote: bool = False
) -> Vote:
    return Vote(ReplicaKey(1), candidate, epoch, last_epoch, end_offset, pre_vote)


def test_one_vote_per_epoch_and_it_is_persisted_first() -> None:
    """Raft, section 5.2: at most one vote per epoch, on a first-come-first-served basis."""
    raft = replica(ElectionState(4))
    answer = raft.on_vote(0.0, vote(TWO, 5))
    assert answer.granted
    assert Persist(ElectionState(5, None, TWO)) in raft.take_effects()
    assert not raft.on_vote(0.0, vote(THIRD, 5)).granted
    assert raft.on_vote(0.0, vote(TWO, 5)).granted  # the answer was lost, say

    again = replica(ElectionState(5, None, TWO))  # after a crash
    assert not again.on_vote(0.0, vote(THIRD, 5)).granted
    assert again.on_vote(0.0, vote(THIRD, 6)).granted


@pytest.mark.parametrize(
    ("last_epoch", "end_offset", "granted"), [(2, 3, True), (3, 1, True), (2, 4, True), (2, 2, False), (1, 9, False)]
)
def test_only_a_log_that_is_up_to_date_gets_votes(last_epoch: int, end_offset: int, granted: bool) -> None:
    """Raft, section 5.4.1: the later epoch wins; with the same epoch the longer log."""
    for pre_vote in (True, False):
        raft = replica(ElectionState(2), 1, 1, 2)
        assert raft.on_vote(0.0, vote(TWO, 7, last_epoch, end_offset, pre_vote=pre_vote)).granted is granted


def test_a_pre_vote_binds_nobody() -> None:
    """KIP-996: it may be given to several, and changes neither vote nor epoch."""
    raft = replica(ElectionState(5, None, TWO))
    assert raft.on_vote(0.0, vote(THIRD, 5, pre_vote=True)).granted
    assert raft.on_vote(0.0, vote(TWO, 5, pre_vote=True)).granted
    assert raft.take_effects() == []


def test_who_hears_from_its_leader_helps_nobody_to_depose_it() -> None:
    """KIP-996: a follower grants pre-votes only as long as it has not fetched."""
    raft = replica(ElectionState(5))
    raft.on_begin_epoch(0.0, BeginQuorumEpoch(ReplicaKey(1), 2, 5))
    role = raft.role
    assert isinstance(role, Follower)
    assert raft.on_vote(0.0, vote(THIRD, 5, pre_vote=True)).granted
    role.has_fetched = True
    assert not raft.on_vote(0.0, vote(THIRD, 5, pre_vote=True)).granted


def test_requests_of_old_epochs_and_for_others_are_refused() -> None:
    raft = replica(ElectionState(5, 2))
    old = raft.on_vote(0.0, vote(THIRD, 4))
    assert (old.error, old.leader_id, old.epoch) == (ErrorCode.FENCED_LEADER_EPOCH, 2, 5)
    assert raft.on_begin_epoch(0.0, BeginQuorumEpoch(ME, 3, 4)).error is ErrorCode.FENCED_LEADER_EPOCH
    assert raft.on_end_epoch(0.0, EndQuorumEpoch(3, 4)).error is ErrorCode.FENCED_LEADER_EPOCH
    assert raft.on_begin_epoch(0.0, BeginQuorumEpoch(ME, 3, 5)).error is ErrorCode.INVALID_REQUEST
    other_disk = Vote(ReplicaKey(1, b"x" * 16), THIRD, 6, 9, 9)
    assert raft.on_vote(0.0, other_disk).error is ErrorCode.INVALID_VOTER_KEY
    assert raft.on_vote(0.0, Vote(TWO, THIRD, 6, 9, 9)).error is ErrorCode.INVALID_VOTER_KEY
    assert raft.epoch == 5
    for epoch, error in [
        (4, ErrorCode.FENCED_LEADER_EPOCH),
        (5, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (6, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ]:
        assert raft.on_fetch(0.0, Fetch(TWO, epoch, 0, 0)).error is error


def test_records_of_former_epochs_are_committed_only_with_one_of_this_epoch() -> None:
    """Raft, section 5.4.2 and figure 8."""
    leader = Leader(4, ReplicaKey(1), THREE, epoch_start_offset=3, check_quorum_ms=1000, granting=())
    leader.start(0.0)
    leader.fetched(TWO, 1.0, 3, 4)  # everything of former epochs is on a majority
    assert not leader.update_high_watermark(4)
    leader.fetched(TWO, 2.0, 4, 4)
    assert leader.update_high_watermark(4)
    assert leader.high_watermark == 4
    leader.fetched(THIRD, 3.0, 2, 4)
    assert not leader.update_high_watermark(4)


def test_the_leader_counts_itself_only_with_what_is_flushed() -> None:
    leader = Leader(1, ReplicaKey(1), THREE, epoch_start_offset=0, check_quorum_ms=1000, granting=())
    leader.fetched(TWO, 1.0, 5, 5)
    assert leader.update_high_watermark(2)
    assert leader.high_watermark == 2
    leader.fetched(THIRD, 2.0, 5, 5)  # a majority does not need the leader's own disk
    assert leader.update_high_watermark(2)
    assert leader.high_watermark == 5


def test_no_fetch_claims_what_is_not_flushed() -> None:
    """Whoever is asked may lead, and counts a fetch as the word that all before its offset is on disk: also that of a
    replica that follows nobody yet."""
    for state in (ElectionState(5), ElectionState(5, 2), ElectionState(5, None, TWO)):
        raft = replica(state, 1, 4, 5)
        assert isinstance(raft.log, MemoryLog)
        raft.log.flushed = 2
        raft.poll(1.0)
        assert not [each for each in raft.take_effects() if isinstance(each, Send)]
        raft.log.flushed = 3
        raft.poll(2.0)
        fetches = [each.request for each in raft.take_effects() if isinstance(each, Send)]
        assert [each.offset for each in fetches if isinstance(each, Fetch)] == [3]


def test_a_new_leader_tells_no_high_watermark_before_it_has_committed_in_its_epoch() -> None:
    """What it knew as a follower may be older than what the one that asks has acted upon."""
    raft = replica(ElectionState(5, None, ME), 1, 4, 5)
    raft.high_watermark = 2
    raft.become_leader(0.0, Ballots(THREE, granted={1, 2}))
    assert isinstance(raft.log, MemoryLog)
    raft.log.entries.append(Entry(5, "leader change"))
    raft.log.flushed = 4
    answer = raft.on_fetch(1.0, Fetch(TWO, 5, 3, 5))
    assert (answer.error, answer.high_watermark) == (ErrorCode.NONE, -1)
    assert raft.on_fetch(2.0, Fetch(TWO, 5, 4, 5)).high_watermark == 4


def test_nothing_below_the_high_watermark_is_cut() -> None:
    raft = replica(ElectionState(5, 2), 1, 2, 5)
    raft.high_watermark = 2
    with pytest.raises(RaftViolation, match="below high watermark"):
        raft._truncate(1, 1)


def test_the_log_knows_better_than_an_old_quorum_state() -> None:
    raft = replica(ElectionState(1, 3), 1, 4)
    assert isinstance(raft.role, Unattached)
    assert (raft.epoch, raft.leader_id) == (4, None)


@pytest.mark.parametrize("kraft_version", [0, 1])
def test_quorum_state_is_kafkas_json(kraft_version: int) -> None:
    for state in (ElectionState(), ElectionState(3, 2), ElectionState(7, None, ReplicaKey(2))):
        data = encode_quorum_state(state, kraft_version, [1, 2])
        assert decode_quorum_state(data) == state
        assert json.loads(data)["data_version"] == kraft_version
    written_by_kafka = (
        b'{"leaderId":1,"leaderEpoch":5,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}'
    )
    assert decode_quorum_state(written_by_kafka) == ElectionState(5, 1)


@pytest.mark.parametrize("data", [b"", b"{}", b'{"data_version": 9}', b'{"data_version": 0, "leaderId": "x"}'])
def test_a_damaged_quorum_state_is_refused(data: bytes) -> None:
    """Voting again with a forgotten vote could elect two leaders."""
    with pytest.raises(CorruptQuorumState):
        decode_quorum_state(data)


def test_the_history_of_voters_follows_the_log() -> None:
    """Raft, section 6: the newest set counts, committed or not; cutting the log brings the former one back."""
    history = VoterHistory(THREE)
    two = THREE.without(THIRD)
    one = two.without(TWO)
    history.add_voters(10, two)
    history.add_voters(20, one)
    assert history.latest is one
    assert history.at(20)[0] is two
    history.truncate_to(20)
    assert (history.latest, history.latest_offset) == (two, 10)
    history.add_voters(30, one)
    history.forget_before(35)
    assert history.latest is one
    history.truncate_to(5)
    assert history.latest == THREE


def test_any_two_sets_that_follow_each_other_share_a_majority() -> None:
    four = THREE.with_voter(Voter(ReplicaKey(4), (("C", Address("four", 4)),)))
    assert THREE.overlaps(four)
    assert four.overlaps(THREE)
    others = VoterSet((Voter(ReplicaKey(1)), Voter(ReplicaKey(8)), Voter(ReplicaKey(9))))
    assert not THREE.overlaps(others)
    history = VoterHistory()
    history.add_voters(1, THREE)
    with pytest.raises(RaftViolation):
        history.add_voters(2, others)
    assert history.latest is THREE
    assert [len(each.voters) // 2 + 1 for each in (THREE, four)] == [THREE.majority, four.majority]
