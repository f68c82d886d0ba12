"""Compression types of Kafka's batches."""

from enum import IntEnum


class Codec(IntEnum):
    """Compression types by the number in the batch attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4
