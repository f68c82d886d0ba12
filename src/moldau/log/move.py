"""Moving a partition to another log dir while it is written.

A `MoveJob` copies the log into a folder called `…-future` in the target dir. `run` copies what is there, on any
thread, through handles of its own; `finish`, on the loop, copies what came in the meantime, if it is little, and swaps
the folders. If it is much, `finish` returns False and both are called again. A log that is being moved is neither
compacted nor cut at its start; if it is cut at its end, the copy is thrown away and the move fails.
"""

from moldau.log.context import LogContext
from moldau.log.errors import LogError, StorageError
from moldau.log.folders import FUTURE_SUFFIX, marked_folder_name
from moldau.log.log_manager import LogManager
from moldau.log.open_segments import OpenSegments
from moldau.log.partition_log import PartitionLog
from moldau.log.recovery import open_log

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
        self.error: LogError | OSError | None = None
        self._manager = manager
        self._context = LogContext(context.disk, context.clock, context.random, OpenSegments(16))
        name = marked_folder_name(log.topic, log.partition, context.random.uuid(), FUTURE_SUFFIX)
        self._folder = f"{target_dir}/{name}"
        self._future: PartitionLog | None = None
        self._truncations = log.truncations
        self._base_offset = log.segments[0].base_offset
        self._position = 0
        self._log_start_offset = log.log_start_offset

    # -- on any thread

    def run(self) -> None:
        try:
            if self._future is None:
                log = self.log
                self._future = open_log(
                    self._context, self._folder, log.topic, log.partition, log.config, topic_id=log.topic_id
                )
                self._future.truncate_fully_and_start_at(self._base_offset, self._log_start_offset)
            for _ in range(_MAX_ROUNDS):
                if self._copy(self._future) < _LAST_STEP_BYTES:
                    break
            self._future.flush()
        except (LogError, OSError) as error:
            self.error = error

    def _copy(self, future: PartitionLog) -> int:
        """Copy everything that is in the log now; how many bytes that was. The owner may append meanwhile: segments
        only grow, and what is below the size we read is written."""
        copied = 0
        for segment in self.log.segments:
            if segment.base_offset < self._base_offset:
                continue
            if segment.base_offset > self._base_offset:
                self._base_offset, self._position = segment.base_offset, 0
            reader = segment.private_copy(OpenSegments(1))
            chunk: list[memoryview] = []
            chunk_bytes = 0
            for _, _, batch in reader.batches(self._position):
                chunk.append(batch)
                chunk_bytes += len(batch)
                if chunk_bytes >= _CHUNK_BYTES:
                    copied += self._append(future, chunk)
                    chunk, chunk_bytes = [], 0
            copied += self._append(future, chunk)
        return copied

    def _append(self, future: PartitionLog, chunk: list[memoryview]) -> int:
        data = b"".join(chunk)
        if data:
            future.append_as_follower(data)
            self._position += len(data)
        return len(data)

    # -- on the loop

    def finish(self) -> bool:
        """Whether the move is over, one way or the other: `error` tells. False: run and finish again."""
        future, log = self._future, self.log
        if self.error is None and log.truncations != self._truncations:
            self.error = LogError(f"{log.folder} was truncated while it was moved: start the move again")
        if self.error is not None or future is None or log.is_offline:
            self._give_up()
            return True
        left = sum(segment.size for segment in log.segments if segment.base_offset >= self._base_offset)
        if left - self._position > _LAST_STEP_BYTES:
            return False
        try:
            self._copy(future)
            self._adopt(future)
            self._manager.swap_folder(log, future)
        except (LogError, OSError) as error:
            self.error = error
            self._give_up()
            return True
        self._manager.end_move(log.topic_partition)
        return True

    def _adopt(self, future: PartitionLog) -> None:
        """Give the copy what is not in the batches."""
        log = self.log
        if future.log_end_offset < log.log_end_offset:  # the log ends in a gap that compaction left
            future.roll(log.log_end_offset)
            future.log_end_offset = log.log_end_offset
        future.epochs.replace(log.epochs.entries)
        future.flush()
        future.join(self._manager.context)
        future.update_high_watermark(log.high_watermark)

    def _give_up(self) -> None:
        self._manager.end_move(self.log.topic_partition)
        if self._future is not None:
            self._future.release()
        self._manager.remove_folder_later(self._folder)
