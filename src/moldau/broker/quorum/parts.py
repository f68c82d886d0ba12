"""What others may ask of the quorum's room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from moldau.broker.quorum.quorum import MetadataQuorum


class HasQuorum(Protocol):
    @property
    def metadata_log(self) -> MetadataQuorum: ...
