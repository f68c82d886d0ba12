"""A query's progress as committed offsets of a consumer group, so that every lag tool sees it.

It is for show: Spark reads its own checkpoint. So whatever goes wrong here is said once and never stops a query.
"""

import logging
import time

from moldau.client.cluster import Cluster, PartitionOffsets
from moldau.client.connection import ClientError
from moldau.client.sasl import AuthenticationFailed

_log = logging.getLogger(__name__)
_PAUSE_SECONDS = 30.0


class GroupProgress:
    """Publishes to one group."""

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id
        self._published: PartitionOffsets = {}
        self._not_before = 0.0
        self._has_warned = False

    def publish(self, cluster: Cluster, offsets: PartitionOffsets) -> None:
        """Commit what changed since the last time."""
        changed = {each: offset for each, offset in offsets.items() if self._published.get(each) != offset}
        if not changed or time.monotonic() < self._not_before:
            return
        try:
            cluster.commit(self._group_id, changed)
        except (ClientError, AuthenticationFailed) as error:
            self._not_before = time.monotonic() + _PAUSE_SECONDS
            if not self._has_warned:
                self._has_warned = True
                _log.warning("progress is not shown as group %s (set publishProgress=false): %s", self._group_id, error)
        else:
            self._published = dict(offsets)
