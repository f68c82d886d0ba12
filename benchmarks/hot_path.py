"""What a Produce and a Fetch cost the broker, in microseconds of processor time, beside another state of the source.

    python -m benchmarks.hot_path [PATH-OF-ANOTHER-WORKTREE]

Time on the wall says little on a busy machine, and two runs one after the other say little about a difference of a few
percent. So each state runs in a process of its own, both stay up, and they are asked in turns; a round is a few
thousand requests, and what counts is the median over the rounds of the quotient between neighbours. `handler` calls the
dispatcher itself; the others send requests through a socket, from this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent.parent
_ROUNDS = 15
_COUNT = 6_000
_TOPIC = "hot"


class _Slot:
    __slots__ = ("done",)

    def __init__(self) -> None:
        self.done = 0

    def complete(self, payload: Any) -> None:
        self.done += 1

    def complete_nothing(self) -> None:
        self.done += 1

    def close(self, reason: str) -> None:
        raise AssertionError(reason)


class _Connection:
    listener_name = "PLAINTEXT"
    peer_host, peer_port = "127.0.0.1", 1
    is_closed = False
    context: Any = None


def frames() -> dict[str, bytes]:
    """One request of each kind, with its header and without its length."""
    from moldau.records import build_batch
    from moldau.wire import messages as m

    now_ms = time.time_ns() // 1_000_000
    produce, fetch = m.ProduceRequest, m.FetchRequest
    small = bytes(build_batch([(0, now_ms, None, b"x" * 100, ())]))
    large = bytes(build_batch([(each, now_ms, None, b"x" * 100, ()) for each in range(100)]))

    def write(batch: bytes, acks: int) -> bytes:
        data = produce.PartitionProduceData(index=0, records=batch)
        return _framed(produce(None, acks, 5_000, [produce.TopicProduceData(name=_TOPIC, partition_data=[data])]), 12)

    def read(offset: int, count: int) -> bytes:
        wanted = [fetch.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=count)]
        asked = fetch.FetchTopic(topic=_TOPIC, partitions=wanted)
        return _framed(fetch(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=[asked]), 12)

    return {
        "produce acks=1": write(small, 1),
        "produce acks=all": write(small, -1),
        "produce 100 records": write(large, 1),
        "fetch": read(3, 4_096),
        "fetch 1 MB": read(3, 1 << 20),
    }


def _framed(request: Any, version: int) -> bytes:
    from moldau.wire import apis, encode
    from moldau.wire.headers import encode_request_header

    api = apis()[request.number]
    return bytes(encode_request_header(api, version, 1, "bench")) + bytes(encode(request, version))


async def _serve() -> None:
    """In the process of one state of the source: a broker, and rounds of the handler when asked for."""
    from moldau.broker.calls import Session
    from moldau.testing.broker import AsyncBroker

    async with AsyncBroker({"log.segment.bytes": "1000000000"}) as broker:
        print(broker.bootstrap_servers, flush=True)
        (dispatcher,) = (each for kind, each in broker.node._dispatchers.items() if kind == "broker")
        connection: Any = _Connection()
        connection.context = Session()
        made = {kind: memoryview(bytearray(frame)) for kind, frame in frames().items()}
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        def command() -> None:
            line = os.read(0, 100).decode().strip()
            if not line:
                ended.set()
            elif line == "usage":
                usage = resource.getrusage(resource.RUSAGE_SELF)
                print(usage.ru_utime + usage.ru_stime, flush=True)
            else:
                original = made[line].tobytes()
                frame = made[line]
                on_frame = dispatcher.on_frame
                slot: Any = _Slot()
                spent = 0.0
                for _ in range(_COUNT // 100):
                    begun = time.thread_time()
                    for _ in range(100):
                        on_frame(connection, frame, slot)
                        frame[:] = original  # the append stamped it
                    spent += time.thread_time() - begun
                assert slot.done == _COUNT
                print(spent / _COUNT * 1e6, flush=True)

        loop.add_reader(0, command)
        await ended.wait()


class _Side:
    def __init__(self, tree: Path, stack: contextlib.ExitStack) -> None:
        environment = os.environ | {"PYTHONPATH": str(tree / "src")}
        command = [sys.executable, str(Path(__file__).resolve()), "serve"]
        self._process = subprocess.Popen(
            command, cwd=tree, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        stack.callback(self._end)
        assert self._process.stdout is not None
        host, _, port = self._process.stdout.readline().strip().rpartition(":")
        self._sock = stack.enter_context(socket.create_connection((host, int(port))))
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(20)

    def _ask(self, command: str) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def exchange(self, frame: bytes, depth: int = 1) -> None:
        self._sock.sendall((struct.pack(">i", len(frame)) + frame) * depth)
        for _ in range(depth):
            (size,) = struct.unpack(">i", self._sock.recv(4, socket.MSG_WAITALL))
            self._sock.recv(size, socket.MSG_WAITALL)

    def measure(self, where: str, kind: str, frame: bytes) -> float:
        if where == "handler":
            return self._ask(kind)
        depth = 20 if where == "pipelined" else 1
        before = self._ask("usage")
        for _ in range(_COUNT // depth):
            self.exchange(frame, depth)
        return (self._ask("usage") - before) / _COUNT * 1e6


def main() -> None:
    sys.path.insert(0, str(_HERE / "src"))
    from moldau.wire import messages as m

    made = frames()
    trees = [Path(path).resolve() for path in sys.argv[1:]] + [_HERE]
    topics = m.CreateTopicsRequest
    create = _framed(topics([topics.CreatableTopic(_TOPIC, 1, 1)], 10_000), 7)
    with contextlib.ExitStack() as stack:
        sides = [_Side(tree, stack) for tree in trees]
        for side in sides:
            side.exchange(create)
        print(f"{'':32}" + "".join(f"{tree.name:>14}" for tree in trees) + ("" if len(trees) == 1 else "   quotient"))
        for where in ("handler", "socket", "pipelined"):
            for kind, frame in made.items():
                rounds = []
                for turn in range(_ROUNDS + 1):
                    order = sides if turn % 2 else sides[::-1]
                    found = {id(side): side.measure(where, kind, frame) for side in order}
                    if turn:
                        rounds.append([found[id(side)] for side in sides])
                middle = [statistics.median(each) for each in zip(*rounds, strict=True)]
                line = f"{where:10} {kind:20} " + "".join(f"{each:11.2f} us" for each in middle)
                if len(sides) > 1:
                    quotient = statistics.median(each[-1] / each[0] for each in rounds)
                    best = min(each[-1] for each in rounds) / min(each[0] for each in rounds)
                    line += f"   {quotient:8.3f}  (of the best rounds {best:.3f})"
                print(line, flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        with tempfile.TemporaryDirectory():
            asyncio.run(_serve())
    else:
        main()
