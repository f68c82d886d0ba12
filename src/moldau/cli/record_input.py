"""Input that may be quiet for long: what stands between separators, and something else done while nothing comes.

Invariant: whoever waits here for input or for time calls `meanwhile` many times a second, in the thread that waits. So
librdkafka's callbacks run there, and what they raise (a reader that has gone) ends the command as anything else does.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterable, Iterator
from typing import IO, TypeVar

_CHUNK_BYTES = 1 << 16
_RECORD_BYTES_MAX = 1 << 30
_TICK_SECONDS = 0.05
_T = TypeVar("_T")


class BadInput(Exception):
    """A line that cannot be a record; what was read before it is sent all the same."""


def chunks(source: IO[bytes], meanwhile: Callable[[], object]) -> Iterator[bytes]:
    """What is there, as soon as it is there, until the end."""
    # Nothing stays behind in the buffer of a `read1` that asks for more than it holds: `select` sees all there is.
    read: Callable[[int], bytes] = getattr(source, "read1", source.read)
    while True:
        while not _is_there(source):
            meanwhile()
        chunk = read(_CHUNK_BYTES)
        if not chunk:
            return
        yield chunk


def _is_there(source: IO[bytes]) -> bool:
    """Whether a read has something to give. What cannot be waited for (memory, a number too high) is just read."""
    try:
        return bool(select.select([source.fileno()], [], [], _TICK_SECONDS)[0])
    except (OSError, ValueError):
        return True


def pieces(chunks: Iterable[bytes], separator: bytes) -> Iterator[bytes]:
    """What stands between separators; at once when it is there, for whoever types lines."""
    rest = bytearray()
    for chunk in chunks:
        searched = max(len(rest) - len(separator) + 1, 0)
        rest += chunk
        if rest.find(separator, searched) >= 0:
            *whole, last = bytes(rest).split(separator)
            rest = bytearray(last)
            yield from whole
        if len(rest) > _RECORD_BYTES_MAX:
            raise BadInput(f"no separator in {_RECORD_BYTES_MAX} bytes")
    if rest:
        yield bytes(rest)


def paced(records: Iterable[_T], rate: float | None, meanwhile: Callable[[], object]) -> Iterator[_T]:
    """At most `rate` a second."""
    if rate is None:
        yield from records
        return
    began = time.monotonic()
    for number, record in enumerate(records):
        while (wait := began + number / rate - time.monotonic()) > 0:
            time.sleep(min(wait, _TICK_SECONDS))  # what --rate says
            meanwhile()
        yield record
