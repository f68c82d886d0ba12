"""The settings of one partition's log: Kafka's topic settings, with Kafka's defaults.

The broker builds a `LogConfig` from the topic's settings over the node's `log.*` ones; this room never reads a
settings file. Names are Kafka's with dots turned into underscores.
"""

from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from moldau.records import Codec

LONG_MAX = 2**63 - 1


class TimestampType(Enum):
    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"


class CompressionType(Enum):
    """`compression.type` of a topic. PRODUCER keeps whatever the producer chose."""

    PRODUCER = "producer"
    UNCOMPRESSED = "uncompressed"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"

    @property
    def codec(self) -> Codec | None:
        """The codec batches are rewritten with, or None to leave them as they come."""
        return _CODECS[self.value]


_CODECS = {
    "producer": None,
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


@dataclass(slots=True, frozen=True)
class LogConfig:
    """The settings of one log; names and defaults are those of topic configs."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3600 * 1000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    flush_messages: int = LONG_MAX
    flush_ms: int = LONG_MAX
    retention_bytes: int = -1
    retention_ms: int = 7 * 24 * 3600 * 1000
    file_delete_delay_ms: int = 60_000
    max_message_bytes: int = 1_048_588
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = LONG_MAX
    delete_retention_ms: int = 24 * 3600 * 1000
    compression_type: CompressionType = CompressionType.PRODUCER
    message_timestamp_type: TimestampType = TimestampType.CREATE_TIME
    message_timestamp_before_max_ms: int = LONG_MAX
    message_timestamp_after_max_ms: int = 3_600_000
    producer_id_expiration_ms: int = 86_400_000
    # Whether transactional appends must carry the guard of a transaction the coordinator confirmed (KIP-890).
    transaction_partition_verification_enable: bool = False
    # How far a batch may expand before we call it hostile; only looked at when records must be read.
    max_decompressed_bytes: int = 256 << 20
    # The same for batches that a producer sends, as a multiple of `max.message.bytes`.
    expansion_max: int = 32

    # Derived, because every append asks.
    compact: bool = field(init=False)
    delete: bool = field(init=False)
    target_codec: Codec | None = field(init=False)
    stamps_append_time: bool = field(init=False)
    must_read_records: bool = field(init=False)
    takes_batches_as_they_are: bool = field(init=False)  # nothing of a batch is rewritten, no record is looked at
    plain_bytes_max: int = field(init=False)  # the largest batch that is taken as it is
    accepted_bytes_max: int = field(init=False)  # how far a producer's batch may expand
    max_segment_ms: int = field(init=False)

    def __post_init__(self) -> None:
        derive = partial(object.__setattr__, self)
        compact = "compact" in self.cleanup_policy
        derive("compact", compact)
        derive("delete", "delete" in self.cleanup_policy)
        derive("target_codec", self.compression_type.codec)
        derive("stamps_append_time", self.message_timestamp_type is TimestampType.LOG_APPEND_TIME)
        derive("must_read_records", compact or self.message_timestamp_before_max_ms != LONG_MAX)
        rewrites = self.stamps_append_time or self.target_codec is not None
        derive("takes_batches_as_they_are", not rewrites and not self.must_read_records)
        derive("plain_bytes_max", self.max_message_bytes if self.takes_batches_as_they_are else 0)
        derive("accepted_bytes_max", min(self.max_decompressed_bytes, self.expansion_max * self.max_message_bytes))
        # A compacted log rolls early enough that nothing stays uncompacted beyond the bound on the lag.
        lag_ms = self.max_compaction_lag_ms if compact and self.max_compaction_lag_ms > 0 else LONG_MAX
        derive("max_segment_ms", min(self.segment_ms, lag_ms))
