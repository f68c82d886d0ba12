"""Opening a partition's folder: finish what a crash interrupted, truncate what it tore, rebuild what it lost.

After a clean shutdown nothing is read but the names and sizes of files and a few small ones: the recovery point is
the log end. Otherwise every batch from the segment holding the recovery point on is checked, the log is truncated at
the first bad one, and the indexes of those segments are written anew. Segments before it were flushed with their
indexes.

What is bad: a batch that is not whole, whose CRC is wrong, or whose offsets go back. Offsets that are missing are not:
compaction took them. Where it is known that there are no gaps (`Gaps`), one of them shows that a power loss took the
end of a segment, or that an offset rotted, which no CRC covers: what follows was not flushed either.

A log being opened belongs to whoever opens it, so many can be opened by many threads.
"""

import contextlib
import enum
from dataclasses import dataclass, field

from moldau.log.checkpoints import LEADER_EPOCH, read_topic_id
from moldau.log.config import LogConfig
from moldau.log.context import LogContext
from moldau.log.epoch_cache import EpochCache
from moldau.log.errors import CorruptCheckpoint, CorruptIndex, CorruptRecord
from moldau.log.index.offset_index import ENTRY_BYTES as OFFSET_ENTRY_BYTES
from moldau.log.index.offset_index import MAX_RELATIVE_OFFSET
from moldau.log.index.time_index import ENTRY_BYTES as TIME_ENTRY_BYTES
from moldau.log.index.txn_index import AbortedTxn
from moldau.log.partition_log import PartitionLog
from moldau.log.producers.producer_state import ProducerState
from moldau.log.producers.replay import rebuild_producer_state, replay_batch
from moldau.log.producers.snapshots import SUFFIX as SNAPSHOT_SUFFIX
from moldau.log.producers.snapshots import Snapshots
from moldau.log.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SUFFIXES,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    Segment,
    segment_name,
)
from moldau.log.segments import CLEANED_SUFFIX, DELETED_SUFFIX, SWAP_SUFFIX
from moldau.records import BatchHeader, CorruptBatch, check_crc

TEMPORARY_SUFFIX = ".tmp"
_NAME_DIGITS = 20


class Gaps(enum.Enum):
    """Where offsets may be missing without anything being lost."""

    NOWHERE = enum.auto()  # a log that is never compacted: the metadata's
    INSIDE_SEGMENTS = enum.auto()  # compaction leaves none between segments, see `log_dir`
    ANYWHERE = enum.auto()  # nobody knows who compacted it


@dataclass(slots=True)
class RecoveryReport:
    """What opening a log had to repair; worth a line in the node's log if `lines` is not empty."""

    recovered_segments: int = 0
    truncated_bytes: int = 0
    lines: list[str] = field(default_factory=list)

    def add(self, line: str) -> None:
        self.lines.append(line)


def open_log(
    context: LogContext,
    folder: str,
    topic: str,
    partition: int,
    config: LogConfig,
    *,
    recovery_point: int = 0,
    log_start_offset: int = 0,
    clean: bool = False,
    gaps: Gaps = Gaps.INSIDE_SEGMENTS,
    newest_epoch: int | None = None,
    topic_id: bytes | None = None,
    report: RecoveryReport | None = None,
) -> PartitionLog:
    """Open or create. `clean`: the node was shut down cleanly and `recovery_point` was the log end then.

    `newest_epoch`, if it is known, is the last that a batch can be of."""
    opening = _Opening(context, folder, config, report or RecoveryReport(), gaps, newest_epoch)
    log = opening.open(topic, partition, recovery_point, log_start_offset, clean=clean)
    if topic_id is not None:
        log.assign_topic_id(topic_id)
    return log


class _Opening:
    def __init__(
        self,
        context: LogContext,
        folder: str,
        config: LogConfig,
        report: RecoveryReport,
        gaps: Gaps,
        newest_epoch: int | None,
    ) -> None:
        self._context = context
        self._disk = context.disk
        self._folder = folder
        self._config = config
        self._report = report
        self._gaps = gaps
        self._newest_epoch = newest_epoch
        self._sizes: dict[str, int] = {}
        self._epochs = EpochCache(context.disk, folder)
        self._stored_epochs: list[tuple[int, int]] = []  # what the file says above the recovery point
        self._recovered_to = 0  # where the last batch that was checked ends
        self._snapshots = Snapshots(context.disk, folder, [])

    def open(
        self, topic: str, partition: int, recovery_point: int, log_start_offset: int, *, clean: bool
    ) -> PartitionLog:
        self._scan()
        self._finish_swaps()
        segments = self._load_segments()
        self._snapshots = Snapshots(self._disk, self._folder, self._snapshot_offsets())
        epochs_known = self._load_epochs(segments)
        self._check_txn_indexes(segments)
        if not clean:
            self._check_indexes(segments)
            self._stored_epochs = [entry for entry in self._epochs.entries if entry[1] >= recovery_point]
            self._recovered_to = 0
            self._epochs.truncate_from_end(recovery_point)  # the batches will tell, and know better
            segments = self._recover(segments, recovery_point, log_start_offset)
        log_end_offset = self._log_end_offset(segments, recovery_point, clean=clean)
        if segments and log_end_offset < log_start_offset:
            self._report.add(f"removed all segments: the log ends at {log_end_offset}, before its start offset")
            self._remove_segments(segments)
            self._epochs.clear()
            segments = []
        if not segments:
            segments = [self._create_segment(log_start_offset)]
            log_end_offset = log_start_offset
        log_start_offset = max(log_start_offset, segments[0].base_offset)
        if not epochs_known:
            self._epochs_from_batches(segments)
        self._epochs.truncate_from_end(log_end_offset)
        self._epochs.truncate_from_start(log_start_offset)
        self._epochs.write_held(flushed=clean)
        return PartitionLog(
            self._context,
            self._folder,
            topic,
            partition,
            self._config,
            segments=segments,
            log_start_offset=log_start_offset,
            log_end_offset=log_end_offset,
            recovery_point=log_end_offset if clean else min(recovery_point, log_end_offset),
            epochs=self._epochs,
            producers=self._producer_state(segments, log_start_offset, log_end_offset),
            snapshots=self._snapshots,
            topic_id=self._read_topic_id(),
            clean=clean,
        )

    # -- files

    def _scan(self) -> None:
        """See what is there; remove what a crash left unfinished."""
        try:
            found = self._disk.scan_dir(self._folder)
        except FileNotFoundError:
            self._disk.make_dir(self._folder)  # its dir exists, or its disk is gone
            return
        cleaned = []
        for name, size, is_dir in found:
            if is_dir:
                continue
            if name.endswith((DELETED_SUFFIX, TEMPORARY_SUFFIX)):
                self._disk.remove(f"{self._folder}/{name}")
            elif name.endswith(CLEANED_SUFFIX):
                cleaned.append(name)
            else:
                self._sizes[name] = size
        # A swap at or above a half-written cleaned segment is the rest of an operation that never got to its swaps.
        first_cleaned = min(map(_offset_of, cleaned), default=None)
        for name in cleaned:
            self._disk.remove(f"{self._folder}/{name}")
        if first_cleaned is not None:
            for name in [name for name in self._sizes if name.endswith(SWAP_SUFFIX)]:
                if _offset_of(name) >= first_cleaned:
                    self._remove(name)

    def _remove(self, name: str) -> None:
        self._disk.remove(f"{self._folder}/{name}")
        del self._sizes[name]

    def _finish_swaps(self) -> None:
        """A `.log.swap` is complete and durable: what it replaces goes, then it gets its name."""
        for name in [name for name in self._sizes if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)]:
            base_offset = _offset_of(name)
            cleaned = self._segment(base_offset, SWAP_SUFFIX)
            end_offset = cleaned.next_offset()
            cleaned.close_files()
            self._report.add(f"finished the swap of cleaned segment {base_offset}")
            for other in list(self._sizes):
                offset = _offset_of(other)
                replaced = base_offset <= offset < max(end_offset, base_offset + 1)
                if replaced and not other.endswith((SWAP_SUFFIX, SNAPSHOT_SUFFIX)):
                    self._remove(other)
        for name in [name for name in self._sizes if name.endswith(SWAP_SUFFIX)]:
            final = name.removesuffix(SWAP_SUFFIX)
            self._disk.rename(f"{self._folder}/{name}", f"{self._folder}/{final}")
            self._sizes[final] = self._sizes.pop(name)

    def _load_segments(self) -> list[Segment]:
        bases = sorted(_offset_of(name) for name in self._sizes if name.endswith(LOG_SUFFIX) and _is_segment_file(name))
        known = set(bases)
        for name in list(self._sizes):
            if name.endswith(SUFFIXES[1:]) and _is_segment_file(name) and _offset_of(name) not in known:
                self._report.add(f"removed {name}, which has no log")
                self._remove(name)
        return [self._segment(base, "") for base in bases]

    def _segment(self, base_offset: int, suffix: str) -> Segment:
        name = segment_name(base_offset)
        sizes = self._sizes
        return Segment(
            self._disk,
            self._context.open_segments,
            self._folder,
            base_offset,
            self._config,
            created_ms=self._context.clock.wall_ms(),
            suffix=suffix,
            size=sizes[name + LOG_SUFFIX + suffix],
            index_bytes=sizes.get(name + INDEX_SUFFIX + suffix, 0),
            time_index_bytes=sizes.get(name + TIME_INDEX_SUFFIX + suffix, 0),
            has_txn_index=name + TXN_INDEX_SUFFIX + suffix in sizes,
        )

    def _create_segment(self, base_offset: int) -> Segment:
        segment = Segment(
            self._disk,
            self._context.open_segments,
            self._folder,
            base_offset,
            self._config,
            created_ms=self._context.clock.wall_ms(),
        )
        segment.create_file()
        return segment

    def _snapshot_offsets(self) -> list[int]:
        return [_offset_of(name) for name in self._sizes if name.endswith(SNAPSHOT_SUFFIX) and _is_segment_file(name)]

    def _remove_segments(self, segments: list[Segment]) -> None:
        for segment in reversed(segments):
            segment.close_files()
            segment.remove_files()
            if self._snapshots.forget(segment.base_offset):
                self._disk.remove(self._snapshots.path(segment.base_offset))

    # -- contents

    def _check_indexes(self, segments: list[Segment]) -> None:
        """Rebuild the indexes that are missing or cannot be right, before anything relies on them."""
        for segment in segments:
            name = segment_name(segment.base_offset)
            sizes = [self._sizes.get(name + kind) for kind in (INDEX_SUFFIX, TIME_INDEX_SUFFIX)]
            if None in sizes or (sizes[0] or 0) % OFFSET_ENTRY_BYTES or (sizes[1] or 0) % TIME_ENTRY_BYTES:
                if segment.size > self._config.index_interval_bytes:
                    self._report.add(f"rebuilt the indexes of segment {segment.base_offset}")
                try:
                    segment.rebuild_indexes()
                except CorruptRecord:
                    continue  # the scan below decides where the log ends

    def _check_txn_indexes(self, segments: list[Segment]) -> None:
        """Also after a clean shutdown: there are few, and readers could not go on with one that makes no sense."""
        for index, segment in enumerate(segments):
            try:
                _ = segment.txn_index.entries
            except CorruptIndex as error:
                self._report.add(str(error))
                self._rebuild_txn_index(segment, segments[:index], segments[0].base_offset)

    def _rebuild_txn_index(self, segment: Segment, before: list[Segment], log_start_offset: int) -> None:
        """From the batches. Should one of them be damaged, whoever reads it will be told."""
        state = self._producer_state(before, log_start_offset, segment.base_offset)
        segment.txn_index.reset()
        with contextlib.suppress(CorruptBatch, CorruptRecord):
            for _, header, batch in segment.batches():
                _replay(segment, state, header, batch)

    def _recover(self, segments: list[Segment], recovery_point: int, log_start_offset: int) -> list[Segment]:
        """Check everything that may not have been flushed. The log ends at the first bad batch, or where a gap before
        the next segment shows that something is lost: then what comes after it was not flushed."""
        first = max((index for index, s in enumerate(segments) if s.base_offset <= recovery_point), default=0)
        for index in range(first, len(segments)):
            segment = segments[index]
            truncated = self._recover_segment(segment, segments[:index], log_start_offset)
            self._report.recovered_segments += 1
            end_offset = segment.next_offset()
            if truncated:
                self._report.truncated_bytes += truncated
                self._report.add(
                    f"truncated segment {segment.base_offset} by {truncated} bytes: it ends at {end_offset} now"
                )
            following = segments[index + 1 :]
            if following and (truncated or self._is_loss(end_offset, following[0].base_offset)):
                self._report.add(f"removed {len(following)} segments after {end_offset}: records before them are lost")
                self._remove_segments(following)
                return segments[: index + 1]
        return segments

    def _is_loss(self, end_offset: int, next_base_offset: int) -> bool:
        """Between segments. A gap too large for one segment is none: a follower that met it had to begin another."""
        gap = next_base_offset - end_offset
        return gap < 0 or (self._gaps is not Gaps.ANYWHERE and 0 < gap <= MAX_RELATIVE_OFFSET)

    def _assign_epoch(self, epoch: int, base_offset: int) -> None:
        """A batch of a new epoch is at `base_offset`. What the file says about epochs that began between the last batch
        and this one is believed: compaction may have taken their first batches."""
        for known_epoch, start_offset in self._stored_epochs:
            if self._epochs.latest < known_epoch <= epoch and self._recovered_to <= start_offset < base_offset:
                self._epochs.assign(known_epoch, start_offset)
        if epoch > self._epochs.latest:
            self._epochs.assign(epoch, base_offset)

    def _follows(self, header: BatchHeader, last_offset: int) -> bool:
        """Whether what no checksum covers, its offset and epoch, can be true of the batch after `last_offset`."""
        if self._newest_epoch is not None and header.leader_epoch > self._newest_epoch:
            return False
        if self._gaps is not Gaps.NOWHERE:
            return True
        return header.base_offset == last_offset + 1 and header.leader_epoch >= self._epochs.latest

    def _recover_segment(self, segment: Segment, before: list[Segment], log_start_offset: int) -> int:
        """Keep the whole and valid batches at the beginning, index them; the bytes truncated behind them."""
        state = self._producer_state(before, log_start_offset, segment.base_offset)
        segment.reset_indexes()
        segment.txn_index.reset()
        valid = 0
        last_offset = segment.base_offset - 1
        try:
            for position, header, batch in segment.batches():
                check_crc(batch, 0, header)
                if header.base_offset <= last_offset or segment.would_overflow(header.last_offset):
                    break
                if not self._follows(header, last_offset):
                    break
                if header.leader_epoch > self._epochs.latest:
                    self._assign_epoch(header.leader_epoch, header.base_offset)
                last_offset = header.last_offset
                self._recovered_to = header.next_offset
                segment.index_batches([(position, header.size_bytes, header.last_offset, header.max_timestamp)])
                _replay(segment, state, header, batch)
                valid = position + header.size_bytes
        except (CorruptBatch, CorruptRecord):
            pass
        truncated = segment.size - valid
        if truncated:
            segment.truncate_bytes(valid)
        segment.seal()
        return truncated

    def _log_end_offset(self, segments: list[Segment], recovery_point: int, *, clean: bool) -> int:
        if not segments:
            return 0
        last = segments[-1]
        if clean and recovery_point >= last.base_offset:
            return recovery_point
        return last.next_offset() if last.size else last.base_offset

    def _load_epochs(self, segments: list[Segment]) -> bool:
        """False if the file is damaged, or missing though there are records: then the batches must tell."""
        try:
            self._epochs = EpochCache.load(self._disk, self._folder)
        except CorruptCheckpoint as error:
            self._report.add(str(error))
            self._remove(LEADER_EPOCH)
            return False
        finally:
            self._epochs.hold()
        return LEADER_EPOCH in self._sizes or not any(segment.size for segment in segments)

    def _read_topic_id(self) -> bytes | None:
        """A file that was not flushed before a crash may be damaged: the node knows the id, and writes it again."""
        try:
            return read_topic_id(self._disk, self._folder)
        except CorruptCheckpoint as error:
            self._report.add(str(error))
            return None

    def _epochs_from_batches(self, segments: list[Segment]) -> None:
        self._epochs.clear()
        for segment in segments:
            # Damage in what was flushed long ago must not keep the node from starting: its readers will be told.
            with contextlib.suppress(CorruptRecord):
                for _, header in segment.headers():
                    if header.leader_epoch > self._epochs.latest:
                        self._epochs.assign(header.leader_epoch, header.base_offset)

    def _producer_state(self, segments: list[Segment], log_start_offset: int, log_end_offset: int) -> ProducerState:
        state = ProducerState()
        rebuild_producer_state(
            state,
            self._snapshots,
            segments,
            log_start_offset=log_start_offset,
            log_end_offset=log_end_offset,
            now_ms=self._context.clock.wall_ms(),
            expiration_ms=self._config.producer_id_expiration_ms,
        )
        return state


def _replay(segment: Segment, state: ProducerState, header: BatchHeader, batch: memoryview) -> None:
    """Put a batch of the segment into the state, and an aborted transaction that it ends into the segment's index."""
    completed = replay_batch(state, header, batch)
    if completed is None:
        return
    if completed.aborted:
        stable = state.last_stable_offset_after(completed)
        segment.txn_index.append(
            AbortedTxn(completed.producer_id, completed.first_offset, completed.last_offset, stable)
        )
    state.complete(completed)


def _is_segment_file(name: str) -> bool:
    return len(name) > _NAME_DIGITS and name[:_NAME_DIGITS].isdigit() and name[_NAME_DIGITS] == "."


def _offset_of(name: str) -> int:
    return int(name[:_NAME_DIGITS]) if _is_segment_file(name) else -1
