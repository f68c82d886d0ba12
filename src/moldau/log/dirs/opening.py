"""Opening all logs of a node, which may take long: it reads every folder, and after a crash the records in them.

Invariant: until `finish`, nothing is touched that belongs to the loop. The logs are opened with bounds on open files of
their own and join the node's context afterwards, so that the metadata log, which is in use meanwhile, is not disturbed.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from moldau.log.checkpoints import HIGH_WATERMARK, LOG_START_OFFSET, RECOVERY_POINT, TopicPartition
from moldau.log.config import LogConfig
from moldau.log.context import LogContext
from moldau.log.dirs.folders import DELETE_SUFFIX, FUTURE_SUFFIX, FolderName, folder_name, parse_folder
from moldau.log.dirs.log_dir import LogDir
from moldau.log.flush import FlushJob
from moldau.log.open_segments import OpenSegments
from moldau.log.partition_log import PartitionLog
from moldau.log.recovery.recovery import Gaps, RecoveryReport, open_log

_PRIVATE_OPEN_SEGMENTS = 64
METADATA_TOPIC = "__cluster_metadata"


@dataclass(slots=True)
class OpenReport:
    """What starting found; `repairs` has what each recovered log had to say."""

    logs: int = 0
    recovered: int = 0
    repairs: dict[TopicPartition, RecoveryReport] = field(default_factory=dict)
    offline_dirs: dict[str, OSError] = field(default_factory=dict)


@dataclass(slots=True)
class OpenedDir:
    """What was found in one dir; `error` if its disk failed, and nothing of it counts."""

    log_dir: LogDir
    logs: list[tuple[PartitionLog, RecoveryReport]] = field(default_factory=list)
    high_watermarks: dict[TopicPartition, int] = field(default_factory=dict)
    # Left behind by deletions, and by moves that were not finished and begin anew.
    leftovers: list[str] = field(default_factory=list)
    error: OSError | None = None


def _flush(log: PartitionLog) -> None:
    """Whatever gaps a log has are below its recovery point now, and our promise holds (see `log_dir`)."""
    flush = FlushJob(log, everything=True)
    flush.run()
    if flush.error is not None:
        raise flush.error
    flush.finish()


class OpenJob:
    """Open every log of these dirs, several at a time where records must be checked. A `jobs.Job`."""

    def __init__(
        self,
        dirs: list[LogDir],
        context: LogContext,
        config_for: Callable[[str], LogConfig],
        thread_count: int,
        take: Callable[[list[OpenedDir]], OpenReport],
    ) -> None:
        self._dirs = dirs
        self._context = context
        self._config_for = config_for
        self._thread_count = thread_count
        self._take = take
        self._opened: list[OpenedDir] = []

    def run(self) -> None:
        for log_dir in self._dirs:
            opened = OpenedDir(log_dir)
            self._opened.append(opened)
            try:
                self._open(opened)
            except OSError as error:
                opened.error = error

    def finish(self) -> OpenReport:
        return self._take(self._opened)

    def _open(self, opened: OpenedDir) -> None:
        log_dir = opened.log_dir
        log_dir.take_over()
        recovery_points = log_dir.read_checkpoint(RECOVERY_POINT)
        start_offsets = log_dir.read_checkpoint(LOG_START_OFFSET)
        opened.high_watermarks = log_dir.read_checkpoint(HIGH_WATERMARK)
        found = self._partition_folders(opened)
        shared = self._private_context()

        def open_one(folder: FolderName) -> tuple[PartitionLog, RecoveryReport]:
            key = folder.topic_partition
            repairs = RecoveryReport()
            clean = log_dir.was_clean and key in recovery_points
            # In a dir that was left cleanly, a folder without recovery point was put there by somebody.
            gaps_are_losses = log_dir.promises_no_gaps and not (log_dir.was_clean and not clean)
            log = open_log(
                shared if log_dir.was_clean else self._private_context(),
                f"{log_dir.path}/{folder_name(*key)}",
                *key,
                self._config_for(folder.topic),
                recovery_point=recovery_points.get(key, 0),
                log_start_offset=start_offsets.get(key, 0),
                clean=clean,
                gaps=Gaps.INSIDE_SEGMENTS if gaps_are_losses else Gaps.ANYWHERE,
                report=repairs,
            )
            if not clean and not gaps_are_losses:
                _flush(log)
            return log, repairs

        if log_dir.was_clean or self._thread_count == 1:
            opened.logs = [open_one(folder) for folder in found]
        else:
            with ThreadPoolExecutor(self._thread_count) as threads:
                opened.logs = list(threads.map(open_one, found))

    def _private_context(self) -> LogContext:
        """Its own bound on open files, because that is not shared between threads."""
        context = self._context
        return LogContext(context.disk, context.clock, context.random, OpenSegments(_PRIVATE_OPEN_SEGMENTS))

    def _partition_folders(self, opened: OpenedDir) -> list[FolderName]:
        found = []
        path = opened.log_dir.path
        for name, _, is_dir in self._context.disk.scan_dir(path):
            folder = parse_folder(name) if is_dir else None
            if folder is None or folder.topic == METADATA_TOPIC:  # the quorum's own, opened by it
                continue
            if folder.suffix in (DELETE_SUFFIX, FUTURE_SUFFIX):
                opened.leftovers.append(f"{path}/{name}")
            elif not folder.suffix:
                found.append(folder)
        return found
