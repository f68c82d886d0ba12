"""The four compression types of Kafka's batches, one pair of functions for all.

Invariant: `decompress` never makes more than `max_bytes` bytes, whatever the input claims, and any bad input ends
in a `RecordsError`. What `compress` writes is what Java's client, the strictest reader, accepts:
- lz4: the frame format with independent blocks (Java refuses linked ones);
- snappy: xerial framing, as snappy-java has it (raw snappy is accepted too: librdkafka and others write it);
- gzip and zstd: plain streams. All readers take concatenated frames, which Java's flushing streams produce.
"""

import zlib
from enum import IntEnum

import cramjam

from moldau.records.errors import CorruptBatch, DecompressedTooLarge, RecordsError, UnsupportedCompression

Buffer = bytes | bytearray | memoryview

# A broker's default for message.max.bytes is 1 MiB; text compresses up to about 100 times.
DEFAULT_MAX_DECOMPRESSED_BYTES = 128 * 1024 * 1024

_FIRST_GUESS_BYTES = 64 * 1024
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + (1).to_bytes(4, "big") + (1).to_bytes(4, "big")
_XERIAL_BLOCK_BYTES = 32 * 1024
# An element of three bytes copies at most 64: a block that claims more than this ratio lies about its size.
_SNAPPY_MAX_RATIO = 22
# Frame headers (version 1, independent blocks, no checksums; the last byte is theirs) and the blocks they announce.
# Larger blocks are smaller and faster to make, but readers make room for a whole one, so small data is not worth them.
_LZ4_SMALL, _LZ4_SMALL_BLOCK_BYTES = b"\x04\x22\x4d\x18\x60\x40\x82", 64 * 1024
_LZ4_LARGE, _LZ4_LARGE_BLOCK_BYTES = b"\x04\x22\x4d\x18\x60\x50\xfb", 256 * 1024
_LZ4_STORED = 1 << 31  # in a block's size: it is not compressed
_ZSTD_LEVEL = 3
_GZIP_LEVEL = 6
_OUTPUT_FULL = "failed to write whole buffer"


class Codec(IntEnum):
    """Compression types by the number in the batch attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_DECOMPRESS_INTO = {
    Codec.GZIP: cramjam.gzip.decompress_into,
    Codec.LZ4: cramjam.lz4.decompress_into,
    Codec.ZSTD: cramjam.zstd.decompress_into,
}


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """`data` as one stream of the codec. Snappy has no levels; the others take Kafka's `compression.*.level`."""
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            return zlib.compress(data, _GZIP_LEVEL if level is None else level, zlib.MAX_WBITS | 16)
        case Codec.SNAPPY:
            return _compress_xerial(data)
        case Codec.LZ4:
            if level is None:
                return _compress_lz4(data)
            compressor = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
            compressor.compress(bytes(data))  # it takes nothing else
            return bytes(compressor.finish())
        case Codec.ZSTD:
            return bytes(cramjam.zstd.compress(data, _ZSTD_LEVEL if level is None else level))
    raise UnsupportedCompression(f"compression type {codec} does not exist")


def decompress(codec: Codec, data: Buffer, max_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES) -> bytes:
    """All of the stream's bytes, or DecompressedTooLarge if they are more than `max_bytes`."""
    match codec:
        case Codec.NONE:
            if len(data) > max_bytes:
                raise _too_large(max_bytes)
            return bytes(data)
        case Codec.SNAPPY:
            if bytes(data[: len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC:
                return _decompress_xerial(data, max_bytes)
            return _decompress_snappy_block(data, max_bytes)
        case Codec.GZIP | Codec.LZ4 | Codec.ZSTD:
            return _decompress_growing(codec, data, max_bytes)
    raise UnsupportedCompression(f"compression type {codec} does not exist")


class Arena:
    """Memory that is used again and again: fresh pages cost more than what is written into them.

    Growing makes new memory, so what was handed out before stays as it was.
    """

    __slots__ = ("data",)

    def __init__(self, size_bytes: int = _FIRST_GUESS_BYTES) -> None:
        self.data = bytearray(size_bytes)

    def grow(self, size_bytes: int, used_bytes: int) -> None:
        """Have room for `size_bytes`, keeping the first `used_bytes`."""
        if len(self.data) < size_bytes:
            larger = bytearray(max(size_bytes, 2 * len(self.data)))
            with memoryview(self.data) as old:
                larger[:used_bytes] = old[:used_bytes]
            self.data = larger


def decompress_at(codec: Codec, data: Buffer, arena: Arena, position: int, max_bytes: int) -> int:
    """Decompress into the arena at `position`; returns the position behind, or raises as `decompress` does."""
    if codec not in _DECOMPRESS_INTO:
        plain = decompress(codec, data, max_bytes)
        arena.grow(position + len(plain), position)
        arena.data[position : position + len(plain)] = plain
        return position + len(plain)
    decompress_into = _DECOMPRESS_INTO[codec]
    size = min(max_bytes, max(_FIRST_GUESS_BYTES, 8 * len(data)))
    while True:
        arena.grow(position + size, position)
        try:
            with memoryview(arena.data)[position : position + size] as room:
                return position + int(decompress_into(data, room))
        except cramjam.DecompressionError as error:
            if _OUTPUT_FULL not in str(error):
                raise CorruptBatch(f"bad {codec.name.lower()} data: {error}") from error
        if size >= max_bytes:
            raise _too_large(max_bytes)
        size = min(max_bytes, size * 4)


def _too_large(max_bytes: int) -> RecordsError:
    return DecompressedTooLarge(f"the batch expands to more than {max_bytes} bytes: send smaller batches")


def _decompress_growing(codec: Codec, data: Buffer, max_bytes: int) -> bytes:
    """Streams need not tell their size, so guess, and grow fourfold: at worst a third of the work is done twice."""
    decompress_into = _DECOMPRESS_INTO[codec]
    size = min(max_bytes, max(_FIRST_GUESS_BYTES, 8 * len(data)))
    while True:
        output = bytearray(size)
        try:
            written = decompress_into(data, output)
            return bytes(memoryview(output)[:written])
        except cramjam.DecompressionError as error:
            if _OUTPUT_FULL not in str(error):
                raise CorruptBatch(f"bad {codec.name.lower()} data: {error}") from error
        if size >= max_bytes:
            raise _too_large(max_bytes)
        size = min(max_bytes, size * 4)


def _compress_lz4(data: Buffer) -> bytes:
    """A frame made of blocks: the library's own frames have blocks of 64 KiB, whatever there is to compress."""
    view = memoryview(data)
    is_small = len(view) <= _LZ4_SMALL_BLOCK_BYTES
    header, block_bytes = (_LZ4_SMALL, _LZ4_SMALL_BLOCK_BYTES) if is_small else (_LZ4_LARGE, _LZ4_LARGE_BLOCK_BYTES)
    parts = [header]
    room = memoryview(bytearray(int(cramjam.lz4.compress_block_bound(view[:block_bytes]))))
    for start in range(0, len(view), block_bytes):
        block = view[start : start + block_bytes]
        size = int(cramjam.lz4.compress_block_into(block, room, store_size=False))
        if size < len(block):
            parts += (size.to_bytes(4, "little"), bytes(room[:size]))
        else:
            parts += ((len(block) | _LZ4_STORED).to_bytes(4, "little"), bytes(block))
    parts.append(bytes(4))
    return b"".join(parts)


def _compress_xerial(data: Buffer) -> bytes:
    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


def _decompress_xerial(data: Buffer, max_bytes: int) -> bytes:
    view = memoryview(data)
    position = len(_XERIAL_HEADER)
    parts: list[bytes] = []
    room = max_bytes
    while position < len(view):
        length = int.from_bytes(view[position : position + 4], "big")
        if view[position : position + len(_XERIAL_MAGIC)] == _XERIAL_MAGIC:
            position += len(_XERIAL_HEADER)  # a second stream, appended to the first
            continue
        position += 4
        if len(view) - position < length:
            raise CorruptBatch("bad snappy data: a block reaches beyond the batch")
        try:
            part = _decompress_snappy_block(view[position : position + length], room)
        except DecompressedTooLarge:
            raise _too_large(max_bytes) from None
        room -= len(part)
        parts.append(part)
        position += length
    if position > len(view):
        raise CorruptBatch("bad snappy data: the stream ends in its header")
    return b"".join(parts)


def _decompress_snappy_block(data: Buffer, max_bytes: int) -> bytes:
    try:
        size = cramjam.snappy.decompress_raw_len(data)
        if size > _SNAPPY_MAX_RATIO * len(data):
            raise CorruptBatch(f"bad snappy data: {len(data)} bytes cannot hold {size}")
        if size > max_bytes:
            raise _too_large(max_bytes)
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"bad snappy data: {error}") from error
