"""What can go wrong with a log: one small tree, each leaf carrying the Kafka error code a client is told.

Invariant: whatever a caller or a disk does, a public method of this room raises only these (or a programming error).
`record_errors` names the records to blame, for the answer to a Produce request (KIP-467).
"""


class LogError(Exception):
    """The base: `code` is Kafka's error code."""

    code = -1

    def __init__(self, message: str, record_errors: tuple[tuple[int, str], ...] = ()) -> None:
        super().__init__(message)
        self.record_errors = record_errors


class OffsetOutOfRange(LogError):
    code = 1


class CorruptRecord(LogError):
    code = 2


class RecordTooLarge(LogError):
    code = 10


class RecordListTooLarge(LogError):
    """The batch does not fit into a segment."""

    code = 18


class InvalidTimestamp(LogError):
    code = 32


class OutOfOrderSequence(LogError):
    code = 45


class InvalidProducerEpoch(LogError):
    code = 47


class InvalidTxnState(LogError):
    code = 48


class TransactionCoordinatorFenced(LogError):
    code = 52


class StorageError(LogError):
    """The disk failed; the partition's log dir is offline until the node restarts."""

    code = 56


class OutOfDescriptors(StorageError):
    """No file could be opened because the process has too many open. Nothing is offline: try again."""


class UnsupportedCompressionType(LogError):
    code = 76


class InvalidRecord(LogError):
    code = 87


class NotOneBatch(InvalidRecord):
    """What was produced is not one whole batch of format v2: refused before the log is looked at."""


class UnexpectedAppendOffset(LogError):
    """A follower was given batches that do not continue its log."""

    code = -1

    def __init__(self, message: str, first_offset: int, last_offset: int) -> None:
        super().__init__(message)
        self.first_offset = first_offset
        self.last_offset = last_offset


class DirLocked(LogError):
    """Another process uses the log dir."""


class CorruptIndex(LogError):
    """An index contradicts its log. Never leaves the room: the index is rebuilt."""


class CorruptSnapshot(LogError):
    """A producer snapshot cannot be read. Never leaves the room: an older one and the log take its place."""


class CorruptCheckpoint(LogError):
    """A checkpoint file cannot be read. Never leaves the room: the log is scanned instead."""


class IncarnationOver(LogError):
    """A job came too late: its log was deleted, truncated, moved or let go meanwhile. Never leaves the room."""


class CleaningAborted(LogError):
    """The cleaner was told to stop. Never leaves the room."""
