"""Where in its segments the bytes lie that a fetch asks for: a region of one file, for `sendfile`.

Whole batches only, as far as they end below the upper bound. Consumers that follow the log ask for the same bound many
times in a row, so its position is kept until somebody truncates or replaces a segment (`forget`).
"""

from moldau.log.results import UNKNOWN_OFFSET, ReadInfo
from moldau.log.segment import Segment
from moldau.log.segments import Segments
from moldau.seams import FileRegion


class Reader:
    __slots__ = ("_known_bound", "_segments")

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._known_bound: tuple[int, Segment, int] | None = None

    def forget(self) -> None:
        self._known_bound = None

    def read(self, offset: int, max_bytes: int, bound: int, log_end_offset: int, *, min_one_batch: bool) -> ReadInfo:
        """Batches from the one holding `offset`, which lies in the log, to the byte limit, none reaching `bound`."""
        segments = self._segments.from_offset(offset)
        if offset >= bound:
            return ReadInfo(None, offset, segments[0].base_offset, UNKNOWN_OFFSET)
        for segment in segments:
            place = segment.find(offset)
            if place is None:  # the compaction took the rest of this segment
                continue
            limit = self._end_position(segment, bound, log_end_offset) - place.position
            if limit <= 0:
                break
            wanted = max(max_bytes, place.size) if min_one_batch else max_bytes
            if wanted < place.size:
                return ReadInfo(None, place.base_offset, segment.base_offset, place.position, True)
            region = FileRegion(segment.file, place.position, min(wanted, limit))
            return ReadInfo(region, place.base_offset, segment.base_offset, place.position)
        return ReadInfo(None, offset, segments[0].base_offset, UNKNOWN_OFFSET)

    def _end_position(self, segment: Segment, bound: int, log_end_offset: int) -> int:
        """Where in `segment` the batches below `bound` end."""
        if bound >= self._segments.end_of(segment, log_end_offset):
            return segment.size
        known = self._known_bound
        if known is not None and known[0] == bound and known[1] is segment:
            return known[2]
        place = segment.find(bound)
        position = segment.size if place is None else place.position
        self._known_bound = (bound, segment, position)
        return position
