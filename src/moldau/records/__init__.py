"""Record batches: Kafka's format for records on the wire and on disk, batch v2."""

from moldau.records.batch import (
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    BatchHeader,
    check_crc,
    iter_batches,
    read_header,
    renew_crc,
    set_max_timestamp,
    stamp,
    stamp_log_append_time,
)
from moldau.records.codecs import Codec
from moldau.records.errors import (
    CorruptBatch,
    DecompressedTooLarge,
    InvalidRecord,
    RecordsError,
    UnsupportedCompression,
)

__all__ = [
    "HEADER_BYTES",
    "LOG_OVERHEAD_BYTES",
    "BatchHeader",
    "Codec",
    "CorruptBatch",
    "DecompressedTooLarge",
    "InvalidRecord",
    "RecordsError",
    "UnsupportedCompression",
    "check_crc",
    "iter_batches",
    "read_header",
    "renew_crc",
    "set_max_timestamp",
    "stamp",
    "stamp_log_append_time",
]
