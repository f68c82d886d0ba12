"""What can go wrong with record batches: one small tree, so that a caller catches `RecordsError` and nothing else.

Invariant: whatever bytes come in, only these exceptions come out.
"""

from collections.abc import Sequence
from typing import NamedTuple


class RecordsError(Exception):
    """Bytes that are not what Kafka's record format says they should be, or that we refuse to expand."""


class CorruptBatch(RecordsError):
    """The bytes cannot be a record batch: length, magic, checksum, varint or count contradict each other."""


class UnsupportedCompression(RecordsError):
    """The batch names a compression type that does not exist."""


class DecompressedTooLarge(RecordsError):
    """The batch expands to more bytes than the caller allowed."""


class RecordError(NamedTuple):
    """One bad record of a batch, as Produce responses list them."""

    batch_index: int
    message: str


class InvalidRecord(RecordsError):
    """A well-formed batch whose content breaks a rule of the topic or of the protocol (Kafka's INVALID_RECORD)."""

    def __init__(self, message: str, record_errors: Sequence[RecordError] = ()) -> None:
        super().__init__(message)
        self.record_errors = tuple(record_errors)


class InvalidTimestamp(InvalidRecord):
    """A record's create time is outside of what the topic accepts (Kafka's INVALID_TIMESTAMP)."""
