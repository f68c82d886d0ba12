"""Moving a partition to another log dir while it is written.

A `MoveJob` copies the log into a folder called `…-future` in the target dir. `run` copies what is there, on any
thread, through handles of its own; `finish`, on the loop, copies what came in the meantime, if it is little, and swaps
the folders. If it is much, `finish` returns False and both are called again.

Invariant: what takes the log's place is the same log, whatever was done to it meanwhile. While it is moved it is
neither compacted nor shortened by whole segments at its start. If it is truncated, so is the copy, before it grows
again; what `run` read in that time does not count, for it read files that were being changed. All that is not in the
batches (log start, epochs, producers, settings) is taken over in the last step. A log that was deleted, or made anew
under its name, ends the move.
"""

from moldau.log.context import LogContext
from moldau.log.dirs.folders import FUTURE_SUFFIX, marked_folder_name
from moldau.log.dirs.log_manager import LogManager
from moldau.log.errors import CorruptRecord, CorruptSnapshot, LogError, StorageError
from moldau.log.open_segments import OpenSegments
from moldau.log.partition_log import PartitionLog
from moldau.log.producers.snapshots import decode
from moldau.log.recovery.recovery import open_log
from moldau.log.segment import Segment

_CHUNK_BYTES = 1 << 20
_LAST_STEP_BYTES = 4 << 20
_MAX_ROUNDS = 100


class MoveJob:
    def __init__(self, manager: LogManager, log: PartitionLog, target_dir: str) -> None:
        """On the loop."""
        if not manager.dirs[target_dir].is_online:
            raise StorageError(f"log dir {target_dir} is offline")
        if target_dir == log.log_dir:
            raise ValueError(f"{log.folder} is in {target_dir} already")
        manager.begin_move(log)
        context = manager.context
        self.log = log
        self.target_dir = target_dir
        self.error: LogError | OSError | None = None  # why the log stays where it is; others may set it to end the move
        self._manager = manager
        self._context = LogContext(context.disk, context.clock, context.random, OpenSegments(16))
        name = marked_folder_name(log.topic, log.partition, context.random.uuid(), FUTURE_SUFFIX)
        self._folder = f"{target_dir}/{name}"
        self._future: PartitionLog | None = None
        self._failure: LogError | OSError | None = None  # of the last `run`
        self._truncation: int | None = None  # the copy is to be truncated here before it goes on
        log.take_truncation()
        self._start = (log.segments[0].base_offset, log.log_start_offset)
        self._base_offset = -1  # of the segment that was copied last, and how far
        self._position = 0

    # -- on any thread

    def run(self) -> None:
        try:
            future = self._ready()
            for _ in range(_MAX_ROUNDS):
                if self._copy(future) < _LAST_STEP_BYTES:
                    break
            future.flush()
        except (LogError, OSError) as error:
            self._failure = error

    def _ready(self) -> PartitionLog:
        """The copy, truncated where the log was."""
        future, log = self._future, self.log
        if future is None:
            future = self._future = open_log(
                self._context, self._folder, log.topic, log.partition, log.config, topic_id=log.topic_id
            )
            future.truncate_fully_and_start_at(*self._start)
        elif self._truncation is not None:
            if self._truncation > future.segments[0].base_offset:
                future.truncate_to(self._truncation)
                self._find_place(future.log_end_offset)
            else:
                future.truncate_fully_and_start_at(*self._start)
                self._base_offset = -1
        self._truncation = None
        return future

    def _find_place(self, offset: int) -> None:
        """Where in the log the batches begin that the copy lacks."""
        holding = [segment for segment in self.log.segments if segment.base_offset <= offset]
        reader = holding[-1].private_copy(OpenSegments(1))
        self._base_offset, self._position = reader.base_offset, reader.size
        for position, header in reader.headers():
            if header.base_offset >= offset:
                self._position = position
                return

    def _copy(self, future: PartitionLog) -> int:
        """Copy everything that is in the log now; how many bytes that was. The owner may append meanwhile: segments
        only grow, and what is below the size we read is written."""
        copied = 0
        for segment in self.log.segments:
            if segment.base_offset < self._base_offset:
                continue
            if segment.base_offset > self._base_offset:
                self._learn_producers(future, segment)
                self._base_offset, self._position = segment.base_offset, 0
            copied += self._copy_segment(future, segment.private_copy(OpenSegments(1)))
        return copied

    def _copy_segment(self, future: PartitionLog, reader: Segment) -> int:
        copied = chunk_bytes = 0
        chunk: list[memoryview] = []
        for _, _, batch in reader.batches(self._position):
            chunk.append(batch)
            chunk_bytes += len(batch)
            if chunk_bytes >= _CHUNK_BYTES:
                copied += self._append(future, chunk)
                chunk, chunk_bytes = [], 0
        copied += self._append(future, chunk)
        if self._position != reader.size:
            raise CorruptRecord(
                f"{reader} holds no batch at position {self._position}: a damaged log is not moved, for its other "
                "replicas may still be whole"
            )
        return copied

    def _append(self, future: PartitionLog, chunk: list[memoryview]) -> int:
        data = b"".join(chunk)
        if data:
            future.append_as_follower(data)
            self._position += len(data)
        return len(data)

    def _learn_producers(self, future: PartitionLog, segment: Segment) -> None:
        """Compaction may have taken the batches of a producer and left it to the snapshots: the copy's snapshots must
        know it too, for the day it is truncated to one of them."""
        log = self.log
        if segment.base_offset not in list(log.snapshots.offsets):
            return
        try:
            entries = decode(self._context.disk.read_file(log.snapshots.path(segment.base_offset)))
        except (CorruptSnapshot, FileNotFoundError):
            return
        if not future.size_bytes:
            now_ms = self._context.clock.wall_ms()
            future.producers.load(entries, now_ms, log.config.producer_id_expiration_ms)
            return
        for entry in entries:
            if entry.txn_first_offset < 0:  # what is open is never compacted
                future.producers.producers.setdefault(entry.producer_id, entry)

    # -- on the loop

    def finish(self) -> bool:
        """Whether the move is over, one way or the other: `error` tells. False: run and finish again."""
        future, log = self._future, self.log
        failure, self._failure = self._failure, None
        self._note_truncation()
        if self.error is None and self._manager.logs.get(log.topic_partition) is not log:
            self.error = LogError(f"{log.folder} was deleted, or its dir failed, while it was moved")
        if self.error is None and failure is not None:
            is_of_truncation = self._truncation is not None and future is not None and not future.is_offline
            self.error = None if is_of_truncation else failure
        if self.error is not None or future is None:
            self._give_up()
            return True
        left = sum(segment.size for segment in log.segments if segment.base_offset >= self._base_offset)
        if self._truncation is not None or left - self._position > _LAST_STEP_BYTES:
            return False
        try:
            self._copy(future)
            future.take_place_of(log)
            future.join(self._manager.context)
            self._manager.swap_folder(log, future)
        except (LogError, OSError) as error:
            self.error = error
            self._give_up()
            return True
        self._manager.end_move(log.topic_partition)
        return True

    def _note_truncation(self) -> None:
        lowest = self.log.take_truncation()
        if lowest is not None:
            self._truncation = lowest if self._truncation is None else min(lowest, self._truncation)
            self._start = (self.log.segments[0].base_offset, self.log.log_start_offset)

    def _give_up(self) -> None:
        self._manager.end_move(self.log.topic_partition)
        if self._future is not None:
            self._future.release()
        self._manager.remove_folder_later(self._folder)
