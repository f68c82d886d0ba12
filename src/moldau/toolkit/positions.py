"""Where a partition that was just assigned is read from, so that nothing made later is missed (C5).

With `latest`, plain clients begin a partition without a commit at its end, and what was sent to a new partition before
the group heard of it is lost. Here a group notes its anchor beside its commits: how many partitions the topic had when
it first subscribed, and when. So a partition is known to be newer, and is read from its beginning. One that is as old
as the anchor and was never committed (its first reader died at once) is read from the anchor's time.

Invariant: the first assignment commits where it began before anything is read, so "no commit" is never ambiguous.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from moldau.toolkit import offset_map
from moldau.toolkit.offset_map import Anchor, Noted
from moldau.toolkit.scheduler import Where

Reset = Literal["earliest", "latest"]


class Cluster(Protocol):
    """What must be asked of a cluster; all of it may block."""

    def partition_count(self, topic: str) -> int: ...

    def committed(self, wheres: Iterable[Where]) -> Mapping[Where, tuple[int, str | None]]: ...

    def offsets_at(self, when: Mapping[Where, int]) -> Mapping[Where, int]:
        """Offsets by time in ms; -1 is the end, -2 the beginning. A time nothing is newer than gives the end."""


@dataclass(slots=True, frozen=True)
class Start:
    """The first offset to read, what beyond it is finished, and whether to commit it before reading."""

    where: Where
    offset: int
    noted: Noted
    is_first: bool = False


BEGINNING, END = -2, -1


def starting_points(
    cluster: Cluster, wheres: Iterable[Where], reset: Reset, known_topics: frozenset[str], now_wall_ms: int
) -> list[Start]:
    """`known_topics` are those that were there when the app started; a topic that came later is read from its start."""
    by_topic: dict[str, list[Where]] = defaultdict(list)
    for where in wheres:
        by_topic[where[0]].append(where)
    starts: list[Start] = []
    for topic, mine in by_topic.items():
        commits = cluster.committed(mine)
        missing = [where for where in mine if where not in commits]
        starts += [Start(where, offset, offset_map.decode(offset, text)) for where, (offset, text) in commits.items()]
        if missing:
            starts += _first_starts(cluster, topic, missing, reset, topic in known_topics, now_wall_ms)
    return starts


def _first_starts(
    cluster: Cluster, topic: str, missing: list[Where], reset: Reset, is_known: bool, now_wall_ms: int
) -> list[Start]:
    count = cluster.partition_count(topic)
    commits = cluster.committed([(topic, index) for index in range(count)])
    anchors = [anchor for told in commits.values() if (anchor := offset_map.decode(*told).anchor) is not None]
    anchor = min(anchors, key=lambda each: (each.partitions, each.wall_ms)) if anchors else None
    when = {where: _when(where[1], reset, anchor, is_known, bool(commits)) for where in missing}
    offsets = cluster.offsets_at(when)
    note = Noted((), anchor or Anchor(count, now_wall_ms))
    return [Start(where, offsets[where], note, is_first=True) for where in missing]


def _when(partition: int, reset: Reset, anchor: Anchor | None, is_known: bool, has_commits: bool) -> int:
    if reset == "earliest" or not is_known:
        return BEGINNING
    if anchor is not None:
        return BEGINNING if partition >= anchor.partitions else anchor.wall_ms
    # A group that others used before left no anchor: better to read too much than to miss something.
    return BEGINNING if has_commits else END
