"""The two images of a node: with all that is committed, and, on the active controller, with all that it appended.

Invariants
- `committed` never runs ahead of what a majority has flushed; it is what the node shows and acts on.
- `latest` is `committed` and what was appended since; the next command is decided on it. It falls back to `committed`
  when another node leads.
- Each step of `committed` is published once, in order, before anybody who waited for it is told.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from moldau.broker.quorum.appends import PendingAppend
from moldau.broker.quorum.metadata_log import QuorumLog
from moldau.broker.quorum.snapshots import SnapshotKeeper
from moldau.controller.delta import ImageDelta
from moldau.controller.fold import apply
from moldau.controller.image import EMPTY_IMAGE, ClusterImage

_log = logging.getLogger(__name__)
Publish = Callable[[ClusterImage, ClusterImage, ImageDelta | None], None]
"""`publish(before, after, delta)`; the delta is None unless it is known already."""


class MetadataImages:
    """Belongs to the event loop. Nothing is published before `show_from_now_on`."""

    __slots__ = ("_is_shown", "_publish", "_snapshots", "applied", "committed", "latest")

    def __init__(self, publish: Publish, snapshots: SnapshotKeeper) -> None:
        self._publish = publish
        self._snapshots = snapshots
        self._is_shown = False
        self.latest = EMPTY_IMAGE
        self.committed = EMPTY_IMAGE
        self.applied = 0  # records below are in `committed`

    def show_from_now_on(self) -> None:
        """The node has begun with `committed`; it wants to hear of what comes after."""
        self._is_shown = True

    def replace(self, image: ClusterImage, end_offset: int) -> None:
        """A snapshot stands for all that came before it."""
        self.applied = end_offset
        self.latest = image
        self._show(image, None)

    def forget_uncommitted(self) -> None:
        self.latest = self.committed

    def commit(self, pending: PendingAppend) -> None:
        """What this node appended as leader is committed; whoever waits for it is told when it was acted upon."""
        prepared, done = pending.prepared, pending.done
        self.applied = pending.last_offset + 1
        self._snapshots.committed(len(prepared.batch), prepared.ground.wall_ms)
        failure = self._show(prepared.image, prepared.delta if prepared.ground.image is self.committed else None)
        if not self._is_shown or done.done():
            return
        if failure is None:
            done.set_result(None)
        else:
            done.set_exception(failure)
            done.exception()  # nobody may be waiting any more

    def commit_control(self, offset: int) -> None:
        """Control records of this leader are committed below `offset`; they change no image."""
        self.applied = max(self.applied, offset)

    def replay(self, files: QuorumLog, offset: int) -> None:
        """What another node appended is committed below `offset`, and in our log."""
        image = self.committed
        for records, header in files.replay(self.applied, offset):
            image = apply(image, records, offset=header.last_offset, epoch=header.leader_epoch)
            self.applied = header.next_offset
            self._snapshots.committed(header.size_bytes, header.max_timestamp)
        self.latest = image
        if image is not self.committed:
            self._show(image, None)

    def _show(self, image: ClusterImage, delta: ImageDelta | None) -> Exception | None:
        """What went wrong where it was acted upon, which is logged: the image counts all the same."""
        before, self.committed = self.committed, image
        if not self._is_shown:
            return None
        try:
            self._publish(before, image, delta)
        except Exception as error:
            _log.exception("acting on the metadata up to offset %s failed", image.offset)
            return error
        return None
