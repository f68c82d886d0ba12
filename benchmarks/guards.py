"""What the guards cost a Produce and a Fetch: opcodes of the interpreter, with and without rules and quotas.

    python -m benchmarks.guards

Opcodes are counted, not timed: the same on every machine and however busy it is, and near enough to time where nothing
waits for a disk. What C does (checksums, sockets) is not in it, so that the shares shown are those of the worst case.
"""

from __future__ import annotations

import asyncio
import struct
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

from benchmarks.hot_path import _TOPIC, _Connection, _framed, _Slot, frames
from moldau.broker.calls import Session
from moldau.testing.broker import AsyncBroker
from moldau.wire import messages as m

_COUNT = 320  # ten times as many as one of which is timed
_AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",  # until the rules are there
}


class _Counted:
    def __init__(self) -> None:
        self.opcodes = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        frame.f_trace_opcodes = True
        self.opcodes += event == "opcode"
        return self


async def _opcodes(settings: dict[str, str], requests: Sequence[bytes]) -> dict[str, float]:
    """Per request of each kind, by a client that is allowed and not limited unless the requests before say so."""
    found = {}
    async with AsyncBroker({"log.segment.bytes": "1000000000", **settings}) as broker:
        (dispatcher,) = (each for kind, each in broker.node._dispatchers.items() if kind == "broker")
        host, _, port = broker.bootstrap_servers.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        for request in requests:
            writer.write(struct.pack(">i", len(request)) + request)
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            await reader.readexactly(size)
        writer.close()
        connection: Any = _Connection()
        connection.context = Session(client_address="127.0.0.1")
        slot: Any = _Slot()
        for kind, original in frames().items():
            frame = memoryview(bytearray(original))
            counted = _Counted()
            for number in range(_COUNT + 32):
                if number == 32:  # what is remembered is there
                    sys.settrace(counted)
                dispatcher.on_frame(connection, frame, slot)
                frame[:] = original  # the append stamped it
            sys.settrace(None)
            found[kind] = counted.opcodes / _COUNT
    return found


async def _compare() -> None:
    topics, acls, quotas = m.CreateTopicsRequest, m.CreateAclsRequest, m.AlterClientQuotasRequest
    create = _framed(topics([topics.CreatableTopic(_TOPIC, 1, 1)], 10_000), 7)

    def rule(name: str, operation: int) -> m.CreateAclsRequest.AclCreation:
        return acls.AclCreation(2, name, 3, "User:ANONYMOUS", "*", operation, 3)

    others = [rule(f"topic-{number}", 3) for number in range(1_000)]
    rules = _framed(acls([rule(_TOPIC, 3), rule(_TOPIC, 4), *others]), 3)

    def limit(client_id: str) -> bytes:
        names = ("producer_byte_rate", "consumer_byte_rate", "request_percentage")
        operations = [quotas.OpData(name, 1e12) for name in names]
        return _framed(quotas([quotas.EntryData([quotas.EntityData("client-id", client_id)], operations)]), 1)

    plain = await _opcodes({}, [create])
    states = {
        "rules": await _opcodes(_AUTHORIZER, [create, rules]),
        "others have quotas": await _opcodes({}, [create, limit("somebody")]),
        "rules, others have quotas": await _opcodes(_AUTHORIZER, [create, limit("somebody"), rules]),
        "quotas of its own": await _opcodes({}, [create, limit("bench")]),
    }
    for kind, base in plain.items():
        shares = (f"{name} {(each[kind] / base - 1) * 100:+.1f} %" for name, each in states.items())
        print(f"{kind:20} {base:7.0f} opcodes; with {'; '.join(shares)}")


if __name__ == "__main__":
    asyncio.run(_compare())
