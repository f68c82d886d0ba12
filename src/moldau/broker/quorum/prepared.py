"""Metadata records made ready to be appended: encoded, and folded into the image they lead to.

A function of what it is given, so that a thread can do it: of ten thousand records this takes longer than others should
wait. What comes out holds only on the ground it stands on: `MetadataQuorum.append_prepared` asks whether it still does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from moldau.controller.delta import ImageDelta, diff
from moldau.controller.features import record_version
from moldau.controller.fold import apply
from moldau.controller.image import ClusterImage
from moldau.records import BatchBuilder
from moldau.wire import Message
from moldau.wire.internal import encode_metadata_record


class Ground(NamedTuple):
    """The end of the log as one leader knows it: what is decided next rests on that."""

    image: ClusterImage
    epoch: int
    next_offset: int
    wall_ms: int


class PreparedAppend(NamedTuple):
    """Records that belong together, and what the cluster is with them."""

    ground: Ground
    batch: bytearray
    image: ClusterImage
    delta: ImageDelta | None
    """What the records change, if somebody took the time to find out."""


def prepare(ground: Ground, records: Sequence[Message], *, with_delta: bool = False) -> PreparedAppend:
    version = ground.image.metadata_version
    builder = BatchBuilder()
    for record in records:
        builder.append(ground.wall_ms, None, encode_metadata_record(record, record_version(record, version)))
    last_offset = ground.next_offset + len(records) - 1
    image = apply(ground.image, records, offset=last_offset, epoch=ground.epoch)
    return PreparedAppend(ground, builder.finish(), image, diff(ground.image, image) if with_delta else None)
