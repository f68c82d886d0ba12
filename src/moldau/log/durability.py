"""How much of a log is on the disk for good, and what must be flushed to make it more.

`flushed_offset` counts records that survive a power loss. Segments before `flush_from` are on the disk with all their
files; of the active one only the records are flushed, because recovery rebuilds its indexes anyway.
"""

from moldau.log.checkpoints import PARTITION_METADATA
from moldau.log.epoch_cache import EpochCache
from moldau.log.segment import LOG_SUFFIX, SUFFIXES, TXN_INDEX_SUFFIX
from moldau.log.segments import Segments
from moldau.log.snapshots import Snapshots

_RECORDS_ONLY = (LOG_SUFFIX, TXN_INDEX_SUFFIX)


class Durability:
    __slots__ = ("flush_from", "flushed_offset", "folder_created", "last_flush_ms", "names_changed", "truncations")

    def __init__(self, flushed_offset: int, flush_from: int, now_ms: int, *, folder_created: bool) -> None:
        self.flushed_offset = flushed_offset
        self.flush_from = flush_from
        self.last_flush_ms = now_ms
        self.names_changed = True  # files were created or renamed since the folder was last flushed
        self.folder_created = folder_created  # the folder itself is not known to be on the disk
        self.truncations = 0  # tells a flush under way that the log is no longer the one it was made for

    def recovery_point(self, segments: Segments, log_end_offset: int) -> int:
        """What may be checkpointed: everything below needs no look after a crash, not even at its indexes."""
        if self.flush_from < segments.active.base_offset:
            end_offset = segments.end_of(segments.holding(self.flush_from), log_end_offset)
            return min(self.flushed_offset, end_offset - 1)
        return self.flushed_offset

    def begin_flush(
        self, segments: Segments, snapshots: Snapshots, epochs: EpochCache, *, everything: bool
    ) -> tuple[list[str], list[str]]:
        """The files to fsync and then the folders. From here on changes count for the next flush."""
        files = []
        for segment in segments.from_offset(self.flush_from):
            if not segment.size and not self.truncations:
                continue  # its files were always empty: their names, which go with the folder, say everything
            kinds = SUFFIXES if everything or segment is not segments.active else _RECORDS_ONLY
            files += [segment.path(kind) for kind in kinds if kind != TXN_INDEX_SUFFIX or segment.txn_index.exists]
        files += [snapshots.path(offset) for offset in snapshots.offsets if offset >= self.flush_from]
        folders = []
        if epochs.dirty:
            files.append(epochs.path)
        if self.names_changed or epochs.dirty:
            folders.append(segments.folder)
        if self.folder_created:
            files.append(f"{segments.folder}/{PARTITION_METADATA}")
            folders.append(segments.folder.rpartition("/")[0])
        self.names_changed = epochs.dirty = False
        return files, folders

    def flushed(self, log_end_offset: int, active_base_offset: int, now_ms: int) -> None:
        """A flush of everything below `log_end_offset` succeeded, begun when the active segment was the given one."""
        self.flushed_offset = max(self.flushed_offset, log_end_offset)
        self.flush_from = max(self.flush_from, active_base_offset)
        self.folder_created = False
        self.last_flush_ms = now_ms

    def cut_at(self, offset: int, segments: Segments) -> bool:
        """The log is about to be cut; whether that lowers the recovery point."""
        self.truncations += 1
        self.names_changed = True
        if offset >= self.flushed_offset:
            return False
        self.flushed_offset = offset
        self.flush_from = min(self.flush_from, segments.holding(offset).base_offset)
        return True
