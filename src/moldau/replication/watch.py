"""What changed for a follower since its last fetch, so that partitions at rest cost nothing.

A follower's fetch session covers all partitions it follows here, and most of them are at rest: the follower has
everything and knows everything. The leader keeps the others, and looks at no more than those when the next fetch comes.

Invariants
- A partition that is not in `changed` is at rest: the follower's log ends where the leader's ends, it is in sync, and
  it has been told the high watermark. So it was caught up, whatever it was asked about, at `last_fetch_ms`.
- Now and then everything is looked at (`is_time_for_all`): what nobody reported, such as a new log start, is seen then.
"""

from dataclasses import dataclass, field

_LOOK_AT_ALL_MS = 1_000.0

Key = tuple[bytes, int]  # topic id, partition


@dataclass(slots=True)
class FollowerWatch:
    """One fetch session of a follower."""

    # In the order in which they are served.
    changed: dict[Key, None] = field(default_factory=dict)
    last_fetch_ms: float = float("-inf")
    # Whether a fetch that waits should be answered: there are records, or the partition is no longer led here.
    is_due: bool = False
    # Whether a new high watermark is reason enough, since consumers read from the follower.
    wants_marks: bool = False
    _looked_at_all_ms: float = float("-inf")

    def is_time_for_all(self, now_ms: float) -> bool:
        if now_ms - self._looked_at_all_ms < _LOOK_AT_ALL_MS:
            return False
        self._looked_at_all_ms = now_ms
        return True
