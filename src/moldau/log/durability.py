"""How much of a log is on the disk for good, and what must be flushed to make it more.

`flushed_offset` counts records that survive a power loss. Segments before `flush_from` are on the disk with all their
files; of the active one only the records are flushed, because recovery rebuilds its indexes anyway.

Invariant: nothing counts as durable before a flush that did everything for it is over. So beginning a flush forgets
nothing: what has changed is counted (names in the folder, the folder itself, the epochs), a flush notes the counts it
began with, and only its end says that these are durable. Flushes may overlap and end in any order; one that fails, or
is overtaken by a truncation, leaves all of its work to the next.
"""

from moldau.log.checkpoints import PARTITION_METADATA
from moldau.log.epoch_cache import EpochCache
from moldau.log.flush import Changes, FlushTicket
from moldau.log.incarnation import Incarnation
from moldau.log.producers.snapshots import Snapshots
from moldau.log.segment import LOG_SUFFIX, SUFFIXES, TXN_INDEX_SUFFIX
from moldau.log.segments import Segments

_RECORDS_ONLY = (LOG_SUFFIX, TXN_INDEX_SUFFIX)


class Durability:
    __slots__ = (
        "_folder",
        "_names",
        "_was_truncated",
        "flush_from",
        "flushed_offset",
        "last_flush_ms",
        "lowest_truncation",
    )

    def __init__(self, flushed_offset: int, flush_from: int, now_ms: int, *, names_durable: bool) -> None:
        """`names_durable`: the log was shut down cleanly. Else nobody knows what of the folder was ever flushed, its
        own name included: that it is there tells only that the machine has not lost power since."""
        self.flushed_offset = flushed_offset
        self.flush_from = flush_from
        self.last_flush_ms = now_ms
        self._names = Changes(durable=names_durable)  # of files in the folder
        self._folder = Changes(durable=names_durable)  # the folder's own name, and whose it is
        self.lowest_truncation: int | None = None  # since somebody asked; see `PartitionLog.take_truncation`
        self._was_truncated = False

    @property
    def names_changed(self) -> bool:
        """Whether files were created or renamed since the folder was last flushed."""
        return not self._names.are_durable

    def change_names(self) -> None:
        """A file of the folder was created, renamed or removed."""
        self._names.add()

    def change_identity(self) -> None:
        """The folder learnt whose it is."""
        self._names.add()
        self._folder.add()

    def recovery_point(self, segments: Segments, log_end_offset: int) -> int:
        """What may be checkpointed: everything below needs no look after a crash, not even at its indexes."""
        if self.flush_from < segments.active.base_offset:
            end_offset = segments.end_of(segments.holding(self.flush_from), log_end_offset)
            return min(self.flushed_offset, end_offset - 1)
        return self.flushed_offset

    def begin_flush(
        self,
        segments: Segments,
        snapshots: Snapshots,
        epochs: EpochCache,
        log_end_offset: int,
        incarnation: Incarnation,
        *,
        everything: bool,
    ) -> FlushTicket:
        """The files to fsync and then the folders. Changes from here on are for the next flush."""
        files = []
        for segment in segments.from_offset(self.flush_from):
            if not segment.size and not self._was_truncated:
                continue  # its files were always empty: their names, which go with the folder, say everything
            kinds = SUFFIXES if everything or segment is not segments.active else _RECORDS_ONLY
            files += [segment.path(kind) for kind in kinds if kind != TXN_INDEX_SUFFIX or segment.txn_index.exists]
        files += [snapshots.path(offset) for offset in snapshots.offsets if offset >= self.flush_from]
        folders = []
        if epochs.dirty:
            files.append(epochs.path)
        if self.names_changed or epochs.dirty:
            folders.append(segments.folder)
        if not self._folder.are_durable:
            files.append(f"{segments.folder}/{PARTITION_METADATA}")
            folders.append(segments.folder.rpartition("/")[0])
        return FlushTicket(
            files,
            folders,
            log_end_offset,
            segments.active.base_offset,
            incarnation,
            self._names.count,
            self._folder.count,
            epochs.changes.count,
        )

    def end_flush(self, ticket: FlushTicket, epochs: EpochCache, now_ms: int) -> None:
        """Everything on the ticket is done. It counts unless the log was truncated or deleted meanwhile."""
        if ticket.incarnation.is_over:
            return
        self.flushed_offset = max(self.flushed_offset, ticket.end_offset)
        self.flush_from = max(self.flush_from, ticket.active_base_offset)
        self._names.flushed(ticket.names)
        self._folder.flushed(ticket.folder)
        epochs.changes.flushed(ticket.epochs)
        self.last_flush_ms = now_ms

    def truncate_at(self, offset: int, segments: Segments) -> bool:
        """The log is about to be truncated; whether that lowers the recovery point."""
        self.lowest_truncation = offset if self.lowest_truncation is None else min(self.lowest_truncation, offset)
        self._was_truncated = True
        self.change_names()
        if offset >= self.flushed_offset:
            return False
        self.flushed_offset = offset
        self.flush_from = min(self.flush_from, segments.holding(offset).base_offset)
        return True

    def start_over(self, offset: int) -> None:
        """Nothing of before is left, and the log goes on at `offset`."""
        self.lowest_truncation = 0  # whatever `offset` is
        self.flush_from = offset
        self.flushed_offset = offset
