"""Broker settings of the logs on disk. Most are what topics inherit; see `topic.SYNONYMS`.

The format is told in `definition.py`.
"""

LOG = """
cordoned.log.dirs list "" unique medium broker
    Log dirs that get no new replicas; `*` means all.
log.cleaner.backoff.ms long 15000 [0,...] medium cluster
    Pause of the cleaner when there is nothing to compact.
log.cleaner.dedupe.buffer.size long 134217728 - medium cluster
    Memory for the key table of compaction, over all cleaner threads.
log.cleaner.delete.retention.ms long 86400000 [0,...] medium cluster
    How long tombstones stay in a compacted topic.
log.cleaner.enable boolean true - medium static ignored
    Run the cleaner. Kafka 4 runs it always, and so does Moldau.
log.cleaner.io.buffer.load.factor double 0.9 - medium cluster ignored
    How full the key table may get; fuller compacts more at once, with more collisions.
log.cleaner.io.buffer.size int 524288 [0,...] medium cluster ignored
    Memory for reading and writing while compacting.
log.cleaner.io.max.bytes.per.second double 1.7976931348623157E308 - medium cluster
    Bytes the cleaner may read and write per second.
log.cleaner.max.compaction.lag.ms long 9223372036854775807 [1,...] medium cluster
    Longest time a record may stay uncompacted.
log.cleaner.min.cleanable.ratio double 0.5 [0,...,1] medium cluster
    Share of uncompacted bytes from which a log is worth compacting.
log.cleaner.min.compaction.lag.ms long 0 [0,...] medium cluster
    Time a record stays uncompacted at least.
log.cleaner.threads int 1 [0,...] medium cluster
    Threads that compact.
log.cleanup.policy list delete {compact,delete} medium cluster
    `delete` drops old segments, `compact` keeps the last record of each key; both may be given.
log.dir list /tmp/kafka-logs unique+ high static
    Folder for partitions when `log.dirs` is unset.
log.dir.failure.timeout.ms long 30000 [1,...] low static
    Stop if the controller was not told of a failed log dir after this long.
log.dirs list null unique+ high static
    Folders for partitions.
log.flush.interval.messages long 9223372036854775807 [1,...] high cluster
    Records after which a partition is flushed to disk.
log.flush.interval.ms long null - high cluster
    Time after which a partition is flushed to disk; `log.flush.scheduler.interval.ms` when unset.
log.flush.offset.checkpoint.interval.ms int 60000 [0,...] high static
    How often the flushed offsets are written down as recovery points.
log.flush.scheduler.interval.ms long 9223372036854775807 - high static
    How often partitions are checked for being due to flush.
log.flush.start.offset.checkpoint.interval.ms int 60000 [0,...] high static
    How often the log start offsets are written down.
log.index.interval.bytes int 4096 [0,...] medium cluster
    Bytes of log between two entries of the offset index.
log.index.size.max.bytes int 10485760 [4,...] medium cluster
    Largest index file; a full one rolls the segment.
log.initial.task.delay.ms long 30000 [0,...] low static internal
    Wait after start before retention, flush and checkpoints begin.
log.local.retention.bytes long -2 [-2,...] medium cluster ignored
    Bytes kept locally with tiered storage, which Moldau does not have.
log.local.retention.ms long -2 [-2,...] medium cluster ignored
    Time kept locally with tiered storage, which Moldau does not have.
log.message.timestamp.after.max.ms long 3600000 [0,...] medium cluster
    How far in the future a producer's timestamp may be.
log.message.timestamp.before.max.ms long 9223372036854775807 [0,...] medium cluster
    How far in the past a producer's timestamp may be.
log.message.timestamp.type string CreateTime {CreateTime,LogAppendTime} medium cluster
    Whether records carry the producer's time or the time of the append.
log.preallocate boolean false - medium cluster
    Reserve the whole segment on disk when it is created.
log.retention.bytes long -1 - high cluster
    Bytes a partition keeps; -1 means no limit.
log.retention.check.interval.ms long 300000 [1,...] medium static
    How often old segments are looked for.
log.retention.hours int 168 - high static
    Hours a partition keeps, unless set in minutes or milliseconds.
log.retention.minutes int null - high static
    Minutes a partition keeps, unless set in milliseconds.
log.retention.ms long null - high cluster
    Milliseconds a partition keeps; -1 means for ever.
log.roll.hours int 168 [1,...] high static
    Hours after which a segment is closed, unless set in milliseconds.
log.roll.jitter.hours int 0 [0,...] high static
    Random part taken off that time, unless set in milliseconds.
log.roll.jitter.ms long null - high cluster
    Random part taken off `log.roll.ms`, so that not all segments roll at once.
log.roll.ms long null - high cluster
    Milliseconds after which a segment is closed, even if it is not full.
log.segment.bytes int 1073741824 [1048576,...] high cluster
    Size at which a segment is closed.
log.segment.delete.delay.ms long 60000 [0,...] high cluster
    Wait between taking a file out of the log and deleting it.
min.insync.replicas int 1 [1,...] high cluster
    In-sync replicas an acks=all write needs.
num.recovery.threads.per.data.dir int 2 [1,...] high cluster
    Threads per log dir that recover and flush at start and stop.
producer.id.expiration.check.interval.ms int 600000 [1,...] low static internal
    How often idle producer ids are looked for.
producer.id.expiration.ms int 86400000 [1,...] low cluster
    Time after which an idle producer id is forgotten.
"""
