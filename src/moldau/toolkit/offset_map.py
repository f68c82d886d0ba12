"""What a commit says besides its offset: which records beyond it are finished, and when the group began to read.

A commit's offset is the first record that is not finished. With more workers than partitions many records beyond it
may be: they are noted in the commit's metadata, so that a restart repeats only what was in work. The same text keeps
the group's anchor on the topic (how many partitions there were when it first subscribed, and when), by which a
partition that was made later is known.

Invariant: offset and map are of one snapshot. Text that is not ours, damaged or of another version is ignored: that
repeats work and loses nothing. The text never grows beyond what was allowed; a map that is cut short is still true.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

PREFIX = "moldau1."
LIMIT_BYTES = 3_072  # brokers refuse more than 4,096 by default (`offset.metadata.max.bytes`)
FULL_BYTES = 2_048  # from here on a partition takes no further records until its map has shrunk
_TEXT_MAX = 65_536
_VARINT_BYTES_MAX = 9


@dataclass(slots=True, frozen=True)
class Anchor:
    """A group's first subscription to a topic."""

    partitions: int  # how many the topic had
    wall_ms: int


@dataclass(slots=True, frozen=True)
class Noted:
    """The content of a commit's metadata."""

    finished: tuple[tuple[int, int], ...] = ()  # ranges of offsets beyond the commit, the end not included
    anchor: Anchor | None = None


NOTHING = Noted()


def encode(offset: int, finished: Sequence[tuple[int, int]], anchor: Anchor | None, limit: int = LIMIT_BYTES) -> str:
    """The metadata of a commit at `offset`; the farthest ranges are left out if they do not fit."""
    head = bytearray()
    for number in (anchor.partitions, anchor.wall_ms) if anchor is not None else (0, 0):
        _put(head, number)
    body = bytearray()
    room = (limit - len(PREFIX)) * 3 // 4 - len(head) - 4
    end = offset
    for start, stop in finished:
        run = bytearray()
        _put(run, start - end)
        _put(run, stop - start)
        if len(body) + len(run) > room:
            break
        body += run
        end = stop
    if not body and anchor is None:
        return ""
    content = bytes(head + body)
    return PREFIX + base64.urlsafe_b64encode(content + zlib.crc32(content).to_bytes(4, "big")).decode().rstrip("=")


def decode(offset: int, text: str | None) -> Noted:
    """What the metadata of a commit at `offset` says; nothing, if it is not ours."""
    if not text or not text.startswith(PREFIX) or len(text) > _TEXT_MAX:
        return NOTHING
    coded = text[len(PREFIX) :]
    try:
        raw = base64.b64decode(coded + "=" * (-len(coded) % 4), altchars=b"-_", validate=True)
        content, checksum = raw[:-4], raw[-4:]
        if zlib.crc32(content).to_bytes(4, "big") != checksum:
            return NOTHING
        numbers = list(_numbers(content))
    except (binascii.Error, ValueError):
        return NOTHING
    if len(numbers) < 2 or len(numbers) % 2:
        return NOTHING
    anchor = Anchor(numbers[0], numbers[1]) if numbers[0] else None
    finished = []
    end = offset
    for gap, length in zip(numbers[2::2], numbers[3::2], strict=True):
        start = end + gap
        end = start + length
        if end > 2**63 or not length:
            return NOTHING
        finished.append((start, end))
    return Noted(tuple(finished), anchor)


def finished_beyond(
    unfinished: Iterable[int], next_offset: int, noted: Iterable[tuple[int, int]] = ()
) -> tuple[int, list[tuple[int, int]]]:
    """The offset to commit, and the finished ranges beyond it.

    `unfinished` are offsets in growing order; what else lies before `next_offset` is finished or does not exist.
    `noted` are ranges an earlier commit told of: those at or after `next_offset` are still to be skipped.
    """
    remaining = iter(unfinished)
    commit = next(remaining, next_offset)
    ranges: list[tuple[int, int]] = []
    end = commit + 1
    for offset in remaining:
        if offset > end:
            ranges.append((end, offset))
        end = offset + 1
    if next_offset > end:
        ranges.append((end, next_offset))
    for noted_start, stop in noted:
        if stop <= next_offset:
            continue
        start = max(noted_start, next_offset)
        if ranges and ranges[-1][1] == start:
            ranges[-1] = (ranges[-1][0], stop)
        elif start > commit or ranges:
            ranges.append((start, stop))
        else:
            commit = stop  # nothing unfinished before it: the commit itself may pass it
    return commit, ranges


def _put(out: bytearray, number: int) -> None:
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _numbers(content: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in content:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield number
            number = shift = 0
        elif shift >= 7 * _VARINT_BYTES_MAX:
            raise ValueError("a number of more than 63 bits")
    if shift:
        raise ValueError("cut off inside a number")
