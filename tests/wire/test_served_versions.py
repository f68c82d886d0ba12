"""The short way of reading ApiVersions says what the table's way says."""

import pytest

from moldau.wire import ErrorCode, MalformedFrame, decode, encode
from moldau.wire import messages as m
from moldau.wire.schema import Versions
from moldau.wire.served import decode_served

_KIND = m.ApiVersionsResponse


def _response(entries: int, error: ErrorCode = ErrorCode.NONE) -> m.ApiVersionsResponse:
    keys = [_KIND.ApiVersion(key, key % 3, key % 3 + 9) for key in range(entries)]
    return _KIND(error_code=error, api_keys=keys, throttle_time_ms=7, finalized_features_epoch=1 << 33)


@pytest.mark.parametrize("version", [0, 3, 4])
@pytest.mark.parametrize("entries", [0, 1, 90, 126, 127, 400])
def test_both_ways_agree(version: int, entries: int) -> None:
    served = decode_served(encode(_response(entries), version), version)
    assert served.error_code == 0
    assert served.versions == {key: Versions(key % 3, key % 3 + 9) for key in range(entries)}


def test_a_peer_that_does_not_know_the_version_answers_with_the_first() -> None:
    body = encode(_response(1, ErrorCode.UNSUPPORTED_VERSION), 0)
    served = decode_served(body, 3)
    assert served.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert served.versions == {0: Versions(0, 9)}


def test_an_error_is_told() -> None:
    assert decode_served(encode(_response(2, ErrorCode.INVALID_REQUEST), 3), 3).error_code == ErrorCode.INVALID_REQUEST


def test_entries_with_tagged_fields_are_read_too() -> None:
    # Two entries of a newer peer; the first says something more.
    entries = b"\x00\x01\x00\x04\x00\x12" + b"\x01\x05\x02ab" + b"\x00\x12\x00\x00\x00\x04\x00"
    body = b"\x00\x00\x03" + entries + b"\x00\x00\x00\x00\x00"
    assert len(decode(_KIND, 3, body).api_keys) == 2
    assert decode_served(body, 3).versions == {1: Versions(4, 18), 18: Versions(0, 4)}


@pytest.mark.parametrize("length", [0, 1, 2, 3, 20, 100])
def test_a_list_that_was_cut_off_is_malformed(length: int) -> None:
    with pytest.raises(MalformedFrame):
        decode_served(encode(_response(90), 3)[:length], 3)
