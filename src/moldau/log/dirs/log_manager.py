"""All logs of a node: finding them at start, placing new ones, and the housekeeping that goes on beside the traffic.

Belongs to the loop, like the logs. Nothing here waits: `tick` looks at the clock and gives out the work that is due as
jobs (see `jobs.Job`); the node runs them on threads and calls `finish`. At most one job per log and kind is out.

Invariant: what is wrong with one log, or with one chore, costs the others nothing: it is reported, and they go on.
"""

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from moldau.log.checkpoints import HIGH_WATERMARK, LOG_START_OFFSET, RECOVERY_POINT, TopicPartition
from moldau.log.config import LogConfig
from moldau.log.context import LogContext, TruncatedLog
from moldau.log.dirs.cleaning import Cleaning
from moldau.log.dirs.folders import DELETE_SUFFIX, STRAY_SUFFIX, folder_name, marked_folder_name
from moldau.log.dirs.log_dir import LogDir
from moldau.log.dirs.opening import OpenedDir, OpenJob, OpenReport
from moldau.log.dirs.settings import ManagerSettings
from moldau.log.errors import LogError, OutOfDescriptors, StorageError
from moldau.log.flush import FlushJob
from moldau.log.jobs import CheckpointJob, Job, RemoveJob
from moldau.log.open_segments import OpenSegments
from moldau.log.partition_log import PartitionLog
from moldau.log.recovery.recovery import Gaps, RecoveryReport, open_log
from moldau.seams import Clock, Disk, Random
from moldau.seams.disk import is_shortage

_log = logging.getLogger(__name__)
# Closing this many logs, one flush of the whole volume is cheaper than one of each of their files.
_FLUSH_VOLUME_FROM_LOGS = 64


class OfflineLog(NamedTuple):
    """A log in a dir that failed while it was open."""

    log_dir: str
    topic_id: bytes | None


class DirInfo(NamedTuple):
    path: str
    error: OSError | None
    total_bytes: int  # -1 if the dir is offline
    usable_bytes: int
    log_bytes: dict[TopicPartition, int]


def _newness(log: PartitionLog, topic_id: bytes | None) -> tuple[bool, int, int, int]:
    """Of two logs of one partition, the greater is the newer. Logs that end in the same leader epoch are the same as
    far as both go; a longer one of a former epoch may hold what was truncated since. Of two of the same length, in one
    more may have been deleted."""
    epochs = log.epochs.entries
    return log.topic_id == topic_id, epochs[-1][0] if epochs else -1, log.log_end_offset, log.log_start_offset


def _nobody(path: str, partitions: list[TopicPartition], error: OSError) -> None:
    """Nobody wants to know about failed dirs."""


class LogManager:
    def __init__(
        self,
        log_dirs: Iterable[str],
        *,
        disk: Disk,
        clock: Clock,
        random: Random,
        settings: ManagerSettings | None = None,
        config_for: Callable[[str], LogConfig] = lambda topic: LogConfig(),
        topic_id_of: Callable[[str], bytes | None] = lambda topic: None,
        on_dir_offline: Callable[[str, list[TopicPartition], OSError], None] = _nobody,
        open_segments: OpenSegments | None = None,
    ) -> None:
        """`config_for` gives a topic's settings, `topic_id_of` its id, if there is such a topic; `on_dir_offline` hears
        of a failed dir and what was in it."""
        self.settings = settings or ManagerSettings()  # may be replaced at any time
        self._disk = disk
        self._clock = clock
        self._random = random
        self._config_for = config_for
        self._topic_id_of = topic_id_of
        self._on_dir_offline = on_dir_offline
        self.context = LogContext(
            disk,
            clock,
            random,
            open_segments or OpenSegments(),
            on_failure=self._take_offline,
            before_truncation=self._before_truncation,
            after_truncation=self._after_truncation,
        )
        self.dirs = {path: LogDir(path, disk, self.dir_failed) for path in log_dirs}
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.offline: dict[TopicPartition, OfflineLog] = {}
        self.cordoned: frozenset[str] = frozenset()  # dirs that get no new logs (KIP-1066)
        self._dirs_are_open = False
        self._removed_folders: list[tuple[int, str]] = []
        self._last_done_ms: dict[str, float] = {}
        self._troubles: dict[str, str] = {}  # of housekeeping, that people were told about
        self._moving: set[TopicPartition] = set()
        self.cleaning = Cleaning(self.context, self.logs, self.dirs, lambda: self.settings)

    # -- start and stop

    def open_dirs(self) -> None:
        """Lock the dirs and learn whose they are and how they were left. The first half of `open`."""
        is_new = not any(log_dir.is_formatted for log_dir in self.dirs.values())
        for log_dir in self.dirs.values():
            try:
                log_dir.open(may_be_made=is_new)
            except OSError as error:
                self._take_offline(log_dir.path, error)
        self._dirs_are_open = True

    def open(self) -> OpenReport:
        """Lock the dirs and open every log in them, all at once."""
        job = self.begin_open()
        job.run()
        return job.finish()

    def begin_open(self) -> OpenJob:
        """The same as a job: only its `run` takes long. There are no logs before its `finish`."""
        if not self._dirs_are_open:
            self.open_dirs()
        thread_count = self.settings.recovery_threads_per_data_dir
        return OpenJob(self.online_dirs, self.context, self._config_for, thread_count, self._take_opened)

    def _take_opened(self, dirs: list[OpenedDir]) -> OpenReport:
        report = OpenReport()
        now_ms = self._clock.wall_ms()
        for opened in dirs:
            if opened.error is not None:
                self._take_offline(opened.log_dir.path, opened.error)
            self._removed_folders += [(now_ms, folder) for folder in opened.leftovers]
            for log, repairs in opened.logs:
                try:
                    self._take_log(opened, log, repairs, report)
                except OSError as error:
                    self._take_offline(opened.log_dir.path, error)
            if opened.log_dir.is_online and not opened.log_dir.promises_no_gaps:
                with contextlib.suppress(OSError):  # then the dir is offline
                    opened.log_dir.write_checkpoint(RECOVERY_POINT)
        for log_dir in self.dirs.values():
            if log_dir.error is not None:
                report.offline_dirs[log_dir.path] = log_dir.error
        if self.dirs and not self.online_dirs:
            raise StorageError(f"all log dirs failed: {report.offline_dirs}")
        report.logs = len(self.logs)
        return report

    def _take_log(self, opened: OpenedDir, log: PartitionLog, repairs: RecoveryReport, report: OpenReport) -> None:
        log.join(self.context)
        if not opened.log_dir.is_online:  # it failed meanwhile
            log.release()
            return
        key = log.topic_partition
        log.update_high_watermark(opened.high_watermarks.get(key, log.log_start_offset))
        report.recovered += bool(repairs.recovered_segments)
        if repairs.lines:
            report.repairs[key] = repairs
        self._add_opened(opened.log_dir, log)

    def _add_opened(self, log_dir: LogDir, log: PartitionLog) -> None:
        """Two dirs have the same partition if a crash hit the last step of a move, or one was made in a good dir while
        the other was away: the one that knows the newer leader, or else is longer, is the new one. One that belongs to
        another topic of that name is not removed but set aside."""
        key = log.topic_partition
        other = self.logs.get(key)
        if other is None:
            self._register(log_dir, log)
            return
        wanted_id = self._topic_id_of(key[0])
        loser, winner = sorted((other, log), key=lambda each: _newness(each, wanted_id))
        if winner is log:
            del self.dirs[other.log_dir].logs[key]
            self._register(log_dir, log)
        if loser.topic_id == winner.topic_id:
            self._rename_away(loser)
        else:
            self._rename_stray(loser)

    def _register(self, log_dir: LogDir, log: PartitionLog) -> None:
        self.logs[log.topic_partition] = log
        log_dir.logs[log.topic_partition] = log

    def close(self, broker_epoch: int = -1) -> None:
        """Shut down cleanly: the next start reads no records. Jobs that are out come to nothing."""
        self.cleaning.stop_all()
        for log_dir in self.online_dirs:
            try:
                self._close_logs(log_dir)
                log_dir.close(broker_epoch)
            except (OSError, StorageError):
                continue  # the dir is offline now, and will be recovered
        for log_dir in self.dirs.values():
            log_dir.unlock()

    def abandon(self) -> None:
        """Let go of everything as it is: the next start recovers it."""
        self.cleaning.stop_all()
        for log in self.logs.values():
            log.release()
        for log_dir in self.dirs.values():
            log_dir.unlock()

    def _close_logs(self, log_dir: LogDir) -> None:
        """Several at a time, and the dir itself once for all: what takes long is the disk."""
        jobs = [job for log in log_dir.logs.values() if (job := log.begin_close()) is not None]
        if len(jobs) >= _FLUSH_VOLUME_FROM_LOGS:
            self._disk.flush_volume(log_dir.path)
            for job in jobs:
                job.finish()
            return
        thread_count = min(self.settings.recovery_threads_per_data_dir, len(jobs))
        if thread_count > 1:
            with ThreadPoolExecutor(thread_count) as threads:
                list(threads.map(lambda job: job.run(but=log_dir.path), jobs))
        else:
            for job in jobs:
                job.run(but=log_dir.path)
        if jobs:
            self._disk.flush_dir(log_dir.path)
        for job in jobs:
            job.finish()

    # -- dirs

    @property
    def online_dirs(self) -> list[LogDir]:
        return [log_dir for log_dir in self.dirs.values() if log_dir.is_online]

    def dir_failed(self, path: str, error: OSError) -> None:
        """A disk error: everything in this dir goes offline, the rest goes on. Not so if merely no descriptor was left:
        what failed is refused, or done with the next round."""
        if is_shortage(error):
            _log.error("%s: %s; raise the limit on open files (ulimit -n)", path, error)
        else:
            self._take_offline(path, error)

    def _take_offline(self, path: str, error: OSError) -> None:
        log_dir = self.dirs.get(path)
        if log_dir is None:  # that of the metadata, if it has its own
            self._on_dir_offline(path, [], error)
            return
        if not log_dir.is_online:
            return
        log_dir.error = error
        gone = list(log_dir.logs)
        for key, log in log_dir.logs.items():
            if not log.is_offline:
                log.fail(error)
            self.offline[key] = OfflineLog(path, log.topic_id)
            self.logs.pop(key, None)
        self._on_dir_offline(path, gone, error)

    def _before_truncation(self, log: TruncatedLog) -> None:
        self.dirs[log.log_dir].write_checkpoint(RECOVERY_POINT)

    def _after_truncation(self, log: TruncatedLog) -> None:
        """What was clean and is gone does not make what takes its place clean."""
        cleaned_offsets = self.dirs[log.log_dir].cleaned_offsets
        if cleaned_offsets.get(log.topic_partition, 0) > log.log_end_offset:
            cleaned_offsets[log.topic_partition] = log.log_end_offset

    @property
    def has_offline_dirs(self) -> bool:
        return any(not log_dir.is_online for log_dir in self.dirs.values())

    def _place(self) -> LogDir:
        """The dir with the fewest partitions; the emptier one of two. Cordoned ones only if there is no other."""
        online = self.online_dirs
        if not online:
            raise StorageError("no log dir is online: check the disks, then restart")
        online = [log_dir for log_dir in online if log_dir.path not in self.cordoned] or online
        fewest = min(len(log_dir.logs) for log_dir in online)
        candidates = [log_dir for log_dir in online if len(log_dir.logs) == fewest]
        if len(candidates) == 1:  # adding up sizes for every new partition would make the ten thousandth one slow
            return candidates[0]
        return min(candidates, key=lambda log_dir: sum(log.size_bytes for log in log_dir.logs.values()))

    # -- logs

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        return self.logs.get((topic, partition))

    def get_or_create(
        self,
        topic: str,
        partition: int,
        *,
        topic_id: bytes | None = None,
        log_dir: str | None = None,
        config: LogConfig | None = None,
    ) -> PartitionLog:
        key = (topic, partition)
        log = self.logs.get(key)
        if log is None:
            lost = self.offline.get(key)
            if lost is not None and (topic_id is None or lost.topic_id in (None, topic_id)):
                raise StorageError(f"{topic}-{partition} is in {lost.log_dir}, which is offline")
            config = config or self._config_for(topic)
            log = self._create(key, config) if log_dir is None else self._create_in(self.dirs[log_dir], key, config)
            self.offline.pop(key, None)  # that was another topic of this name
        if topic_id is not None:
            log.assign_topic_id(topic_id)
        return log

    def _create(self, key: TopicPartition, config: LogConfig) -> PartitionLog:
        """In the best dir; if it turns out to be broken, in the next."""
        while True:
            target = self._place()
            try:
                return self._create_in(target, key, config)
            except StorageError:
                if target.is_online:
                    raise

    def _create_in(self, target: LogDir, key: TopicPartition, config: LogConfig) -> PartitionLog:
        if not target.is_online:
            raise StorageError(f"log dir {target.path} is offline")
        folder = f"{target.path}/{folder_name(*key)}"
        try:
            target.forget(key)
            log = open_log(self.context, folder, *key, config, gaps=Gaps.ANYWHERE)
            if log.has_unflushed:  # somebody put a folder there: see `log_dir` for what is promised of its gaps
                log.flush()
        except OSError as error:
            self.dir_failed(target.path, error)
            kind = OutOfDescriptors if is_shortage(error) else StorageError
            raise kind(f"cannot create {folder}: {error}") from error
        self._register(target, log)
        return log

    def delete(self, topic: str, partition: int) -> None:
        """Remove a partition: renamed now, its files removed later. One in a dir that is offline is forgotten; should
        the dir come back, it is a stray."""
        if self.offline.pop((topic, partition), None) is not None:
            return
        log = self.logs.pop((topic, partition))
        log_dir = self.dirs[log.log_dir]
        del log_dir.logs[(topic, partition)]
        log_dir.cleaned_offsets.pop((topic, partition), None)
        try:
            self._rename_away(log)
        except OSError as error:
            raise log.fail(error) from error

    def set_aside(self, topic: str, partition: int) -> None:
        """The cluster knows nothing of this replica. It is renamed, not removed: people may know better."""
        log = self.logs.pop((topic, partition))
        del self.dirs[log.log_dir].logs[log.topic_partition]
        self._rename_stray(log)

    def _rename_stray(self, log: PartitionLog) -> None:
        log.release()
        name = marked_folder_name(log.topic, log.partition, self._random.uuid(), STRAY_SUFFIX)
        self._disk.rename(log.folder, f"{log.log_dir}/{name}")

    def _rename_away(self, log: PartitionLog) -> None:
        log.release()
        name = marked_folder_name(log.topic, log.partition, self._random.uuid(), DELETE_SUFFIX)
        folder = f"{log.log_dir}/{name}"
        self._disk.rename(log.folder, folder)
        self._removed_folders.append((self._clock.wall_ms() + self.settings.file_delete_delay_ms, folder))

    # -- moves: the manager's part of `move.MoveJob`

    def begin_move(self, log: PartitionLog) -> None:
        """Until `end_move` the log keeps its segments: nothing is compacted or removed."""
        if log.topic_partition in self._moving:
            raise LogError(f"{log.folder} is being moved already: wait for that, or cancel it")
        self._moving.add(log.topic_partition)
        self.cleaning.pause(log.topic_partition)

    def end_move(self, key: TopicPartition) -> None:
        self._moving.discard(key)
        self.cleaning.resume(key)

    def remove_folder_later(self, folder: str) -> None:
        self._removed_folders.append((self._clock.wall_ms(), folder))

    def swap_folder(self, log: PartitionLog, future: PartitionLog) -> None:
        """The last step of a move: `future`, which holds all of `log`, takes its place and name.

        Whatever of it a crash leaves, what was deleted stays deleted: both dirs' checkpoints know the log start before
        the new one gets its name. That is durable before the old one loses its own, and that before anybody writes: so
        a crash leaves both, never none, and of both the newer is the longer, or they are the same (`_add_opened`).
        """
        key = log.topic_partition
        source, target = self.dirs[log.log_dir], self.dirs[future.log_dir]
        source.write_checkpoint(LOG_START_OFFSET)
        folder = f"{target.path}/{folder_name(*key)}"
        try:
            target.announce(future, source.cleaned_offsets.get(key))
            self._disk.rename(future.folder, folder)
            self._disk.flush_dir(target.path)
        except OSError as error:
            target.fail(error)
            raise
        future.moved(folder)
        del source.logs[key]
        self._register(target, future)
        if key in source.cleaned_offsets:
            target.cleaned_offsets[key] = source.cleaned_offsets.pop(key)
        try:
            self._rename_away(log)
            self._disk.flush_dir(source.path)
        except OSError as error:
            source.fail(error)  # the log has left it already

    def truncate(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Truncate many logs with one checkpoint per dir."""
        lowered = set()
        for key, offset in offsets.items():
            log = self.logs[key]
            if offset < log.log_end_offset and log.lower_recovery_point(offset):
                lowered.add(log.log_dir)
        for path in lowered:
            self.dirs[path].write_checkpoint(RECOVERY_POINT)
        for key, offset in offsets.items():
            self.logs[key].truncate_to(offset)

    # -- housekeeping

    def tick(self) -> list[Job]:
        """What is due now. Call it every few hundred milliseconds, run the jobs, finish them.

        Never raises: a chore that fails is reported once, and costs neither the others nor their jobs anything."""
        settings = self.settings
        jobs: list[Job] = []
        chores: list[tuple[str, int, Callable[[], Iterable[Job]]]] = [
            ("presence", settings.presence_check_interval_ms, self._check_presence),
            ("flush", settings.flush_scheduler_interval_ms, self._flush_jobs),
            *(
                (name, interval_ms, partial(self._checkpoint_jobs, name))
                for name, interval_ms in (
                    (RECOVERY_POINT, settings.flush_offset_checkpoint_interval_ms),
                    (LOG_START_OFFSET, settings.flush_start_offset_checkpoint_interval_ms),
                    (HIGH_WATERMARK, settings.high_watermark_checkpoint_interval_ms),
                )
            ),
            ("retention", settings.retention_check_interval_ms, self._apply_retention),
            ("producers", settings.producer_id_expiration_check_interval_ms, self._expire_producers),
            ("removal", settings.removal_check_interval_ms, self._removal_jobs),
            ("cleaner checkpoints", 0, self.cleaning.checkpoint_jobs),
        ]
        if settings.cleaner_enable:
            chores.append(("cleaner", settings.cleaner_backoff_ms, self.cleaning.jobs))
        for name, interval_ms, chore in chores:
            if self._due(name, interval_ms):
                with self._reported(name):
                    jobs += chore()
        return jobs

    @contextlib.contextmanager
    def _reported(self, what: str, advice: str = "restart the node if that goes on") -> Iterator[None]:
        """Trouble in here ends here: it is written to the node's log when it begins or changes."""
        try:
            yield
        except StorageError:
            return  # the dir is offline, which its owner was told
        except Exception as error:
            trouble = f"{type(error).__name__}: {error}"
            if self._troubles.get(what) != trouble:
                self._troubles[what] = trouble
                _log.error("housekeeping (%s) failed, and is tried again: %s; %s", what, trouble, advice, exc_info=True)
        else:
            self._troubles.pop(what, None)

    def _due(self, what: str, interval_ms: int) -> bool:
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._last_done_ms.setdefault(what, now_ms) < interval_ms:
            return False
        self._last_done_ms[what] = now_ms
        return True

    def _check_presence(self) -> Iterable[Job]:
        for log_dir in self.online_dirs:
            log_dir.check_presence()
        return ()

    def _flush_jobs(self) -> list[FlushJob]:
        return [FlushJob(log) for log in self.logs.values() if log.flush_due]

    def _apply_retention(self) -> list[Job]:
        for log in list(self.logs.values()):
            key = log.topic_partition
            if self.cleaning.is_cleaning(key) or key in self._moving or log.is_offline:
                continue
            advice = "if another broker has a replica, stop this node, remove the folder and start it again"
            with self._reported(f"retention of {log.topic}-{log.partition} in {log.folder}", advice):
                log.apply_retention()
        return []

    def _expire_producers(self) -> list[Job]:
        for log in self.logs.values():
            log.expire_producers()
        return []

    def _checkpoint_jobs(self, name: str) -> list[CheckpointJob]:
        return [log_dir.checkpoint_job(name) for log_dir in self.online_dirs]

    def _removal_jobs(self) -> list[Job]:
        now_ms = self._clock.wall_ms()
        jobs: list[Job] = []
        for log_dir in self.online_dirs:
            files = [path for log in log_dir.logs.values() for path in log.take_removals()]
            inside = log_dir.path + "/"
            folders = [path for due_ms, path in self._removed_folders if due_ms <= now_ms and path.startswith(inside)]
            self._removed_folders = [entry for entry in self._removed_folders if entry[1] not in folders]
            if files or folders:
                jobs.append(RemoveJob(self._disk, files, folders, log_dir.fail))
        return jobs

    def describe_dirs(self) -> list[DirInfo]:
        """For DescribeLogDirs."""
        infos = []
        for log_dir in self.dirs.values():
            total, usable, error = -1, -1, log_dir.error
            if log_dir.is_online:
                try:
                    total, usable = self._disk.space(log_dir.path)
                except OSError as unreadable:  # it is gone, and nobody has written to it since
                    error = unreadable
            sizes = {key: log.size_bytes for key, log in log_dir.logs.items()}
            infos.append(DirInfo(log_dir.path, error, total, usable, sizes))
        return infos
