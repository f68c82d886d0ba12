"""Envelope (key 58), version 0. A broker passes on a client's command; the answer is in the answer.

Only commands that Kafka's brokers may forward are taken out of an envelope. The principal and the address are those of
the client, not of the broker that forwards.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Protocol, cast

from moldau.broker.calls import Call
from moldau.broker.quotas.meter import Meter
from moldau.broker.requests.access import answer
from moldau.broker.requests.forwarding import FORWARDABLE, address_text
from moldau.broker.requests.refusals import refusal_of
from moldau.broker.requests.registry import served_on
from moldau.broker.requests.threads import in_thread
from moldau.controller.errors import NotController, TooManyRecords
from moldau.seams.network import Connection, Payload
from moldau.security.principal import ANONYMOUS, Principal
from moldau.wire import ErrorCode, MalformedFrame, Message, decode_request, encode_long
from moldau.wire import messages as m
from moldau.wire.headers import decode_request_header, peek_api
from moldau.wire.internal import decode_value

if TYPE_CHECKING:
    from moldau.broker.parts import HasLoop, HasQuotas, HasTime, HasTurns

    class Needs(HasLoop, HasQuotas, HasTime, HasTurns, Protocol):
        """What this file may touch."""


_LARGE_BYTES = 32 * 1024  # reading more takes milliseconds


class _Client:
    """The connection a forwarded call seems to come over: the client's, behind the broker's."""

    def __init__(self, outer: Call, host: str, principal: Principal) -> None:
        self._outer = outer.connection
        self.peer_host = host
        self.context = replace(outer.session, principal=principal, client_address=host, is_forwarded=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._outer, name)


class _Captured:
    """A slot whose answer is not sent but kept."""

    def __init__(self) -> None:
        self.answered: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()

    def complete(self, payload: Payload) -> None:
        self.answered.set_result(b"".join(cast("bytes", piece) for piece in payload))

    def complete_nothing(self) -> None:
        self.answered.set_result(None)

    def close(self, reason: str) -> None:
        self.answered.set_result(None)


async def handle(broker: Needs, call: Call, request: m.EnvelopeRequest) -> m.EnvelopeResponse:
    frame = memoryview(bytearray(request.request_data))
    try:
        principal = _principal(request)
    except MalformedFrame:
        return _refused(ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE)
    try:
        api_key, version, correlation_id = peek_api(frame)
        served = served_on("controller").get(api_key)
        if api_key not in FORWARDABLE or served is None:
            return _refused(ErrorCode.INVALID_REQUEST)
        if version not in served.api.versions:
            return _refused(ErrorCode.UNSUPPORTED_VERSION)
        header, position = decode_request_header(frame, flexible=version in served.api.flexible)
        read = partial(decode_request, served.api.request, version, frame[position:])
        command = await in_thread(broker, read) if len(frame) > _LARGE_BYTES else read()
        client = _Client(call, address_text(request.client_host_address), principal)
    except MalformedFrame:
        return _refused(ErrorCode.INVALID_REQUEST)
    slot = _Captured()
    inner = Call(served.api, version, correlation_id, header.client_id, cast("Connection", client), slot)
    if broker.quotas.is_active:
        inner.meter = Meter(broker.quotas, broker.clock, inner, is_forwarded=True)
    try:
        response = answer(broker, inner, served.handle or served.load(), command)
        if isinstance(response, GeneratorType):
            response = await broker.in_turns(response)
        elif response is not None and not isinstance(response, Message):
            response = await response
    except NotController:
        return _refused(ErrorCode.NOT_CONTROLLER)
    except TooManyRecords as error:
        response = refusal_of(command, inner, ErrorCode.POLICY_VIOLATION, str(error))
    if response is not None and len(frame) > _LARGE_BYTES:  # its answer is as long
        inner.judge(response)
        inner.respond_payload([await in_thread(broker, partial(encode_long, response, version))])
    elif response is not None:
        inner.respond(response)
    data = await slot.answered
    return _refused(ErrorCode.UNKNOWN_SERVER_ERROR) if data is None else m.EnvelopeResponse(data)


def _principal(request: m.EnvelopeRequest) -> Principal:
    if request.request_principal is None:
        return ANONYMOUS
    data = decode_value(m.DefaultPrincipalData, request.request_principal)
    return Principal(data.type, data.name, data.token_authenticated)


def _refused(code: ErrorCode) -> m.EnvelopeResponse:
    return m.EnvelopeResponse(error_code=code, response_data=None)
