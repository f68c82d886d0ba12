"""Every command that may be refused as a whole is answered in the place its response has for that, in every version."""

from __future__ import annotations

from typing import Any, cast

import pytest

from moldau.broker.calls import Call
from moldau.broker.requests.forwarding import FORWARDABLE
from moldau.broker.requests.refusals import refusal_of
from moldau.broker.requests.registry import served_apis
from moldau.seams.network import Connection, ResponseSlot
from moldau.wire import ErrorCode, Message, apis, encode
from moldau.wire import messages as m

CODE = ErrorCode.REQUEST_TIMED_OUT
Scram = m.AlterUserScramCredentialsRequest
COMMANDS: list[Message] = [
    m.CreateTopicsRequest([m.CreateTopicsRequest.CreatableTopic("t")]),
    m.DeleteTopicsRequest(topic_names=["t"]),
    m.DeleteTopicsRequest([m.DeleteTopicsRequest.DeleteTopicState("t")]),
    m.CreatePartitionsRequest([m.CreatePartitionsRequest.CreatePartitionsTopic("t")]),
    m.AlterConfigsRequest([m.AlterConfigsRequest.AlterConfigsResource(2, "t")]),
    m.IncrementalAlterConfigsRequest([m.IncrementalAlterConfigsRequest.AlterConfigsResource(2, "t")]),
    m.CreateAclsRequest([m.CreateAclsRequest.AclCreation()]),
    m.DeleteAclsRequest([m.DeleteAclsRequest.DeleteAclsFilter()]),
    m.AlterClientQuotasRequest([m.AlterClientQuotasRequest.EntryData()]),
    Scram([Scram.ScramCredentialDeletion("ann", 1)], [Scram.ScramCredentialUpsertion("ann", 2)]),
]


def refused(request: Message) -> Any:
    api = apis()[type(request).number]
    call = Call(api, api.versions.last, 1, None, cast("Connection", None), cast("ResponseSlot", None))
    response = refusal_of(request, call, CODE)
    assert response is not None
    for version in api.versions:
        encode(response, version)
    return response


@pytest.mark.parametrize("request_", COMMANDS, ids=lambda each: type(each).__name__)
def test_what_is_named_is_answered_once(request_: Message) -> None:
    response = refused(request_)
    lists = [
        getattr(response, name)
        for name in ("topics", "responses", "results", "filter_results", "entries")
        if hasattr(response, name)
    ]
    assert [[each.error_code for each in items] for items in lists] == [[CODE]]


def test_all_others_have_one_code() -> None:
    named = {type(each).number for each in COMMANDS}
    for key in sorted(FORWARDABLE & served_apis().keys() - named):
        assert refused(apis()[key].request()).error_code == CODE


class Slot:
    closed = False

    def close(self, reason: str) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("request_", "version", "is_told"),
    [
        (m.MetadataRequest(), 13, True),
        (m.MetadataRequest(), 12, False),
        (m.FindCoordinatorRequest(), 3, True),
        (m.FindCoordinatorRequest(), 4, False),
    ],
)
def test_an_answer_without_a_place_for_the_error_is_not_given(request_: Message, version: int, is_told: bool) -> None:
    """An empty Metadata response would tell the client that there are no brokers."""
    slot = Slot()
    call = Call(apis()[type(request_).number], version, 1, None, cast("Connection", None), cast("ResponseSlot", slot))
    assert (refusal_of(request_, call, CODE) is not None) == is_told
    assert slot.closed != is_told
