"""What an ApiVersions response says of versions, without making an object of each of its hundred entries.

Peers of one release all say the same, in the same bytes: these are read once.
"""

from collections.abc import Mapping
from functools import lru_cache
from struct import Struct
from typing import NamedTuple

from moldau.wire import messages as m
from moldau.wire.codec import decode
from moldau.wire.errors import ErrorCode
from moldau.wire.schema import Versions

_ENTRY = Struct(">hhhB")  # api key, first and last version, no tagged fields
_FLEXIBLE = 3
_KNOWN_MAX = 64  # different lists of versions
_SHORT_MAX = 127  # entries that one byte can count
UNSUPPORTED = ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")  # how such a response begins


class Served(NamedTuple):
    error_code: int
    versions: Mapping[int, Versions]


def decode_served(body: bytes, version: int) -> Served:
    """The body of an ApiVersions response; raises MalformedFrame."""
    if body[:2] == UNSUPPORTED:
        version = 0  # whatever was asked for
    elif version >= _FLEXIBLE and len(body) > 2 and 0 < body[2] <= _SHORT_MAX:
        end = 3 + (body[2] - 1) * _ENTRY.size
        entries = body[3:end]
        if len(body) >= end and not any(entries[_ENTRY.size - 1 :: _ENTRY.size]):
            return Served(int.from_bytes(body[:2], "big", signed=True), _versions(entries))
    whole = decode(m.ApiVersionsResponse, version, body)
    return Served(
        whole.error_code, {each.api_key: Versions(each.min_version, each.max_version) for each in whole.api_keys}
    )


@lru_cache(_KNOWN_MAX)
def _versions(entries: bytes) -> Mapping[int, Versions]:
    return {key: Versions(first, last) for key, first, last, _ in _ENTRY.iter_unpack(entries)}
