"""A follower's decisions: what to do with the leader's answer, and where to truncate its log.

The leader says where the histories part (a diverging epoch), the follower truncates there and asks again. It never
truncates at its high watermark: that lags behind the leader's, so records that are committed would go (KIP-101, where a
leader dies right after), or stay although others were written in their place (KIP-101's second case, KIP-279).

Invariant: whatever a follower keeps below that offset is the same, batch by batch, as in the leader's log.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from moldau.wire.errors import ErrorCode

UNDEFINED_EPOCH = -1
_FIRST_BACKOFF_MS = 10.0


class EpochHistory(Protocol):
    """Which leader epoch wrote which offsets (`moldau.log.epoch_cache`)."""

    @property
    def latest(self) -> int:
        """The last epoch, or UNDEFINED_EPOCH."""

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest epoch up to this one, and where it ends; both undefined (-1) if there is none."""


class Next(Enum):
    """What to do about one partition of a fetch response."""

    APPEND = auto()
    TRUNCATE = auto()
    # The offset asked for is not in the leader's log: ask it for its bounds (`resume_offset`).
    FIND_OFFSET = auto()
    # Its leader or its topic is not known there yet, or something failed: again after a pause.
    BACK_OFF = auto()
    # This epoch is over. The image will say who leads the next.
    STOP = auto()


@dataclass(slots=True)
class FollowedPartition:
    """Where a follower is in one partition's log."""

    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    # How far behind the leader's high watermark; None before the first answer.
    lag: int | None = None
    ready_at_ms: float = float("-inf")
    refusals: int = 0  # since the leader last answered with what was asked for

    @property
    def is_in_sync(self) -> bool:
        return self.lag is not None and self.lag <= 0

    def refused(self, now_ms: float, backoff_ms: float) -> None:
        """Set it aside. Not for long at first: the leader may just not have heard yet that it is the leader."""
        pause_ms = min(backoff_ms, _FIRST_BACKOFF_MS * 2**self.refusals)
        if pause_ms < backoff_ms:
            self.refusals += 1
        self.ready_at_ms = now_ms + pause_ms


def decide(error_code: int, diverging_epoch: tuple[int, int] | None) -> Next:
    """Sort out the answer for one partition."""
    if error_code == ErrorCode.NONE:
        return Next.APPEND if diverging_epoch is None else Next.TRUNCATE
    if error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        return Next.FIND_OFFSET
    if error_code == ErrorCode.FENCED_LEADER_EPOCH:
        return Next.STOP
    return Next.BACK_OFF


def truncation_offset(diverging_epoch: tuple[int, int], history: EpochHistory, log_end_offset: int) -> int:
    """Where to truncate, when the leader says: in my log this epoch, the last up to yours, ends here.

    If the follower has that epoch, the two agree up to the smaller of its ends. If not, they may part earlier still:
    it truncates to the end of an older epoch, and the next fetch, naming that epoch, tells more.
    """
    leader_epoch, leader_end_offset = diverging_epoch
    epoch, end_offset = history.end_offset_for(leader_epoch, log_end_offset)
    if epoch == UNDEFINED_EPOCH:
        # All its epochs are younger. What it has from them was not written by this leader's predecessors.
        return min(leader_end_offset, log_end_offset)
    if epoch != leader_epoch:
        return min(end_offset, log_end_offset)
    return min(end_offset, leader_end_offset, log_end_offset)


@dataclass(slots=True, frozen=True)
class Resume:
    """Where to go on after OFFSET_OUT_OF_RANGE."""

    offset: int
    # Throw the whole log away: the leader has nothing that continues it.
    start_over: bool


def resume_offset(log_end_offset: int, leader_start_offset: int, leader_end_offset: int) -> Resume:
    """The leader's log ends before ours (an unclean election: what it lacks is lost), or begins after."""
    if leader_end_offset < log_end_offset:
        return Resume(max(leader_end_offset, 0), start_over=leader_end_offset < leader_start_offset)
    if leader_start_offset > log_end_offset:
        return Resume(leader_start_offset, start_over=True)
    return Resume(log_end_offset, start_over=False)


def follower_high_watermark(own: int, leaders: int, log_end_offset: int) -> int:
    """What the leader says, as far as this log goes; never back: below its own, everything is committed.

    (A new leader may know a smaller one for a moment. Readers of this replica must not see that.)
    """
    return min(max(own, leaders), log_end_offset)
