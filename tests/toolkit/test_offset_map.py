"""The text beside a commit: what it says is what was noted, and whatever else is there is ignored."""

import base64
import itertools
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.toolkit.offset_map import LIMIT_BYTES, NOTHING, PREFIX, Anchor, Noted, decode, encode, finished_beyond

offsets = st.integers(0, 2**62)
steps = st.lists(st.tuples(st.integers(1, 2**20), st.integers(1, 2**20)), max_size=60)


def ranges_after(offset: int, found: list[tuple[int, int]]) -> list[tuple[int, int]]:
    ranges = []
    for gap, length in found:
        ranges.append((offset + gap, offset + gap + length))
        offset += gap + length
    return ranges


@given(offsets, steps, st.none() | st.builds(Anchor, st.integers(1, 2**31), st.integers(0, 2**45)))
def test_reads_what_was_written(offset: int, found: list[tuple[int, int]], anchor: Anchor | None) -> None:
    ranges = ranges_after(offset, found)
    text = encode(offset, ranges, anchor)
    assert text.isascii()
    assert decode(offset, text) == Noted(tuple(ranges), anchor)


@given(st.integers(0, 2**40), st.integers(0, 5_000), st.integers(40, LIMIT_BYTES))
def test_never_longer_than_allowed_and_true_when_cut(offset: int, count: int, limit: int) -> None:
    ranges = ranges_after(offset, [(1, 1)] * count)
    text = encode(offset, ranges, Anchor(3, 1_700_000_000_000), limit)
    assert len(text) <= limit
    noted = decode(offset, text)
    assert list(noted.finished) == ranges[: len(noted.finished)]
    assert noted.anchor is not None


@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda raw: PREFIX + base64.urlsafe_b64encode(raw).decode()))
def test_foreign_text_is_ignored(text: str) -> None:
    noted = decode(7, text)
    assert noted == NOTHING or text.startswith(PREFIX)


@pytest.mark.parametrize("content", [b"", b"\x00", b"\x00\x00\x01", b"\x00\x00" + b"\xff" * 12, b"\x00\x00\x01\x00"])
def test_a_right_checksum_alone_convinces_nobody(content: bytes) -> None:
    raw = content + zlib.crc32(content).to_bytes(4, "big")
    assert decode(0, PREFIX + base64.urlsafe_b64encode(raw).decode()) == NOTHING


@given(st.sets(st.integers(100, 160)), st.integers(100, 160), st.lists(st.integers(100, 160), max_size=8))
def test_what_is_not_unfinished_is_finished(unfinished: set[int], at_least: int, edges: list[int]) -> None:
    next_offset = max([at_least, *(offset + 1 for offset in unfinished)])
    edges = sorted(set(edges))
    noted = list(zip(edges[::2], edges[1::2], strict=False))
    commit, ranges = finished_beyond(sorted(unfinished), next_offset, noted)
    told = {offset for start, stop in ranges for offset in range(start, stop)}
    told |= set(range(100, commit))
    truth = set(range(100, next_offset)) - unfinished
    truth |= {offset for start, stop in noted for offset in range(start, stop) if offset >= next_offset}
    assert told == truth
    assert all(first[1] < second[0] for first, second in itertools.pairwise(ranges))
    assert not ranges or ranges[0][0] > commit
