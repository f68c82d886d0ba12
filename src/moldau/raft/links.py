"""What is under way between this replica and others: one request of a kind to a node at a time, and a pause after one
that failed."""

from __future__ import annotations

from dataclasses import dataclass

from moldau.raft.effects import Send
from moldau.raft.roles import NEVER


@dataclass(slots=True)
class _Link:
    """One kind of request to one node."""

    is_in_flight: bool = False
    not_before_ms: float = 0.0


class Links:
    """As many as there are nodes and kinds of requests: voters, the leader, and whoever else may know of one."""

    __slots__ = ("_links",)

    def __init__(self) -> None:
        self._links: dict[tuple[int, type], _Link] = {}

    def begin(self, send: Send, now_ms: float) -> float | None:
        """None if it may go now, and is under way from now on; else when to try again."""
        link = self._link(send.node_id, type(send.request))
        if link.is_in_flight:
            return NEVER
        if now_ms < link.not_before_ms:
            return link.not_before_ms
        link.is_in_flight = True
        return None

    def on_end(self, send: Send, not_before_ms: float | None) -> None:
        """It was answered, or failed; if it is to be repeated, then not before."""
        link = self._link(send.node_id, type(send.request))
        link.is_in_flight = False
        if not_before_ms is not None:
            link.not_before_ms = not_before_ms

    def pause(self, node_id: int, kind: type, until_ms: float) -> None:
        self._link(node_id, kind).not_before_ms = until_ms

    def _link(self, node_id: int, kind: type) -> _Link:
        link = self._links.get((node_id, kind))
        if link is None:
            link = self._links[node_id, kind] = _Link()
        return link
