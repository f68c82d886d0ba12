"""What counting and timing requests costs a Produce and a Fetch.

    python -m benchmarks.metrics_cost

One process, one broker, two dispatchers: the real one, and one whose requests are neither counted nor timed. They get
the same frames by turns, as many at a time as there are to one that is timed, so that whatever else the machine does
happens to both; what counts is the median of the differences between neighbours. The counters of bytes, which live in
connections and partitions, are timed beside them. All of it is held against a request's whole processor time in the
broker, twenty in flight over a socket: that is what throughput is made of.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.hot_path import _TOPIC, _Connection, _framed, _Side, _Slot, frames
from moldau.broker.request_times import SAMPLED_MASK

_TURNS = 800
_BLOCK = SAMPLED_MASK + 1
_COUNTS_PER_REQUEST = 3  # bytes in, bytes out, bytes of the topic


async def _difference_us() -> dict[str, tuple[float, float]]:
    """By kind of request: what it takes, and how much of that is counting and timing."""
    from moldau.broker.calls import Call, Session
    from moldau.broker.requests.dispatch import Dispatcher
    from moldau.testing.broker import AsyncBroker
    from moldau.wire import messages as m
    from moldau.wire.headers import decode_client_id, peek_api

    class Uncounted(Dispatcher):
        """The same way, for what is read by hand."""

        def on_frame(self, connection: Any, frame: memoryview, slot: Any) -> None:
            api_key, version, correlation_id = peek_api(frame)
            found = self._served.get(api_key)
            assert found is not None
            served, _ = found
            api = served.api
            first, last = api.versions
            assert first <= version <= last
            client_id, position = decode_client_id(frame, api.request_header_version(version) == 2)
            call = Call(api, version, correlation_id, client_id, connection, slot)
            handle = served.handle or served.load()
            if self._broker.quotas.is_active and self._kind == "broker":
                raise AssertionError
            if served.takes_frame:
                handle(self._broker, call, frame, position)
                if call.meter is not None:
                    raise AssertionError

    async with AsyncBroker({"log.segment.bytes": "1000000000"}) as broker:
        (counted,) = (each for kind, each in broker.node._dispatchers.items() if kind == "broker")
        uncounted = Uncounted(counted._broker)
        uncounted.open()
        connection: Any = _Connection()
        connection.context = Session()
        slot: Any = _Slot()
        topics = m.CreateTopicsRequest
        made = _framed(topics([topics.CreatableTopic(_TOPIC, 1, 1)], 10_000), 7)
        pausable: Any = _Paused(connection)
        counted.on_frame(pausable, memoryview(bytearray(made)), slot)
        while not slot.done:
            await asyncio.sleep(0.01)

        def block(dispatcher: Dispatcher, frame: memoryview, original: bytes) -> float:
            on_frame = dispatcher.on_frame
            begun = time.thread_time()
            for _ in range(_BLOCK):
                on_frame(connection, frame, slot)
                frame[:] = original  # the append stamped it
            return time.thread_time() - begun

        found = {}
        for kind, original in frames().items():
            frame = memoryview(bytearray(original))
            whole, extra = [], []
            for turn in range(_TURNS):
                order = (counted, uncounted) if turn % 2 else (uncounted, counted)
                took = {each: block(each, frame, original) for each in order}
                whole.append(took[counted])
                extra.append(took[counted] - took[uncounted])
            found[kind] = (
                statistics.median(whole) / _BLOCK * 1e6,
                statistics.median(extra) / _BLOCK * 1e6,
            )
            await asyncio.sleep(0)
        return found


class _Paused(_Connection):
    """A connection that a long request may pause."""

    def __init__(self, connection: Any) -> None:
        self.context = connection.context

    def pause_dispatch(self) -> None: ...

    def resume_dispatch(self) -> None: ...


def _count_us() -> float:
    """One counter of bytes."""
    from moldau.net.settings import NetCounters

    counters, times = NetCounters(), []
    for _ in range(50):
        begun = time.thread_time()
        for size in range(10_000):
            counters.bytes_in += size
        with_it = time.thread_time() - begun
        begun = time.thread_time()
        for _size in range(10_000):
            pass
        times.append(with_it - (time.thread_time() - begun))
    return statistics.median(times) / 10_000 * 1e6


def _whole_us() -> dict[str, float]:
    from moldau.wire import messages as m

    topics = m.CreateTopicsRequest
    with contextlib.ExitStack() as stack:
        side = _Side(Path(__file__).resolve().parent.parent, stack)
        side.exchange(_framed(topics([topics.CreatableTopic(_TOPIC, 1, 1)], 10_000), 7))
        return {
            kind: statistics.median(side.measure("pipelined", kind, frame) for _ in range(7))
            for kind, frame in frames().items()
        }


def main() -> None:
    whole, count_us = _whole_us(), _count_us()
    print(f"a counter of bytes: {count_us:.3f} us")
    for kind, (handler_us, extra_us) in asyncio.run(_difference_us()).items():
        cost_us = extra_us + _COUNTS_PER_REQUEST * count_us
        print(
            f"{kind:20} handler {handler_us:6.2f} us, of it counting and timing {extra_us:5.2f}; with bytes "
            f"{cost_us:5.2f} of {whole[kind]:6.2f} us: {cost_us / whole[kind]:.2%}"
        )


if __name__ == "__main__":
    main()
