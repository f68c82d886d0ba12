"""A node's settings for its logs. They may be replaced while it runs: whoever uses them asks at each use."""

from dataclasses import dataclass

from moldau.log.cleaner.throttle import UNLIMITED_BYTES_PER_SECOND
from moldau.log.config import LONG_MAX


@dataclass(slots=True, frozen=True)
class ManagerSettings:
    """The names are Kafka's, without the leading `log.`."""

    flush_scheduler_interval_ms: int = LONG_MAX
    flush_offset_checkpoint_interval_ms: int = 60_000
    flush_start_offset_checkpoint_interval_ms: int = 60_000
    high_watermark_checkpoint_interval_ms: int = 5_000
    retention_check_interval_ms: int = 300_000
    producer_id_expiration_check_interval_ms: int = 600_000
    removal_check_interval_ms: int = 1_000
    presence_check_interval_ms: int = 2_000  # of the dirs themselves
    cleaner_enable: bool = True
    cleaner_backoff_ms: int = 15_000
    cleaner_threads: int = 1
    cleaner_dedupe_buffer_bytes: int = 128 << 20
    cleaner_io_max_bytes_per_second: float = UNLIMITED_BYTES_PER_SECOND
    file_delete_delay_ms: int = 60_000  # of whole partitions
    recovery_threads_per_data_dir: int = 2
