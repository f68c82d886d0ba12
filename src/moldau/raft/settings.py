"""How long a replica waits for what, and what it does not survive."""

from __future__ import annotations

from typing import NamedTuple


class RaftViolation(AssertionError):
    """Something happened that the protocol excludes: the node must stop rather than go on with a wrong log."""


class RaftSettings(NamedTuple):
    """The `controller.quorum.*` settings."""

    election_timeout_ms: int = 1000
    fetch_timeout_ms: int = 2000
    election_backoff_max_ms: int = 1000
    retry_backoff_ms: int = 20

    @property
    def check_quorum_ms(self) -> float:
        """A little longer than followers wait: they should be the first to notice that they are cut off."""
        return self.fetch_timeout_ms * 1.5

    @property
    def begin_epoch_interval_ms(self) -> float:
        return self.fetch_timeout_ms / 2
