"""When to compact what: the dirtiest log that is due, one per cleaner thread, and a note of how far it got.

A log whose records cannot be cleaned (a damaged batch) is left alone until the node restarts or the topic is made
again; its `uncleanable` says why. One job at a time works on a partition, whatever its incarnation: a job whose log was
deleted or truncated aborts, but until it is finished no other begins, because both would write the same files.
The cleaner itself is loaded when there is something to clean.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from moldau.log.checkpoints import CLEANER_OFFSET, TopicPartition
from moldau.log.cleaner.cleanable import LogToClean, log_to_clean
from moldau.log.cleaner.throttle import Throttle
from moldau.log.context import LogContext
from moldau.log.dirs.log_dir import LogDir
from moldau.log.dirs.settings import ManagerSettings
from moldau.log.errors import CleaningAborted, LogError, StorageError
from moldau.log.jobs import CheckpointJob
from moldau.log.partition_log import PartitionLog

if TYPE_CHECKING:
    from moldau.log.cleaner.cleaner import CleanJob

_log = logging.getLogger(__name__)


class Cleaning:
    def __init__(
        self,
        context: LogContext,
        logs: Mapping[TopicPartition, PartitionLog],
        dirs: Mapping[str, LogDir],
        settings: Callable[[], ManagerSettings],
    ) -> None:
        """`settings` are asked for at each use: those of the cleaner may change while the node runs."""
        self._context = context
        self._logs = logs
        self._dirs = dirs
        self._settings = settings
        self._throttle = Throttle(lambda: settings().cleaner_io_max_bytes_per_second, context.clock)
        self._running: dict[TopicPartition, ScheduledClean] = {}
        self._paused: set[TopicPartition] = set()
        self.checkpoint_due: set[str] = set()
        # For those who watch.
        self.finished_count = self.bytes_read = self.bytes_written = 0
        self.dirty_ratio_max = 0.0  # when it was last looked

    def is_cleaning(self, key: TopicPartition) -> bool:
        return key in self._running

    @property
    def running_count(self) -> int:
        return len(self._running)

    def stop(self, key: TopicPartition) -> None:
        """Whatever the cleaning makes is thrown away; it ends soon."""
        job = self._running.get(key)
        if job is not None:
            job.clean.stop()

    def stop_all(self) -> None:
        for key in self._running:
            self.stop(key)

    def pause(self, key: TopicPartition) -> None:
        """Stop cleaning a log, and do not begin again until `resume`."""
        self.stop(key)
        self._paused.add(key)

    def resume(self, key: TopicPartition) -> None:
        self._paused.discard(key)

    def jobs(self) -> list[ScheduledClean]:
        """The dirtiest logs that are due, as many as there are free threads."""
        free = self._settings().cleaner_threads - len(self._running)
        if free <= 0:
            return []
        targets = sorted(self._due_targets(), key=lambda target: target.dirty_ratio, reverse=True)
        started: list[ScheduledClean] = []
        for target in targets:
            if len(started) == free:
                break
            try:
                started.append(self._start(target))
            except OSError as error:
                self._failed(target.log, error)
            except Exception as error:  # one bad log must not end the care for all others
                self._leave_alone(target.log, error)
        return started

    def _due_targets(self) -> list[LogToClean]:
        now_ms = self._context.clock.wall_ms()
        targets = []
        self.dirty_ratio_max = 0.0
        for key, log in list(self._logs.items()):
            if not log.config.compact or log.is_offline:
                continue
            if key in self._running or key in self._paused or log.uncleanable:
                continue
            try:
                target = log_to_clean(log, self._dirs[log.log_dir].cleaned_offsets.get(key), now_ms)
            except OSError as error:
                self._failed(log, error)
            except StorageError:
                continue  # the dir is offline, which its owner was told
            except Exception as error:  # one bad log must not end the care for all others
                self._leave_alone(log, error)
            else:
                self.dirty_ratio_max = max(self.dirty_ratio_max, target.dirty_ratio)
                if target.is_due:
                    targets.append(target)
        return targets

    def _failed(self, log: PartitionLog, error: OSError) -> None:
        """Nothing of the log was changed yet: if merely no descriptor was left, the next round tries again."""
        self._dirs[log.log_dir].fail(error)

    def _leave_alone(self, log: PartitionLog, error: Exception) -> None:
        log.uncleanable = str(error) if isinstance(error, LogError) else f"{type(error).__name__}: {error}"
        _log.error(
            "%s-%d is no longer compacted, for it cannot be read: %s. If another broker has a replica of it, stop this "
            "node, remove %s and start it again: it will be fetched anew. Else read what can be read and make the "
            "topic anew",
            log.topic,
            log.partition,
            log.uncleanable,
            log.folder,
        )

    def _start(self, target: LogToClean) -> ScheduledClean:
        from moldau.log.cleaner.cleaner import CleanJob

        settings = self._settings()
        clean = CleanJob(
            target,
            memory_bytes=settings.cleaner_dedupe_buffer_bytes // max(1, settings.cleaner_threads),
            throttle=self._throttle,
        )
        job = ScheduledClean(self, clean)
        self._running[target.log.topic_partition] = job
        return job

    def finished(self, job: ScheduledClean) -> None:
        clean = job.clean
        key = clean.log.topic_partition
        del self._running[key]
        self.bytes_read += clean.stats.bytes_read
        self.bytes_written += clean.stats.bytes_written
        if isinstance(clean.error, CleaningAborted | OSError):
            return
        if clean.error is not None:
            self._leave_alone(clean.log, clean.error)
            return
        self._dirs[clean.log.log_dir].cleaned_offsets[key] = clean.end_offset
        self.finished_count += 1
        self.checkpoint_due.add(clean.log.log_dir)

    def checkpoint_jobs(self) -> list[CheckpointJob]:
        """One per dir where a cleaning has finished since the last call."""
        due = [self._dirs[path] for path in self.checkpoint_due]
        self.checkpoint_due.clear()
        return [log_dir.checkpoint_job(CLEANER_OFFSET) for log_dir in due if log_dir.is_online]


class ScheduledClean:
    """A `CleanJob` that reports back."""

    __slots__ = ("_cleaning", "clean")

    def __init__(self, cleaning: Cleaning, clean: CleanJob) -> None:
        self._cleaning = cleaning
        self.clean = clean

    def run(self) -> None:
        self.clean.run()

    def finish(self) -> None:
        try:
            self.clean.finish()
        except StorageError:
            pass  # the dir is offline now, and its owner was told
        finally:
            self._cleaning.finished(self)
