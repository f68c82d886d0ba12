"""When a record was made that lies on another broker: its leader is asked for the batch it is in.

Batches are much larger than the eight bytes that are wanted of them, so one answer is remembered as long as somebody
waits at the same record, and what a scrape may fetch is bounded: groups that are asked about for the first time may be
told at the next scrape.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from moldau.broker.channels import UnsupportedVersion
from moldau.records.batch import HEADER_BYTES, read_header
from moldau.records.errors import CorruptBatch
from moldau.seams.disk import FileRegion
from moldau.seams.network import Disconnected, RequestTimedOut
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.parts import HasImage, HasPeers
    from moldau.wire.fetch import FetchedFrame, FetchedPartition

    class Needs(HasImage, HasPeers, Protocol):
        """What this file may touch."""


_ASK_MS = 1_000.0
_ROUNDS_MAX = 4
_ANSWER_BYTES = 1 << 20
_BATCH_BYTES = 1 << 16  # larger ones come one by one: a broker gives the first of an answer whole, however large


class Unread(NamedTuple):
    """The first record a group has not read, of those that are there."""

    topic: str
    partition: int
    offset: int


class AgesElsewhere:
    """What was learnt, from scrape to scrape."""

    def __init__(self) -> None:
        self._made_ms: dict[Unread, int] = {}

    async def ask(self, broker: Needs, wanted: Iterable[tuple[int, Unread]]) -> dict[Unread, int]:
        """When those were made, by leader and place; without those that nobody could tell."""
        places = list(wanted)
        self._made_ms = {place: self._made_ms[place] for _, place in places if place in self._made_ms}
        missing: dict[int, set[Unread]] = {}
        for leader, place in places:
            if place not in self._made_ms:
                missing.setdefault(leader, set()).add(place)
        await asyncio.gather(*(self._ask_leader(broker, leader, each) for leader, each in missing.items()))
        return self._made_ms

    async def _ask_leader(self, broker: Needs, leader: int, missing: set[Unread]) -> None:
        endpoint = broker.endpoint_of(leader)
        if endpoint is None:
            return
        for _ in range(_ROUNDS_MAX):
            # A partition may stand in a request once, and groups wait at several of its records.
            turn = {(place.topic, place.partition): place for place in sorted(missing, reverse=True)}
            request = _request(broker, turn.values())
            if not request.topics:
                return
            try:
                frame = await broker.channels.call(*endpoint, request, timeout_ms=_ASK_MS, lane="metrics")
            except (Disconnected, RequestTimedOut, UnsupportedVersion):
                return
            if not self._take(broker, frame, turn, missing):
                return

    def _take(
        self, broker: Needs, frame: FetchedFrame, turn: dict[tuple[str, int], Unread], missing: set[Unread]
    ) -> bool:
        """Whether there is anything left to ask, and asking helps."""
        left = len(missing)
        for topic, partitions in frame.topics:
            name = topic if isinstance(topic, str) else broker.image.topic_names.get(topic, "")
            for each in partitions:
                place = turn.get((name, each.partition))
                made_ms = _made_ms(each)
                if place is None:
                    continue
                if made_ms is not None:
                    self._made_ms[place] = made_ms
                if made_ms is not None or each.error_code:  # an error: moved, cut off or gone meanwhile
                    missing.discard(place)
        return 0 < len(missing) < left


def _request(broker: Needs, places: Iterable[Unread]) -> m.FetchRequest:
    kind = m.FetchRequest
    topics: dict[str, list[m.FetchRequest.FetchPartition]] = {}
    for place in places:
        asked = kind.FetchPartition(
            place.partition,
            current_leader_epoch=-1,
            fetch_offset=place.offset,
            last_fetched_epoch=-1,
            log_start_offset=-1,
            partition_max_bytes=_BATCH_BYTES,
        )
        topics.setdefault(place.topic, []).append(asked)
    images = broker.image.topics
    return kind(
        replica_id=-1,
        replica_state=kind.ReplicaState(-1, -1),
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=_ANSWER_BYTES,
        session_id=0,
        session_epoch=-1,
        topics=[
            kind.FetchTopic(topic=name, topic_id=images[name].topic_id, partitions=each)
            for name, each in topics.items()
            if name in images
        ],
    )


def _made_ms(answer: FetchedPartition) -> int | None:
    head = b""
    for each in answer.records:
        if isinstance(each, FileRegion):
            return None  # what came over a socket is none
        head += bytes(each[: HEADER_BYTES - len(head)])
    try:
        return read_header(head).base_timestamp if len(head) == HEADER_BYTES else None
    except CorruptBatch:
        return None
