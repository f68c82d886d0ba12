"""One replica of the quorum: what it does with requests, answers and the passing of time.

    answer = raft.on_vote(now_ms, request)      # requests of others (also on_begin_epoch, on_end_epoch, on_fetch)
    raft.on_answer(now_ms, send, answer)        # what became of ours
    raft.poll(now_ms)                           # timers, and whatever is to be sent next
    for effect in raft.take_effects(): …        # in order; then poll again, until there are none
    raft.deadline_ms                            # when to poll again at the latest

Answers may leave only after the effects of their request are done: a vote must be on disk before it is given.

Invariants
- One vote per epoch; one leader per epoch; the epoch never goes back.
- A leader is elected only by voters whose logs end before its own or with it (Raft, section 5.4.1).
- Nothing below the high watermark is ever truncated.
"""

from __future__ import annotations

from moldau.raft.effects import (
    Append,
    AppendLeaderChange,
    Effect,
    HighWatermarkChanged,
    HistoryFound,
    InstallSnapshot,
    LeaderChanged,
    Persist,
    Send,
    SnapshotChunk,
    Truncate,
)
from moldau.raft.election_state import ElectionState
from moldau.raft.founding import Founding
from moldau.raft.leader import Leader
from moldau.raft.links import Links
from moldau.raft.log_facts import LogFacts, SnapshotId, where_logs_part
from moldau.raft.messages import (
    Answer,
    BeginQuorumEpoch,
    EndQuorumEpoch,
    EpochAnswer,
    Fetch,
    Fetched,
    FetchedSnapshot,
    FetchSnapshot,
    Request,
    Vote,
    Voted,
)
from moldau.raft.polling import Polling
from moldau.raft.roles import NEVER, Ballots, Candidate, Follower, Prospective, Resigned, Unattached
from moldau.raft.settings import RaftSettings, RaftViolation
from moldau.raft.voters import NO_NODE, Address, ReplicaKey, VoterHistory, VoterSet
from moldau.seams import Random
from moldau.wire import ZERO_UUID, ErrorCode

Role = Unattached | Follower | Prospective | Candidate | Leader | Resigned
_ROLE_CHANGES_MAX = 10


class Raft:
    """See the module. `history` is kept up to date by whoever appends to the log."""

    def __init__(
        self,
        me: ReplicaKey,
        log: LogFacts,
        history: VoterHistory,
        settings: RaftSettings,
        random: Random,
        *,
        bootstrap: tuple[Address, ...] = (),
        endpoints: tuple[tuple[str, Address], ...] = (),
    ) -> None:
        self.me = me
        self.log = log
        self.history = history
        self.settings = settings
        self.random = random
        self.bootstrap = bootstrap
        # Where this node listens as a controller; told to those who should follow it.
        self.endpoints = endpoints
        self.role: Role = Unattached(0, NEVER)
        self.high_watermark: int | None = None
        self.deadline_ms = NEVER
        self._effects: list[Effect] = []
        self._persisted = ElectionState()
        self._told: tuple[int | None, int] = (None, 0)
        self._links = Links()
        self._addresses: dict[int, Address] = {}
        # What the leader said last; we may not have all of that yet. -1 while it has said nothing.
        self.leader_high_watermark = -1
        self._polling = Polling(self)
        # While this replica is a voter without any history.
        self.founding: Founding | None = None

    # -- what others may ask

    @property
    def epoch(self) -> int:
        return self.role.epoch

    @property
    def leader_id(self) -> int | None:
        return self.role.leader_id if not isinstance(self.role, Resigned) else None

    @property
    def leader_address(self) -> Address | None:
        role = self.role
        if isinstance(role, Leader):
            return self.endpoints[0][1] if self.endpoints else self.voters.address(self.me.id)
        if isinstance(role, Follower):
            return role.address
        return None if role.leader_id is None else self.address_of(role.leader_id)

    @property
    def voters(self) -> VoterSet:
        return self.history.latest

    @property
    def is_voter(self) -> bool:
        return self.me in self.voters

    @property
    def may_campaign(self) -> bool:
        """Whether this replica may ask for votes: as a voter, or as one whose removal may not be committed. The others
        may not know of that yet, and lack the record that only this replica's log has (dissertation, section 4.2.2).
        """
        if self.founding is not None:
            return False
        if self.is_voter:
            return True
        offset = self.history.latest_offset
        if offset < 0 or (self.high_watermark is not None and offset < self.high_watermark):
            return False
        return self.me in self.history.at(offset)[0]

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    # -- beginning and end

    def start(self, now_ms: float, state: ElectionState, *, is_blank: bool = False) -> None:
        """Take up what was on disk. Whoever led the epoch does not go on: it may have promised nothing since.

        `is_blank`: there was nothing at all, not even the word that there is nothing (see `founding`)."""
        self._persisted = state
        if is_blank and self.is_voter and self.history.kraft_version == 0 and not self.voters.is_only(self.me):
            self.founding = Founding(self.me.id, self.voters)
        if self.log.last_epoch > state.epoch:
            state = ElectionState(self.log.last_epoch)
        deadline_ms = now_ms + self._election_timeout_ms()
        if state.leader_id == self.me.id:
            self.role = Resigned(state.epoch, deadline_ms, self.me.id, (), state.voted)
        elif state.voted == self.me and state.leader_id is None and self.may_campaign:
            ballots = Ballots(self.voters, granted={self.me.id})
            self.role = Candidate(state.epoch, deadline_ms, ballots, self.me)
        else:
            self.role = Unattached(state.epoch, deadline_ms, state.leader_id, state.voted)
        self._told = (None, -1)
        self._after_change()

    def resign(self, now_ms: float) -> None:
        """Give up leadership, in an orderly way."""
        role = self.role
        if isinstance(role, Leader):
            deadline_ms = now_ms + self._election_timeout_ms()
            self._become(Resigned(role.epoch, deadline_ms, self.me.id, role.successors(), role.voted))

    def voters_changed(self, now_ms: float) -> None:
        """The history has another latest set."""
        role = self.role
        if isinstance(role, Leader):
            role.set_voters(self.voters, now_ms)
        elif isinstance(role, Prospective | Candidate):
            role.ballots.voters = self.voters
        elif isinstance(role, Unattached | Follower) and role.deadline_ms == NEVER:
            role.deadline_ms = now_ms + self._election_timeout_ms()

    # -- changes of role

    def _become(self, role: Role) -> None:
        if role.epoch < self.epoch:
            raise RaftViolation(f"from epoch {self.epoch} back to {role.epoch}")
        self.role = role
        self._after_change()

    def _after_change(self) -> None:
        role = self.role
        state = ElectionState(role.epoch, role.leader_id, role.voted)
        if state != self._persisted:
            self._persisted = state
            self._effects.append(Persist(state))
        told = (self.leader_id, role.epoch)
        if told != self._told:
            self._told = told
            self._effects.append(LeaderChanged(*told))

    def unattach(self, now_ms: float, epoch: int, leader_id: int | None = None, *, wait: bool = False) -> None:
        """To an epoch whose leader is not known, or cannot be reached. Who was already waiting waits no longer for it,
        unless told to."""
        former = self.role
        deadline_ms = now_ms + self._election_timeout_ms()
        if not wait and isinstance(former, Unattached | Prospective | Candidate | Follower):
            deadline_ms = min(deadline_ms, max(former.deadline_ms, now_ms))
        voted = former.voted if former.epoch == epoch else None
        self._become(Unattached(epoch, deadline_ms, leader_id, voted))

    def follow(self, now_ms: float, epoch: int, leader_id: int, address: Address) -> None:
        voted = self.role.voted if self.role.epoch == epoch else None
        self.leader_high_watermark = -1
        self._become(Follower(epoch, now_ms + self.settings.fetch_timeout_ms, leader_id, address, voted))

    def become_prospective(self, now_ms: float) -> None:
        role = self.role
        is_founded = role.epoch > 0 or self.history.kraft_version > 0
        ballots = Ballots(self.voters, granted={self.me.id}, all_needed=not is_founded)
        address = role.address if isinstance(role, Follower) else None
        deadline_ms = now_ms + self._election_timeout_ms()
        self._become(Prospective(role.epoch, deadline_ms, ballots, role.leader_id, address, role.voted))

    def become_candidate(self, now_ms: float) -> None:
        ballots = Ballots(self.voters, granted={self.me.id})
        self._become(Candidate(self.epoch + 1, now_ms + self._election_timeout_ms(), ballots, self.me))

    def become_leader(self, now_ms: float, ballots: Ballots) -> None:
        granting = tuple(each.key for each in ballots.voters if each.key.id in ballots.granted)
        leader = Leader(self.epoch, self.me, self.voters, self.log.end_offset, self.settings.check_quorum_ms, granting)
        leader.start(now_ms)
        self._become(leader)
        self._effects.append(AppendLeaderChange(self.epoch, tuple(each.key for each in self.voters), granting))

    def _hear_of_history(self, now_ms: float, node_id: int, epoch: int) -> None:
        """Another voter tells a blank one how far it is."""
        founding = self.founding
        assert founding is not None
        if founding.heard(node_id, epoch):
            self._effects.append(HistoryFound(node_id, epoch))
        elif founding.is_over:
            self.founding = None
            self._effects.append(Persist(self._persisted))
            self.role = Unattached(self.epoch, now_ms + self._election_timeout_ms())

    def _learn(self, now_ms: float, leader_id: int | None, epoch: int, address: Address | None) -> None:
        """Somebody says who leads which epoch."""
        if leader_id is not None and leader_id != self.me.id and address is not None:
            self._addresses[leader_id] = address
        role = self.role
        if epoch < role.epoch:
            return
        if leader_id is None or leader_id == self.me.id:
            if epoch > role.epoch:
                self.unattach(now_ms, epoch)
            return
        if epoch == role.epoch:
            if isinstance(role, Leader | Resigned):
                raise RaftViolation(f"{leader_id} and this node both lead epoch {epoch}")
            if role.leader_id is not None and role.leader_id != leader_id:
                raise RaftViolation(f"{leader_id} and {role.leader_id} both lead epoch {epoch}")
            if isinstance(role, Follower) or (isinstance(role, Prospective) and role.leader_id is not None):
                return
        known = address or self.address_of(leader_id)
        if known is not None:
            self.follow(now_ms, epoch, leader_id, known)
        elif epoch > role.epoch or role.leader_id is None:
            self.unattach(now_ms, epoch, leader_id)

    # -- time

    def poll(self, now_ms: float) -> None:
        """Do what is due, and note in `deadline_ms` when to come back."""
        for _ in range(_ROLE_CHANGES_MAX):
            role = self.role
            self.deadline_ms = role.deadline_ms
            self._polling.poll(now_ms)
            if self.role is role:
                return
        raise RaftViolation(f"the role changes without end: {self.role}")

    def forgive_silence(self, now_ms: float, grace_ms: float) -> None:
        """This very node was stalled: what the others said meanwhile may be waiting to be read. Who is waited for gets
        a moment more. Waiting longer is always safe."""
        role = self.role
        if isinstance(role, Follower):
            role.deadline_ms = max(role.deadline_ms, now_ms + grace_ms)
        elif isinstance(role, Leader):
            role.check_quorum_deadline_ms = max(role.check_quorum_deadline_ms, now_ms + grace_ms)

    def raise_high_watermark(self, offset: int) -> None:
        if offset >= 0 and (self.high_watermark is None or offset > self.high_watermark):
            self.high_watermark = offset
            self._effects.append(HighWatermarkChanged(offset))

    # -- requests of others

    def on_vote(self, now_ms: float, vote: Vote) -> Voted:
        if not self._is_me(vote.voter):
            return Voted(ErrorCode.INVALID_VOTER_KEY, *self._leader())
        if self.founding is not None:
            if vote.epoch > 0:
                self._hear_of_history(now_ms, vote.candidate.id, vote.epoch)
            return Voted(ErrorCode.BROKER_NOT_AVAILABLE, *self._leader())
        if vote.epoch < self.epoch:
            return Voted(ErrorCode.FENCED_LEADER_EPOCH, *self._leader())
        if vote.epoch > self.epoch:
            self.unattach(now_ms, vote.epoch)
        up_to_date = (vote.last_epoch, vote.end_offset) >= (self.log.last_epoch, self.log.end_offset)
        granted = self.role.grants(vote, up_to_date=up_to_date)
        if granted and not vote.pre_vote:
            deadline_ms = now_ms + self._election_timeout_ms()
            self._become(Unattached(self.epoch, deadline_ms, None, vote.candidate))
        return Voted(ErrorCode.NONE, *self._leader(), granted)

    def on_begin_epoch(self, now_ms: float, begin: BeginQuorumEpoch) -> EpochAnswer:
        if not self._is_me(begin.voter):
            return EpochAnswer(ErrorCode.INVALID_VOTER_KEY, *self._leader())
        if self.founding is not None:
            self._hear_of_history(now_ms, begin.leader_id, begin.epoch)
            return EpochAnswer(ErrorCode.BROKER_NOT_AVAILABLE, *self._leader())
        if begin.epoch < self.epoch:
            return EpochAnswer(ErrorCode.FENCED_LEADER_EPOCH, *self._leader())
        if begin.leader_id == self.me.id or (
            begin.epoch == self.epoch and self.role.leader_id not in (None, begin.leader_id)
        ):
            return EpochAnswer(ErrorCode.INVALID_REQUEST, *self._leader())
        address = begin.endpoints[0][1] if begin.endpoints else None
        self._learn(now_ms, begin.leader_id, begin.epoch, address)
        return EpochAnswer(ErrorCode.NONE, *self._leader())

    def on_end_epoch(self, now_ms: float, end: EndQuorumEpoch) -> EpochAnswer:
        if self.founding is not None:
            self._hear_of_history(now_ms, end.leader_id, end.epoch)
            return EpochAnswer(ErrorCode.BROKER_NOT_AVAILABLE, *self._leader())
        if end.epoch < self.epoch:
            return EpochAnswer(ErrorCode.FENCED_LEADER_EPOCH, *self._leader())
        if end.leader_id == self.me.id or (
            end.epoch == self.epoch and self.role.leader_id not in (None, end.leader_id)
        ):
            return EpochAnswer(ErrorCode.INVALID_REQUEST, *self._leader())
        address = end.endpoints[0][1] if end.endpoints else None
        self._learn(now_ms, end.leader_id, end.epoch, address)
        role = self.role
        if isinstance(role, Follower) and self.is_voter:
            # The best successor goes first; the others give it a head start, and none clings to the old leader.
            role.has_fetched = False
            role.deadline_ms = now_ms + self._head_start_ms(end.candidates)
        return EpochAnswer(ErrorCode.NONE, *self._leader())

    def _head_start_ms(self, candidates: tuple[ReplicaKey, ...]) -> float:
        place = next((index for index, key in enumerate(candidates) if key.id == self.me.id), None)
        if place == 0:
            return 0.0
        backoff_ms = self.settings.retry_backoff_ms * 2.0 ** min(10, place or len(candidates) + 1)
        return min(backoff_ms, self.settings.election_backoff_max_ms) * (1 + self.random.fraction())

    def leader_only(self, epoch: int) -> ErrorCode:
        """Whether a request for the leader of this epoch is right here."""
        if epoch < self.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if epoch > self.epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        return ErrorCode.NONE if isinstance(self.role, Leader) else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def on_fetch(self, now_ms: float, fetch: Fetch) -> Fetched:
        """The answer without its records: if it is neither an error nor `diverging` nor `snapshot`, the caller puts
        in what the log has from `fetch.offset` on."""
        leader_id, epoch, address = self._leader()
        error = self.leader_only(fetch.epoch) if fetch.epoch >= 0 else self._leader_or_not()
        role = self.role
        if error is not ErrorCode.NONE or not isinstance(role, Leader):
            return Fetched(error, leader_id, epoch, leader_address=address)
        start = self.log.start_offset
        snapshot, diverging = where_logs_part(self.log, fetch.offset, fetch.last_epoch)
        if snapshot is None and diverging is None and fetch.replica.id >= 0:
            role.fetched(fetch.replica, now_ms, fetch.offset, self.log.end_offset)
            if role.update_high_watermark(self.log.flushed_offset):
                assert role.high_watermark is not None
                self.raise_high_watermark(role.high_watermark)
        return Fetched(
            error, leader_id, epoch, self.told_high_watermark, start, diverging, snapshot, leader_address=address
        )

    @property
    def told_high_watermark(self) -> int:
        """What this leader may tell of what is committed: nothing (-1) before it has committed in its own epoch. Before
        that it may know less than those that follow it, who would take its word for the newest there is."""
        role = self.role
        return role.high_watermark if isinstance(role, Leader) and role.high_watermark is not None else -1

    def _leader_or_not(self) -> ErrorCode:
        return ErrorCode.NONE if isinstance(self.role, Leader) else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def heard_from(self, now_ms: float, key: ReplicaKey) -> None:
        """A voter fetches a snapshot: it is alive, and listens."""
        if isinstance(self.role, Leader) and key in self.voters:
            progress = self.role.progress_of(key)
            self.role.fetched(key, now_ms, -1 if progress is None else progress.end_offset, self.log.end_offset)

    # -- answers to ours

    def pause_fetching(self, now_ms: float) -> None:
        """What the leader sent could not be used: do not ask for the same again at once."""
        if isinstance(self.role, Follower):
            self._links.pause(self.role.leader_id, Fetch, now_ms + self.settings.retry_backoff_ms)

    def on_failure(self, now_ms: float, send: Send) -> None:
        """No answer: the connection failed, or time ran out."""
        self._links.on_end(send, now_ms + self.settings.retry_backoff_ms)

    def on_answer(self, now_ms: float, send: Send, answer: Answer) -> None:
        is_refused = answer.error is not ErrorCode.NONE
        self._links.on_end(send, now_ms + self.settings.retry_backoff_ms if is_refused else None)
        if self.founding is not None:
            if answer.epoch > 0 or (answer.epoch == 0 and answer.error is ErrorCode.NOT_LEADER_OR_FOLLOWER):
                self._hear_of_history(now_ms, send.node_id, answer.epoch)
            return
        self._learn(now_ms, answer.leader_id, answer.epoch, answer.leader_address)
        request = send.request
        if isinstance(answer, Voted) and isinstance(request, Vote):
            self._on_voted(send.node_id, request, answer)
        elif isinstance(answer, EpochAnswer) and isinstance(request, EndQuorumEpoch):
            if isinstance(self.role, Resigned) and self.role.epoch == request.epoch:
                self.role.told.add(send.node_id)
        elif isinstance(answer, Fetched) and isinstance(request, Fetch):
            self._on_fetched(now_ms, request, answer)
        elif isinstance(answer, FetchedSnapshot) and isinstance(request, FetchSnapshot):
            self._on_fetched_snapshot(now_ms, request, answer)

    def _on_voted(self, node_id: int, request: Vote, answer: Voted) -> None:
        role = self.role
        asked = Prospective if request.pre_vote else Candidate
        if isinstance(role, asked) and role.epoch == request.epoch and answer.error is ErrorCode.NONE:
            role.ballots.note(node_id, granted=answer.granted)

    def _on_fetched(self, now_ms: float, request: Fetch, answer: Fetched) -> None:
        role = self.role
        log = self.log
        if answer.error is not ErrorCode.NONE or not isinstance(role, Follower) or role.epoch != request.epoch:
            return
        if role.snapshot is not None or (request.offset, request.last_epoch) != (log.end_offset, log.last_epoch):
            return
        role.deadline_ms = now_ms + self.settings.fetch_timeout_ms
        role.has_fetched = True
        if answer.diverging is not None:
            self._truncate(*answer.diverging)
        elif answer.snapshot is not None:
            role.snapshot, role.snapshot_position = answer.snapshot, 0
        else:
            self.leader_high_watermark = max(self.leader_high_watermark, answer.high_watermark)
            if len(answer.records):
                self._effects.append(Append(answer.records, role.epoch))

    def _truncate(self, epoch: int, end_offset: int) -> None:
        """The leader's log parts from ours after `epoch`, which ends there at `end_offset`."""
        known_epoch, known_end = self.log.end_offset_for(epoch)
        offset = min(known_end, end_offset) if known_epoch == epoch else min(known_end, self.log.end_offset)
        if self.high_watermark is not None and offset < self.high_watermark:
            raise RaftViolation(
                f"the leader asks to truncate the log to {offset}, below high watermark {self.high_watermark}"
            )
        self._effects.append(Truncate(offset))

    def _on_fetched_snapshot(self, now_ms: float, request: FetchSnapshot, answer: FetchedSnapshot) -> None:
        role = self.role
        if not isinstance(role, Follower) or role.epoch != request.epoch or role.snapshot != request.snapshot:
            return
        if answer.error is not ErrorCode.NONE:
            if answer.error in (ErrorCode.SNAPSHOT_NOT_FOUND, ErrorCode.POSITION_OUT_OF_RANGE):
                role.snapshot = None  # it has a newer one by now: the next fetch will name it
            return
        role.deadline_ms = now_ms + self.settings.fetch_timeout_ms
        if answer.position != role.snapshot_position or request.position != role.snapshot_position:
            return
        self._effects.append(SnapshotChunk(role.snapshot, answer.position, answer.data))
        role.snapshot_position += len(answer.data)
        if role.snapshot_position >= answer.size:
            snapshot, role.snapshot = role.snapshot, None
            self._effects.append(InstallSnapshot(snapshot))

    def on_installed(self, snapshot: SnapshotId) -> None:
        """It was found whole, and the log starts after it."""
        self.raise_high_watermark(snapshot.end_offset)

    def on_damaged_snapshot(self, now_ms: float) -> None:
        """It was not: the log stays as it is, and the next fetch will be told of a snapshot again, after a pause."""
        if isinstance(self.role, Follower):
            self._links.pause(self.role.leader_id, Fetch, now_ms + self.settings.fetch_timeout_ms / 2)

    # -- small things

    def _leader(self) -> tuple[int | None, int, Address | None]:
        return self.leader_id, self.epoch, self.leader_address

    def _is_me(self, key: ReplicaKey) -> bool:
        """Whether a request is meant for this replica; old versions do not say."""
        return key.id in (NO_NODE, self.me.id) and key.directory_id in (ZERO_UUID, self.me.directory_id)

    def address_of(self, node_id: int) -> Address | None:
        return self.voters.address(node_id) or self._addresses.get(node_id)

    def _election_timeout_ms(self) -> float:
        return self.settings.election_timeout_ms * (1 + self.random.fraction())

    def wake_at(self, at_ms: float) -> None:
        self.deadline_ms = min(self.deadline_ms, at_ms)

    def send(self, now_ms: float, node_id: int, address: Address, request: Request) -> bool:
        """Unless one of its kind is under way, or failed just now."""
        send = Send(node_id, address, request)
        may_begin_ms = self._links.begin(send, now_ms)
        if may_begin_ms is None:
            self._effects.append(send)
            return True
        self.wake_at(may_begin_ms)
        return False
