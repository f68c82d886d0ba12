"""Clients may send a command to any broker: one that only the active controller can carry out is passed on to it.

The frame travels as it came, in an Envelope with the principal and the address of the client, and the answer goes back
as it comes. Of a command that the broker answers in part, the rest travels the same way. Asked of the active controller
itself, a command is carried out where it is. Either way it is tried until some controller answered or the time is up:
while a new one is being elected, clients wait instead of failing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Protocol, cast

from moldau.broker.requests.access import answer as answer_of
from moldau.broker.requests.refusals import refusal_of
from moldau.broker.requests.threads import in_thread
from moldau.controller.errors import NotController
from moldau.seams.network import Disconnected, RequestTimedOut
from moldau.timers.turns import Slices
from moldau.wire import ErrorCode, Message, decode, encode_long
from moldau.wire import messages as m
from moldau.wire.headers import decode_response_header, encode_request_header
from moldau.wire.internal import encode_value

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.controller.parts import HasController, HasControllerChannel
    from moldau.broker.parts import HasAuthorizer, HasConfig, HasIdentity, HasLoop, HasPeers, HasTime, HasTurns
    from moldau.broker.quorum.parts import HasQuorum

    class Needs(
        HasAuthorizer,
        HasController,
        HasControllerChannel,
        HasConfig,
        HasIdentity,
        HasLoop,
        HasPeers,
        HasTime,
        HasTurns,
        HasQuorum,
        Protocol,
    ):
        """What this file may touch."""


# By API key, what travels as it came.
FORWARDED = frozenset({19, 20, 30, 31, 37, 43, 45, 46, 49, 51, 55, 57, 64, 80, 81})
# All that Kafka marks forwardable, and nothing else is taken out of an Envelope. Of AlterConfigs (33) and
# IncrementalAlterConfigs (44) brokers forward what they did not refuse themselves, and requests for delegation tokens
# (38 to 40) after a look at the connection; AllocateProducerIds is their own.
FORWARDABLE = FORWARDED | {33, 38, 39, 40, 44, 67}
# CreateTopics, DeleteTopics, CreatePartitions: the controller may want the client to be silent. Their answers begin
# with for how long.
_MUTATIONS = frozenset({19, 20, 37})
_RETRY_MS = 50.0
_ATTEMPT_MS = 5_000.0
_LARGE_BYTES = 32 * 1024

Answer = Message | Awaitable[Message | None] | Slices[Message] | None
Handle = Callable[[Any, "Call", Message], Answer]


async def carry_out(broker: Needs, call: Call, handle: Handle, request: Message, frame: bytes) -> Message | None:
    """Here if this is the active controller, else there. None if the answer has been given already."""
    answer = await _by_the_controller(broker, call, lambda: answer_of(broker, call, handle, request), frame)
    if isinstance(answer, bytes):
        if call.api.key in _MUTATIONS:
            _silence(broker, call, answer)
        call.respond_frame(answer)
        return None
    return refusal_of(request, call, answer) if isinstance(answer, ErrorCode) else answer


def _silence(broker: Needs, call: Call, answer: bytes) -> None:
    header_version = call.api.response_header_version(call.version)
    _, position = decode_response_header(answer, header_version=header_version)
    throttle_ms = int.from_bytes(answer[position : position + 4], "big", signed=True)
    if throttle_ms > 0:
        call.connection.mute_until(broker.clock.monotonic_ms() + throttle_ms)


async def carry_out_rest(
    broker: Needs,
    call: Call,
    submit: Callable[[], Awaitable[Message]],
    request: Message,
    *,
    timeout_ms: float | None = None,
) -> Message:
    """Likewise with a command that is not what the client sent: what this node has not refused of it, or what follows
    from it. `timeout_ms` is `request.timeout.ms` if not said."""

    async def frame() -> bytes:
        """By a thread: it may be a long one. Only if it has to travel."""
        header = encode_request_header(call.api, call.version, call.correlation_id, call.client_id)
        return header + await in_thread(broker, partial(encode_long, request, call.version))

    answer = await _by_the_controller(broker, call, submit, frame, timeout_ms)
    if isinstance(answer, bytes):
        header_version = call.api.response_header_version(call.version)
        _, position = decode_response_header(answer, header_version=header_version)
        work = partial(decode, call.api.response, call.version, memoryview(answer)[position:])
        return work() if len(answer) < _LARGE_BYTES else await in_thread(broker, work)
    return cast("Message", refusal_of(request, call, answer) if isinstance(answer, ErrorCode) else answer)


async def _by_the_controller(
    broker: Needs,
    call: Call,
    here: Callable[[], Answer],
    frame: bytes | Callable[[], Awaitable[bytes]],
    timeout_ms: float | None = None,
) -> Message | bytes | ErrorCode | None:
    """The answer of this node, or the bytes of another's, or why there is neither."""
    if timeout_ms is None:
        timeout_ms = broker.config.get_int("request.timeout.ms")
    deadline_ms = broker.clock.monotonic_ms() + timeout_ms
    while True:
        left_ms = deadline_ms - broker.clock.monotonic_ms()
        if left_ms <= 0:
            return ErrorCode.REQUEST_TIMED_OUT
        if broker.controller.is_active:
            try:
                response = here()
                if response is None or isinstance(response, Message):
                    return response
                if isinstance(response, GeneratorType):
                    return cast("Message", await broker.in_turns(response))
                return await cast("Awaitable[Message | None]", response)
            except NotController:
                pass  # it was active a moment ago
        else:
            if not isinstance(frame, bytes):
                frame = await frame()
            answer = await _forward(broker, call, frame, min(left_ms, _ATTEMPT_MS))
            if answer is not None and answer.error_code == ErrorCode.NONE:
                return answer.response_data or b""
            if answer is not None and answer.error_code != ErrorCode.NOT_CONTROLLER:
                return ErrorCode(answer.error_code)
        await broker.controller_channel.pause(min(left_ms, _RETRY_MS))


async def _forward(broker: Needs, call: Call, frame: bytes, timeout_ms: float) -> m.EnvelopeResponse | None:
    endpoint = broker.metadata_log.leader_endpoint()
    if endpoint is None or broker.metadata_log.leader_id == broker.node_id:
        return None  # nobody, or soon this node itself
    who = call.principal
    principal = encode_value(m.DefaultPrincipalData(who.type, who.name, who.token_authenticated), 0)
    envelope = m.EnvelopeRequest(frame, principal, _address_bytes(call.session.client_address))
    try:
        response: m.EnvelopeResponse = await broker.controller_channels.call(
            *endpoint, envelope, timeout_ms=timeout_ms, lane="forwarding"
        )
    except (Disconnected, RequestTimedOut):
        return None
    return response


def _address_bytes(host: str) -> bytes:
    import ipaddress

    try:
        return ipaddress.ip_address(host).packed
    except ValueError:  # a name, as the simulator has them
        return host.encode()


def address_text(packed: bytes) -> str:
    """The other way."""
    import ipaddress

    try:
        return str(ipaddress.ip_address(packed))
    except ValueError:
        return packed.decode(errors="replace")
