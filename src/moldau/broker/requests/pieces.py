"""Long lists of topics with their partitions, cut into pieces that are short enough for one turn of the loop.

A request has topics, and each of them has partitions: either list may be the long one. A piece is a list of topics with
so many partitions in all; a topic without any counts as one, and a topic with more than fit goes on in the next piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")
AT_ONCE = 500
"""Partitions (or topics) of a request that need not be cut."""
PER_PIECE = 200


class Shape(NamedTuple, Generic[T]):
    """How a kind of topic has its partitions."""

    partitions_of: Callable[[T], Sequence[Any]]
    with_partitions: Callable[[T, list[Any]], T]
    """A copy of the topic, with these."""


def is_long(topics: Sequence[T], partitions_of: Callable[[T], Sequence[Any]]) -> bool:
    """Whether others should have their turn while it is answered."""
    if len(topics) == 1:
        return len(partitions_of(topics[0])) > AT_ONCE
    return len(topics) > AT_ONCE or sum(map(len, map(partitions_of, topics))) > AT_ONCE


def cut(topics: Iterable[T], shape: Shape[T], per_piece: int = PER_PIECE) -> Iterator[list[T]]:
    """None of them is empty: of no topics there are no pieces."""
    partitions_of, with_partitions = shape
    piece: list[T] = []
    room = per_piece
    for topic in topics:
        partitions = partitions_of(topic)
        if len(partitions) <= room:
            piece.append(topic)
        else:
            first, last = 0, room
            while last < len(partitions):
                piece.append(with_partitions(topic, list(partitions[first:last])))
                yield piece
                piece = []
                first, last = last, last + per_piece
            partitions = partitions[first:]
            piece.append(with_partitions(topic, list(partitions)))
            room = per_piece
        room -= max(1, len(partitions))
        if room <= 0:
            yield piece
            piece, room = [], per_piece
    if piece:
        yield piece


def join(topics: list[Any], piece: list[Any]) -> None:
    """Add those of a piece. A topic that was cut becomes one again; its partitions are called so."""
    if topics and piece and topics[-1].name == piece[0].name and topics[-1].partitions and piece[0].partitions:
        topics[-1].partitions += piece[0].partitions
        piece = piece[1:]
    topics += piece


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of so many; the last may be shorter."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
