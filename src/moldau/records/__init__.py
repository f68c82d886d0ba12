"""Record batches: Kafka's format for records on the wire and on disk, batch v2.

Bytes in, bytes out: no sockets, files or clocks. `columns` and `arrow`, which need numpy and pyarrow, are imported
by name by those who want them.
"""

from moldau.records.batch import (
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    BatchHeader,
    check_crc,
    compute_crc,
    iter_batches,
    read_header,
    renew_crc,
    set_max_timestamp,
    set_producer,
    stamp,
    stamp_log_append_time,
)
from moldau.records.builder import BatchBuilder, BatchOptions, build_batch, empty_batch, recompress
from moldau.records.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES, Codec, compress, decompress
from moldau.records.control import (
    ControlType,
    EndTransactionMarker,
    build_control_batch,
    build_end_transaction_marker,
    control_key,
    read_control_records,
    read_control_type,
    read_end_transaction_marker,
)
from moldau.records.errors import (
    CorruptBatch,
    DecompressedTooLarge,
    InvalidRecord,
    RecordsError,
    UnsupportedCompression,
)
from moldau.records.fetched import AbortedTransaction, FetchedBatch, iter_fetched
from moldau.records.reader import Header, Headers, Record, iter_records

__all__ = [
    "DEFAULT_MAX_DECOMPRESSED_BYTES",
    "HEADER_BYTES",
    "LOG_OVERHEAD_BYTES",
    "AbortedTransaction",
    "BatchBuilder",
    "BatchHeader",
    "BatchOptions",
    "Codec",
    "ControlType",
    "CorruptBatch",
    "DecompressedTooLarge",
    "EndTransactionMarker",
    "FetchedBatch",
    "Header",
    "Headers",
    "InvalidRecord",
    "Record",
    "RecordsError",
    "UnsupportedCompression",
    "build_batch",
    "build_control_batch",
    "build_end_transaction_marker",
    "check_crc",
    "compress",
    "compute_crc",
    "control_key",
    "decompress",
    "empty_batch",
    "iter_batches",
    "iter_fetched",
    "iter_records",
    "read_control_records",
    "read_control_type",
    "read_end_transaction_marker",
    "read_header",
    "recompress",
    "renew_crc",
    "set_max_timestamp",
    "set_producer",
    "stamp",
    "stamp_log_append_time",
]
