"""What can go wrong with record batches: one small tree, so that a caller catches `RecordsError` and nothing else.

Invariant: whatever bytes come in, only these exceptions come out.
"""


class RecordsError(Exception):
    """Bytes that are not what Kafka's record format says they should be, or that we refuse to expand."""


class CorruptBatch(RecordsError):
    """The bytes cannot be a record batch: length, magic, checksum, varint or count contradict each other."""


class UnsupportedCompression(RecordsError):
    """The batch names a compression type that does not exist."""


class DecompressedTooLarge(RecordsError):
    """The batch expands to more bytes than the caller allowed."""


class InvalidRecord(RecordsError):
    """Records that cannot be put into one batch."""
