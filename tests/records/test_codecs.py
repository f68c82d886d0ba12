"""The four codecs: what others write is read, what we write is what they read, nothing expands without bound."""

import gzip
import random
import zlib

import cramjam
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.records import Codec, CorruptBatch, DecompressedTooLarge, UnsupportedCompression, compress, decompress
from tests.records.samples import unhurried

COMPRESSED = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
TEXT = b"a line that repeats, as log lines do, with a number: %d\n"
SAMPLE = b"".join(TEXT % number for number in range(4000))


@unhurried
@given(st.binary(max_size=300) | st.integers(0, 200_000).map(lambda size: (SAMPLE + SAMPLE)[:size]))
def test_round_trip(data: bytes) -> None:
    for codec in Codec:
        assert decompress(codec, compress(codec, data)) == data
        assert decompress(codec, memoryview(compress(codec, memoryview(data))), max_bytes=len(data)) == data


@pytest.mark.parametrize("codec", Codec)
def test_no_byte_more_than_allowed(codec: Codec) -> None:
    squeezed = compress(codec, SAMPLE)
    assert decompress(codec, squeezed, len(SAMPLE)) == SAMPLE
    for allowed in (len(SAMPLE) - 1, 1, 0):
        with pytest.raises(DecompressedTooLarge, match=str(allowed)):
            decompress(codec, squeezed, allowed)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_what_expands_more_than_guessed_still_arrives(codec: Codec) -> None:
    data = bytes(5_000_000)
    assert decompress(codec, compress(codec, data)) == data


@pytest.mark.parametrize("codec", COMPRESSED)
def test_concatenated_streams_are_one(codec: Codec) -> None:
    assert decompress(codec, compress(codec, SAMPLE) + compress(codec, b"more")) == SAMPLE + b"more"
    with pytest.raises(DecompressedTooLarge):
        decompress(codec, compress(codec, SAMPLE) + compress(codec, b"more"), len(SAMPLE) + 3)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_cut_off_and_foreign_bytes_are_corrupt(codec: Codec) -> None:
    squeezed = compress(codec, SAMPLE)
    for bad in (squeezed[:-1], squeezed[: len(squeezed) // 2], squeezed[:9], b"\xff" * 40, b"no stream at all", b""):
        with pytest.raises(CorruptBatch, match="bad"):
            decompress(codec, bad)


def test_raw_snappy_is_read() -> None:
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(SAMPLE))) == SAMPLE


def test_snappy_is_written_in_blocks_of_32_kib() -> None:
    squeezed = compress(Codec.SNAPPY, SAMPLE)
    assert squeezed[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    first = int.from_bytes(squeezed[16:20], "big")
    assert bytes(cramjam.snappy.decompress_raw(squeezed[20 : 20 + first])) == SAMPLE[: 32 * 1024]


def test_a_snappy_block_that_claims_too_much_is_not_believed() -> None:
    with pytest.raises(CorruptBatch, match="cannot hold 4294967295"):
        decompress(Codec.SNAPPY, b"\xff\xff\xff\xff\x0f" + b"\x00" * 50, 2**33)


def test_snappy_blocks_share_one_bound() -> None:
    block = bytes(cramjam.snappy.compress_raw(b"x" * 1000))
    stream = compress(Codec.SNAPPY, b"")[:16] + 3 * (len(block).to_bytes(4, "big") + block)
    assert decompress(Codec.SNAPPY, stream, 3000) == b"x" * 3000
    with pytest.raises(DecompressedTooLarge, match="2999"):
        decompress(Codec.SNAPPY, stream, 2999)


def test_lz4_blocks_are_independent() -> None:
    """Java's client refuses linked blocks; bit 5 of the flags says independent."""
    squeezed = compress(Codec.LZ4, SAMPLE)
    assert squeezed[:4] == b"\x04\x22\x4d\x18"
    assert squeezed[4] >> 6 == 1
    assert squeezed[4] & 0b0010_0000


@pytest.mark.parametrize("size", [0, 1, 13, 65_536, 65_537, 262_144, 262_145, 600_000])
def test_lz4_frames_are_those_of_arrow_too_whether_it_was_worth_it_or_not(size: int) -> None:
    codec = pa.Codec("lz4")
    for data in (random.Random(size).randbytes(size), (SAMPLE * 4)[:size]):
        squeezed = compress(Codec.LZ4, data)
        assert len(squeezed) <= size + 7 + 4 + 4 * 10, "what does not shrink is stored as it is"
        assert codec.decompress(squeezed, decompressed_size=size, asbytes=True) == data
        assert decompress(Codec.LZ4, squeezed, size) == data


def test_linked_lz4_blocks_are_read_all_the_same() -> None:
    linked = bytes(cramjam.lz4.compress(SAMPLE))
    assert not linked[4] & 0b0010_0000
    assert decompress(Codec.LZ4, linked) == SAMPLE


def test_gzip_is_the_gzip_everyone_has() -> None:
    assert gzip.decompress(compress(Codec.GZIP, SAMPLE)) == SAMPLE
    assert decompress(Codec.GZIP, gzip.compress(SAMPLE)) == SAMPLE


@pytest.mark.parametrize(("codec", "low", "high"), [(Codec.GZIP, 1, 9), (Codec.LZ4, 1, 12), (Codec.ZSTD, -5, 19)])
def test_levels_trade_time_for_size(codec: Codec, low: int, high: int) -> None:
    quick, small = compress(codec, SAMPLE, low), compress(codec, SAMPLE, high)
    assert len(small) < len(quick)
    assert decompress(codec, quick) == decompress(codec, small) == SAMPLE


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
def test_a_bomb_is_stopped(codec: Codec) -> None:
    bomb = compress(codec, bytes(100 * 1024 * 1024))
    assert len(bomb) < 200_000
    with pytest.raises(DecompressedTooLarge):
        decompress(codec, bomb, 1024 * 1024)


def test_numbers_that_are_no_codec() -> None:
    with pytest.raises(UnsupportedCompression):
        compress(7, b"")  # type: ignore[arg-type]  # that is the point
    with pytest.raises(UnsupportedCompression):
        decompress(7, b"")  # type: ignore[arg-type]  # that is the point


def test_zlib_streams_are_not_gzip() -> None:
    with pytest.raises(CorruptBatch):
        decompress(Codec.GZIP, zlib.compress(SAMPLE))
