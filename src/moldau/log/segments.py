"""The segments of one log, oldest first, the last one active.

The lists are replaced, never changed, so a job that took them keeps seeing what it saw. Files of a removed segment
are renamed `.deleted` at once and removed after `file.delete.delay.ms`, off the loop: whoever reads them still can.
"""

from bisect import bisect_right

from moldau.log.config import LogConfig
from moldau.log.context import LogContext
from moldau.log.index.txn_index import AbortedTxn
from moldau.log.producers.snapshots import Snapshots
from moldau.log.results import ReadInfo
from moldau.log.segment import SUFFIXES, Segment

DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"  # a compacted segment in the making
SWAP_SUFFIX = ".swap"  # finished: it replaces what it was made from, also after a crash


class Segments:
    __slots__ = ("_bases", "_context", "_removals", "active", "folder", "items", "sealed_bytes")

    def __init__(self, context: LogContext, folder: str, items: list[Segment]) -> None:
        self._context = context
        self._removals: list[tuple[int, list[str]]] = []
        self.folder = folder
        self.items = items
        self._bases = [segment.base_offset for segment in items]
        self.active = items[-1]
        self.sealed_bytes = 0

    def _set(self, items: list[Segment]) -> None:
        self.items = items
        self._bases = [segment.base_offset for segment in items]
        self.active = items[-1]

    @property
    def first_base_offset(self) -> int:
        return self._bases[0]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.items)

    # -- search

    @property
    def grown_bytes(self) -> int:
        """Grows with every append, and with nothing else; what a log grew by is a difference of two of these, as long
        as it was not truncated in between."""
        return self.sealed_bytes + self.active.size

    def holding(self, offset: int) -> Segment:
        """The segment that holds `offset`, or the first one if it lies before."""
        return self.items[max(0, bisect_right(self._bases, offset) - 1)]

    def from_offset(self, offset: int) -> list[Segment]:
        """The segment that holds `offset` and those after it."""
        return self.items[max(0, bisect_right(self._bases, offset) - 1) :]

    def end_of(self, segment: Segment, log_end_offset: int) -> int:
        """Where the next segment begins, or the log ends."""
        index = bisect_right(self._bases, segment.base_offset)
        return self._bases[index] if index < len(self._bases) else log_end_offset

    def offsets_end_before(self, info: ReadInfo, log_end_offset: int) -> int:
        """An offset that the batches of this region do not reach, close behind them: as close as the index tells."""
        assert info.region is not None
        segment = self.holding(info.segment_base_offset)
        found = segment.offset_index.first_offset_from(info.position + info.length)
        return self.end_of(segment, log_end_offset) if found is None else found

    def aborted_transactions(self, first_offset: int, upper_bound_offset: int) -> list[AbortedTxn]:
        found: list[AbortedTxn] = []
        for segment in self.from_offset(first_offset):
            entries, complete = segment.txn_index.collect(first_offset, upper_bound_offset)
            found += entries
            if complete:
                break
        return found

    # -- change

    def add(self, base_offset: int, config: LogConfig) -> Segment:
        """Begin a new active segment."""
        segment = self._create(base_offset, config)
        self.sealed_bytes += self.active.size
        self._set([*self.items, segment])
        return segment

    def start_over(self, base_offset: int, config: LogConfig, snapshots: Snapshots) -> None:
        """Remove all segments and begin at `base_offset`."""
        self._discard(self.items[::-1], config, snapshots)
        self._context.disk.flush_dir(self.folder)
        self._set([self._create(base_offset, config)])

    def _create(self, base_offset: int, config: LogConfig) -> Segment:
        context = self._context
        # Rolls of many partitions would otherwise fall on the same moment, period after period.
        jitter_ms = context.random.below(config.segment_jitter_ms + 1) if config.segment_jitter_ms > 0 else 0
        segment = Segment(
            context.disk,
            context.open_segments,
            self.folder,
            base_offset,
            config,
            created_ms=context.clock.wall_ms(),
            roll_jitter_ms=min(jitter_ms, config.segment_ms),
        )
        for kind in SUFFIXES:  # what an earlier crash may have left under this name
            if context.disk.exists(segment.path(kind)):
                context.disk.remove(segment.path(kind))
        segment.create_file()
        return segment

    def truncate_from(self, offset: int, config: LogConfig, snapshots: Snapshots) -> None:
        """Remove the segments that begin after `offset`. The last first, and durably before the one holding `offset`
        is truncated: otherwise a crash could leave a hole."""
        keep = bisect_right(self._bases, offset)
        removed = self.items[keep:]
        if removed:
            self._set(self.items[:keep])
            self._discard(removed[::-1], config, snapshots)
            self._context.disk.flush_dir(self.folder)

    def drop_oldest(self, count: int, config: LogConfig, snapshots: Snapshots) -> None:
        removed = self.items[:count]
        self._set(self.items[count:])
        self._discard(removed, config, snapshots)

    def replace(self, former: list[Segment], cleaned: Segment, config: LogConfig) -> None:
        """Put a cleaned segment, whose files are called `.swap` and are durable, in the place of its sources.

        The sources are renamed first: a crash in between leaves the `.swap` files, and recovery finishes the job.
        Then the log file: what is still called `.swap` after it has no other meaning than to be renamed.
        The snapshots stay; they hold what the cleaned batches may no longer tell.
        """
        first = self.items.index(former[0])
        self._discard(former, config, None)
        cleaned.rename("", log_first=True)
        self._set([*self.items[:first], cleaned, *self.items[first + len(former) :]])

    def _discard(self, segments: list[Segment], config: LogConfig, snapshots: Snapshots | None) -> None:
        paths = []
        for segment in segments:
            segment.discard(DELETED_SUFFIX)
            paths += [segment.path(kind) for kind in SUFFIXES]
            if snapshots is not None and snapshots.forget(segment.base_offset):
                path = snapshots.path(segment.base_offset)
                self._context.disk.rename(path, path + DELETED_SUFFIX)
                paths.append(path + DELETED_SUFFIX)
        self._removals.append((self._context.clock.wall_ms() + config.file_delete_delay_ms, paths))

    def take_removals(self, now_ms: int) -> list[str]:
        """Files whose time has come."""
        due = [paths for at_ms, paths in self._removals if at_ms <= now_ms]
        self._removals = [entry for entry in self._removals if entry[0] > now_ms]
        return [path for paths in due for path in paths]

    def moved(self, folder: str) -> None:
        """The folder was renamed."""
        self.folder = folder
        for segment in self.items:
            segment.moved(folder)
        self._removals = [
            (at_ms, [f"{folder}/{path.rpartition('/')[2]}" for path in paths]) for at_ms, paths in self._removals
        ]

    def join(self, context: LogContext) -> None:
        self._context = context
        for segment in self.items:
            segment.join(context.open_segments)

    def release(self) -> None:
        for segment in self.items:
            segment.close_files()
