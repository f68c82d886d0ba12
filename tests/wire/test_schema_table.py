"""The table and what is compiled from it."""

import random

import pytest

from moldau.wire import ZERO_UUID, ErrorCode, MalformedFrame, apis, decode, encode, encode_long, schema
from moldau.wire import messages as m
from moldau.wire.headers import (
    RequestHeader,
    decode_request_header,
    decode_response_header,
    encode_request_header,
    encode_response_header,
    peek_api,
)
from moldau.wire.internal import (
    decode_metadata_record,
    decode_value,
    encode_key,
    encode_metadata_record,
    encode_value,
    prefix_of,
)
from moldau.wire.message import Message
from tests.support.random_messages import every_message_and_version, random_message

RETIRED = {4, 5, 6, 7}


def test_every_api_of_a_4x_node_is_there() -> None:
    assert set(apis()) == set(range(93)) - RETIRED


def test_every_request_has_its_response_in_the_same_versions() -> None:
    for api in apis().values():
        request, response = schema.head(api.name + "Request"), schema.head(api.name + "Response")
        assert (request.number, request.versions, request.flexible) == (
            response.number,
            response.versions,
            response.flexible,
        )


def test_an_unstable_version_is_not_offered() -> None:
    assert apis()[22].versions == (0, 5)
    assert schema.head("InitProducerIdRequest").versions == (0, 6)


@pytest.mark.parametrize("name", schema.names())
def test_defaults_round_trip_in_every_version(name: str) -> None:
    made = getattr(m, name)()
    for version in range(made.first_version, made.last_version + 1):
        assert decode(type(made), version, encode(made, version)) == made


def test_unknown_tagged_fields_are_kept() -> None:
    request = m.HeartbeatRequest(group_id="g", unknown_tags={77: b"from the future", 5: b""})
    data = encode(request, 4)
    again = decode(m.HeartbeatRequest, 4, data)
    assert again.unknown_tags == {5: b"", 77: b"from the future"}
    assert encode(again, 4) == data


def test_known_and_unknown_tags_are_written_in_order() -> None:
    request = m.FetchRequest(cluster_id="c", unknown_tags={9: b"x"})
    assert decode(m.FetchRequest, 17, encode(request, 17)) == request


def test_messages_compare_by_value_and_show_their_fields() -> None:
    assert m.HeartbeatRequest(group_id="a") == m.HeartbeatRequest(group_id="a") != m.HeartbeatRequest(group_id="b")
    assert m.HeartbeatRequest() != m.HeartbeatResponse()
    assert "group_id='a'" in repr(m.HeartbeatRequest(group_id="a"))
    assert m.HeartbeatRequest(group_id="a").replace(member_id="m").member_id == "m"
    assert m.MetadataResponse().topics is not m.MetadataResponse().topics


def test_a_version_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ValueError, match="versions 0-13, not 14"):
        encode(m.MetadataRequest(), 14)
    with pytest.raises(AttributeError, match="no message Metdata"):
        m.MetdataRequest  # type: ignore[attr-defined]  # noqa: B018 - the misspelling is the test


def test_error_codes_know_whether_to_try_again() -> None:
    assert ErrorCode(6) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert ErrorCode.NOT_LEADER_OR_FOLLOWER.retriable
    assert not ErrorCode.TOPIC_AUTHORIZATION_FAILED.retriable
    assert all(code.meaning.endswith(".") for code in ErrorCode)
    assert sorted(ErrorCode) == list(range(-1, 134))


@pytest.mark.parametrize("client_id", [None, "", "klient", "žluťoučký"])
@pytest.mark.parametrize("version", [0, 12])
def test_headers(client_id: str | None, version: int) -> None:
    api = apis()[3]
    data = encode_request_header(api, version, 77, client_id) + b"body"
    assert peek_api(data) == (3, version, 77)
    header, position = decode_request_header(memoryview(data), flexible=version in api.flexible)
    assert header == RequestHeader(3, version, 77, client_id)
    assert data[position:] == b"body"
    answer = encode_response_header(77, header_version=api.response_header_version(version)) + b"body"
    assert decode_response_header(answer, header_version=api.response_header_version(version)) == (77, len(answer) - 4)


def test_api_versions_always_answers_with_the_oldest_header() -> None:
    assert apis()[18].request_header_version(4) == 2
    assert apis()[18].response_header_version(4) == 0


def test_coordinator_records_carry_type_and_version() -> None:
    key = encode_key(m.OffsetCommitKey(group="g", topic="t", partition=3))
    assert prefix_of(key) == 1
    assert decode(m.OffsetCommitKey, 0, key[2:]).partition == 3
    value = encode_value(m.OffsetCommitValue(offset=9, metadata="x"), 3)
    assert prefix_of(value) == 3
    assert decode_value(m.OffsetCommitValue, value).offset == 9
    with pytest.raises(MalformedFrame, match="no version 99"):
        decode_value(m.OffsetCommitValue, b"\0\x63")


def test_metadata_records_name_their_type() -> None:
    record = m.TopicRecord(name="t", topic_id=bytes(range(16)))
    data = encode_metadata_record(record)
    assert data[:3] == bytes([1, 2, 0])
    assert decode_metadata_record(data) == record
    for bad, reason in (
        (b"\2\2\0", "frame version 2"),
        (b"\1\x63\0", "type 99"),
        (b"\1\2\x09", "no version 9"),
        (b"\1", "ends"),
    ):
        with pytest.raises(MalformedFrame, match=reason):
            decode_metadata_record(bad)


def test_the_type_stubs_name_every_message() -> None:
    assert len({name for name, _ in every_message_and_version()}) == len(schema.names()) > 260
    assert issubclass(m.TopicRecord, Message)
    assert m.TopicRecord().topic_id == ZERO_UUID


def test_long_messages_are_written_as_short_ones_are() -> None:
    rng = random.Random(14)
    for name, version in every_message_and_version():
        message = random_message(name, version, rng)
        assert encode_long(message, version) == encode(message, version), (name, version)
