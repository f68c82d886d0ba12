"""How fixed voters (kraft.version 0) begin a quorum out of nothing, and why one that lost its disk cannot rejoin it.

A voter without any history ("blank": no log, no snapshot, no `quorum-state`) may be new, or may have forgotten votes it
gave and records it acknowledged; nothing in its folder tells which. Electing a leader with such votes loses what was
committed. So:

1. A blank voter votes for nobody, asks for no votes and follows nobody. It asks all other voters how far they are. As
   soon as one of them is in an epoch above 0, there is a history that this voter may have been part of: it gives up
   (`HistoryFound`), and people decide.
2. When every other voter has said that it is in epoch 0, nobody can have promised anything. The voter writes that down
   (`quorum-state` of epoch 0), and is blank no more.
3. Nobody leaves epoch 0 before all voters have done so: its pre-vote must be unanimous, and who is blank does not
   answer it. So no voter that is merely late finds a history and gives up.

From epoch 1 on majorities decide, as always. A founding therefore needs all voters at once; nothing else does.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from moldau.raft.voters import VoterSet


@dataclass(slots=True)
class Founding:
    """Of a blank voter: who has said that it has no history either."""

    me: int
    voters: VoterSet
    without_history: set[int] = field(default_factory=set)
    # (node, epoch) of the first that has one.
    history: tuple[int, int] | None = None

    def missing(self) -> list[int]:
        """Voters that have not said anything yet."""
        ids = (each.key.id for each in self.voters)
        return [each for each in ids if each != self.me and each not in self.without_history]

    def heard(self, node_id: int, epoch: int) -> bool:
        """Whether this was the first word of a history."""
        if epoch > 0:
            first = self.history is None
            self.history = self.history or (node_id, epoch)
            return first
        self.without_history.add(node_id)
        return False

    @property
    def is_over(self) -> bool:
        return self.history is None and not self.missing()
