"""Apps on a real broker, with virtual time: what is handled, retried, set aside, committed, and what is not."""

import asyncio
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from moldau.records.client_headers import UNREADABLE
from moldau.toolkit import (
    App,
    Batch,
    BatchFailed,
    Breaker,
    ByHeader,
    CircuitOpen,
    FromHeader,
    FromKey,
    HandlerFailed,
    Message,
    Retry,
    SetupError,
    TestApp,
    WrongType,
    offset_map,
)
from tests.support.raw_records import send_raw
from tests.toolkit.waiting import until

Fresh = Callable[[str], str]


@dataclass
class Order:
    id: str
    amount: int = 1


@dataclass
class Bill:
    order: str


def committed(bootstrap: str, group: str, topic: str, partition: int = 0) -> tuple[int, str]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    try:
        (found,) = consumer.committed([TopicPartition(topic, partition)], timeout=10)
        return found.offset, found.metadata or ""
    finally:
        consumer.close()


def test_retries_in_place_then_through_topics_then_dead_letters(bootstrap: str, fresh: Fresh) -> None:
    orders, bills = fresh("orders"), fresh("bills")
    app = App(fresh("billing"))
    seen: list[tuple[str, int]] = []

    @app.handler(orders, workers=4, retry=Retry(now=1, later=["10s", "1m"]), dead_letter=True, to=bills)
    async def bill(order: Order, message: Message) -> Bill:
        seen.append((order.id, message.attempt))
        if order.id == "bad":
            raise ValueError("no good")
        return Bill(order.id)

    async def main() -> None:
        async with TestApp(app, bootstrap_servers=bootstrap, partitions=2) as test:
            await test.send(orders, Order("bad"), key="b", headers={"tenant": "x"})
            await test.send(orders, Order("good"), key="g")
            await test.idle()
            await test.assert_sent(bills, Bill("good"))
            await test.assert_retried(orders, 0)
            await test.advance("1s")
            await test.assert_retried(orders, 1)
            await test.advance("8s")
            assert seen.count(("bad", 3)) == 0
            await test.advance("2s")
            assert seen.count(("bad", 3)) == 1
            await test.assert_dead_lettered(orders)
            await test.advance("1m")
            assert seen.count(("bad", 4)) == 1
            await test.assert_dead_lettered(orders, "no good")
            (letter,) = await test.dead_letters(orders)
            assert letter.key == b"b"
            assert letter.header("tenant") == b"x"
            assert letter.header("kafka_dlt-original-topic") == orders.encode()
            assert letter.header("kafka_original-offset") is not None
            assert letter.header("kafka_dlt-original-consumer-group") == app.name.encode()
            assert letter.header("retry_topic-attempts") == struct.pack(">i", 4)
            (handler,) = app.describe()["handlers"]
            assert (handler["handled"], handler["dead"], handler["held"]) == (1, 1, 0)

    asyncio.run(main())


def test_undecodable_bytes_are_set_aside_as_they_came(bootstrap: str, fresh: Fresh) -> None:
    """spring-kafka#2000: they were encoded once more, and grew."""
    orders = fresh("orders")
    app = App(fresh("billing"))
    seen: list[str] = []

    @app.handler(orders, dead_letter=True)
    async def bill(order: Order) -> None:
        seen.append(order.id)

    async def main() -> None:
        async with TestApp(app, bootstrap_servers=bootstrap) as test:
            headers = [("a", b"\xff\x00"), ("a", None), ("b", b"")]
            await test.send(orders, b"\xfe\xed {", key=b"\x00\x01", headers=headers)
            await test.send(orders, Order("after"))
            await test.idle()
            assert seen == ["after"]
            (letter,) = await test.dead_letters(orders)
            assert (letter.key, letter.value) == (b"\x00\x01", b"\xfe\xed {")
            assert list(letter.headers[:3]) == headers
            assert letter.header("kafka_dlt-exception-fqcn") == b"moldau.toolkit.errors.Undecodable"

    asyncio.run(main())


def test_a_header_whose_name_is_no_text_stops_nobody(bootstrap: str, fresh: Fresh) -> None:
    """confluent-kafka fails on it when it is asked first, and says "no headers" afterwards."""
    orders = fresh("orders")
    app = App(fresh("billing"))
    seen: list[tuple[str, list[Any]]] = []

    @app.handler(orders, retry=Retry(now=0, later=["1s"]), dead_letter=True)
    async def bill(order: str, message: Message) -> None:
        seen.append((order, list(message.headers)))
        if order == "bad":
            raise ValueError("on purpose")

    async def main() -> None:
        async with TestApp(app, bootstrap_servers=bootstrap) as test:
            send_raw(bootstrap, orders, b"good", [(b"\xff\xfe", b"x"), (b"a", b"1")])
            send_raw(bootstrap, orders, b"bad", [(b"\xc3", None)])
            await test.send(orders, "after", headers=[("a", b"1")])
            await test.idle()
            await test.advance("2s")
            assert [order for order, _ in seen] == ["good", "bad", "after", "bad"]
            assert seen[0][1] == [(UNREADABLE, b"a name is not UTF-8: b'\\xff\\xfe'")]
            (letter,) = await test.dead_letters(orders)
            assert (letter.value, letter.header(UNREADABLE)) == (b"bad", b"a name is not UTF-8: b'\\xc3'")

    asyncio.run(main())


def test_a_handler_cancelled_at_the_end_is_not_committed(bootstrap: str, fresh: Fresh) -> None:
    """faststream#2999. And what finished beyond it is not repeated."""
    orders, group = fresh("orders"), fresh("billing")
    handled: list[tuple[str, bool]] = []

    def make(*, hangs: bool) -> App:
        app = App(group, stop_within="50ms")

        @app.handler(orders, workers=4, order="none")
        async def bill(order: Order) -> None:
            if order.id == "slow" and hangs:
                await asyncio.sleep(3_600)
            handled.append((order.id, hangs))

        return app

    async def main() -> None:
        app = make(hangs=True)
        async with TestApp(app, bootstrap_servers=bootstrap) as test:
            for name in ("first", "slow", "third", "fourth"):
                await test.send(orders, Order(name))
            await until(lambda: len(handled) == 3)
        offset, text = await asyncio.to_thread(committed, bootstrap, group, orders)
        assert offset == 1
        assert offset_map.decode(offset, text).finished == ((2, 4),)
        async with TestApp(make(hangs=False), bootstrap_servers=bootstrap) as test:
            await test.idle()
        assert [name for name, hangs in handled if not hangs] == ["slow"]
        assert (await asyncio.to_thread(committed, bootstrap, group, orders))[0] == 4

    asyncio.run(main())


def test_by_hand_an_unfinished_record_is_never_passed(bootstrap: str, fresh: Fresh) -> None:
    """faststream#2610, #2618: the next success committed what was not acknowledged."""
    orders, group = fresh("orders"), fresh("billing")
    app = App(group)
    messages: dict[str, Message] = {}

    @app.handler(orders, commit="manual", order="none")
    async def bill(order: Order, message: Message) -> None:
        messages[order.id] = message
        if order.id == "third":
            await message.commit()

    async def main() -> None:
        async with TestApp(app, bootstrap_servers=bootstrap) as test:
            for name in ("first", "second", "third"):
                await test.send(orders, Order(name))
            await until(lambda: len(messages) == 3)
            await test.idle()
            assert (await asyncio.to_thread(committed, bootstrap, group, orders))[0] == 0
            messages["first"].done()
            await app.commit()
            assert (await asyncio.to_thread(committed, bootstrap, group, orders))[0] == 1
            await messages["third"].commit(earlier=True)
            assert (await asyncio.to_thread(committed, bootstrap, group, orders))[0] == 3

    asyncio.run(main())


def test_keys_keep_their_order_with_more_workers_than_partitions(bootstrap: str, fresh: Fresh) -> None:
    """faststream#2017: concurrency ended at the number of partitions."""
    orders = fresh("orders")
    app = App(fresh("billing"))
    seen: dict[bytes, list[int]] = {}
    running = most = 0

    all_at_once = asyncio.Event()

    @app.handler(orders, workers=16)
    async def bill(number: int, key: Annotated[bytes, FromKey()]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 16:
            all_at_once.set()
        await all_at_once.wait()
        await asyncio.sleep(0.001)
        seen.setdefault(key, []).append(number)
        running -= 1

    async def main() -> None:
        async with TestApp(app, bootstrap_servers=bootstrap) as test:
            for number in range(320):
                app.send(orders, number, key=f"k{number % 40}")
            await test.idle()
        assert len(seen) == 40
        assert all(numbers == sorted(numbers) and len(numbers) == 8 for numbers in seen.values())
        assert most == 16

    asyncio.run(main())


def test_a_key_is_parked_behind_its_failed_record(bootstrap: str, fresh: Fresh) -> None:
    orders = fresh("orders")
    app = App(fresh("billing"))
    seen: list[str] = []
    is_broken = True

    @app.handler(orders, workers=4, retry=Retry(now=0, later=["1m", "10m"], keep_order=True), dead_letter=True)
    async def bill(order: Order) -> None:
        if order.id == "a1" and is_broken:
            raise ValueError("not yet")
        seen.append(order.id)

    async def main() -> None:
        nonlocal is_broken
        async with TestApp(app, bootstrap_servers=bootstrap) as test:
            for key, name in (("a", "a1"), ("a", "a2"), ("b", "b1")):
                await test.send(orders, Order(name), key=key)
            await test.idle()
            assert seen == ["b1"]
            (parked,) = app.describe()["handlers"][0]["parked"]
            assert parked["behind"] == 1
            await test.advance("1m")
            assert seen == ["b1"]
            is_broken = False
            await test.advance("10m")
            assert seen == ["b1", "a1", "a2"]
            await test.assert_dead_lettered(orders)

    asyncio.run(main())


def test_without_dead_letters_the_app_stops_and_nothing_is_passed(bootstrap: str, fresh: Fresh) -> None:
    orders, group = fresh("orders"), fresh("billing")
    app = App(group)

    @app.handler(orders, order="none", retry=Retry(now=0))
    async def bill(order: Order) -> None:
        if order.id == "bad":
            raise ValueError("no good")

    async def main() -> None:
        with pytest.raises(HandlerFailed, match="dead_letter=True") as caught:  # noqa: PT012  it is raised at the end
            async with TestApp(app, bootstrap_servers=bootstrap) as test:
                for name in ("good", "bad", "good"):
                    await test.send(orders, Order(name))
                await until(lambda: app.failure is not None)
        assert isinstance(caught.value.__cause__, ValueError)
        assert (await asyncio.to_thread(committed, bootstrap, group, orders))[0] == 1

    asyncio.run(main())


@pytest.mark.parametrize("raised", [SystemExit(3), KeyboardInterrupt(), BaseException("odd")])
def test_a_base_exception_ends_the_app_and_commits_nothing(bootstrap: str, fresh: Fresh, raised: BaseException) -> None:
    orders, group = fresh("orders"), fresh("billing")
    app = App(group)

    @app.handler(orders, dead_letter=True)
    async def bill(order: Order) -> None:
        raise raised

    async def main() -> None:
        test = TestApp(app, bootstrap_servers=bootstrap)
        await test.__aenter__()
        try:
            await test.send(orders, Order("x"))
            await until(lambda: app.failure is not None)
            assert app.failure is raised
        finally:
            await test.__aexit__(ValueError, None, None)
        assert (await asyncio.to_thread(committed, bootstrap, group, orders))[0] == 0

    asyncio.run(main())


def test_a_cancellation_of_the_handlers_own_is_a_failure(bootstrap: str, fresh: Fresh) -> None:
    orders = fresh("orders")
    app = App(fresh("billing"))

    @app.handler(orders, retry=Retry(now=0), dead_letter=True)
    async def bill(order: Order) -> None:
        raise asyncio.CancelledError("from inside")

    async def main() -> None:
        async with TestApp(app, bootstrap_servers=bootstrap) as test:
            await test.send(orders, Order("x"))
            await test.idle()
            await test.assert_dead_lettered(orders, "from inside")

    asyncio.run(main())


def test_one_that_never_returns_is_timed_out(bootstrap: str, fresh: Fresh) -> None:
    orders = fresh("orders")
    app = App(fresh("billing"))

    @app.handler(orders, timeout="50ms", retry=Retry(now=0), dead_letter=True)
    async def bill(order: Order) -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        async with TestApp(app, bootstrap_servers=bootstrap) as test:
            await test.send(orders, Order("x"))
            await test.idle()
            (letter,) = await test.dead_letters(orders)
            assert letter.header("kafka_dlt-exception-fqcn") == b"TimeoutError"

    asyncio.run(main())


def test_plain_functions_run_in_threads(bootstrap: str, fresh: Fresh) -> None:
    orders, bills = fresh("orders"), fresh("bills")
    app = App(fresh("billing"))

    @app.handler(orders, workers=3, order="none", to=bills)
    def bill(order: Order, tenant: Annotated[str | None, FromHeader("tenant")]) -> Bill:
        asyncio.run(asyncio.sleep(0))  # there is no loop in this thread
        return Bill(f"{order.id}-{tenant}")

    async def main() -> None:
        async with TestApp(app, bootstrap_servers=bootstrap) as test:
            for number in range(10):
                await test.send(orders, Order(str(number)), headers={"tenant": "x"} if number else {})
            await test.idle()
            assert sorted(bill.order for bill in await test.sent(bills)) == sorted(
                ["0-None", *(f"{number}-x" for number in range(1, 10))]
            )

    asyncio.run(main())


def test_batches_by_size_and_by_time(bootstrap: str, fresh: Fresh) -> None:
    orders = fresh("orders")
    app = App(fresh("billing"))
    batches: list[list[str]] = []

    @app.handler(orders, batch=Batch(size=3, within="1s"))
    async def bill(found: list[Order]) -> None:
        batches.append([order.id for order in found])

    async def main() -> None:
        async with TestApp(app, bootstrap_servers=bootstrap) as test:
            for name in "abcd":
                app.send(orders, Order(name), key="k")
            await until(lambda: batches == [["a", "b", "c"]])
            await until(lambda: app.groups[0].handlers[0].lanes[0].batch_since_ms is not None)
            test.time.advance(1_000)
            await until(lambda: batches == [["a", "b", "c"], ["d"]])
            await test.idle()

    asyncio.run(main())


def test_one_bad_record_takes_no_good_one_of_its_batch_with_it(bootstrap: str, fresh: Fresh) -> None:
    orders = fresh("orders")
    app = App(fresh("billing"))
    calls: list[list[str]] = []

    @app.handler(orders, batch=Batch(size=3, within="1s"), retry=Retry(now=1), dead_letter=True)
    async def bill(found: list[Order]) -> None:
        calls.append([order.id for order in found])
        if "told" in calls[-1]:
            raise BatchFailed({calls[-1].index("told"): ValueError("told")})
        if "bad" in calls[-1]:
            raise ValueError("bad")

    async def main() -> None:
        async with TestApp(app, bootstrap_servers=bootstrap) as test:
            for name in ("a", "bad", "c"):
                app.send(orders, Order(name), key="k")
            await until(lambda: len(calls) == 1)
            await test.advance("2s")
            assert calls == [["a", "bad", "c"], ["a", "bad", "c"], ["a"], ["bad"], ["c"]]
            await test.assert_dead_lettered(orders, "bad")
            calls.clear()
            for name in ("d", "told", "f"):
                app.send(orders, Order(name), key=name)
            await until(lambda: len(calls) == 1)
            await test.advance("5s")
            assert calls == [["d", "told", "f"], ["told"]]
            await test.assert_dead_lettered(orders, "bad", "told")

    asyncio.run(main())


def test_a_breaker_pauses_before_everything_dies(bootstrap: str, fresh: Fresh) -> None:
    orders = fresh("orders")
    app = App(fresh("billing"))
    is_broken, calls = True, 0

    @app.handler(orders, retry=Retry(now=0), dead_letter=True, breaker=Breaker(consecutive=3, pause="30s"))
    async def bill(order: Order) -> None:
        nonlocal calls
        calls += 1
        if is_broken:
            raise ConnectionError("the database is away")

    async def main() -> None:
        nonlocal is_broken
        async with TestApp(app, bootstrap_servers=bootstrap) as test:
            for number in range(20):
                app.send(orders, Order(str(number)))
            await until(lambda: app.describe()["handlers"][0]["is_breaker_open"])
            assert calls == 3
            assert len(await test.dead_letters(orders)) == 2
            is_broken = False
            test.time.advance(30_000)
            await test.idle()
            assert len(await test.dead_letters(orders)) == 2
            assert app.describe()["handlers"][0]["handled"] == 18

    asyncio.run(main())


def test_many_quick_handlers_leave_the_loop_to_others(bootstrap: str, fresh: Fresh) -> None:
    """However many records are ready and however quick the handler is, others on the loop have their turn."""
    from moldau.net.loop import new_event_loop

    orders = fresh("orders")
    app = App(fresh("billing"))
    turns: list[int] = []
    handled = 0
    gate = asyncio.Event()

    @app.handler(orders, workers=1, order="none")
    async def bill(number: int) -> None:
        nonlocal handled
        await gate.wait()
        until_then = time.monotonic() + 0.001  # it computes, and never waits
        while time.monotonic() < until_then:
            pass
        handled += 1

    async def other() -> None:
        while handled < 1_000:
            turns.append(handled)
            await asyncio.sleep(0)

    async def main() -> None:
        async with TestApp(app, bootstrap_servers=bootstrap) as test:
            for number in range(1_000):
                app.send(orders, number)
            await until(lambda: app.groups[0].handlers[0].main.scheduler.held == 1_000)
            gate.set()
            await asyncio.create_task(other())
            await test.idle()
        assert len(set(turns)) >= 5, "a thousand of them take a second: a slice is a hundredth of one"

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())


def test_a_breaker_may_slow_the_handler(bootstrap: str, fresh: Fresh) -> None:
    orders = fresh("orders")
    app = App(fresh("billing"))
    is_broken, calls = True, 0
    breaker = Breaker(consecutive=3, action="slow", pause="30s")

    @app.handler(orders, workers=4, order="none", retry=Retry(now=0), dead_letter=True, breaker=breaker)
    async def bill(order: Order) -> None:
        nonlocal calls
        calls += 1
        if is_broken:
            raise ConnectionError("the database is away")

    async def main() -> None:
        nonlocal is_broken
        async with TestApp(app, bootstrap_servers=bootstrap) as test:
            for number in range(30):
                app.send(orders, Order(str(number)))
            await test.idle()
            at_first = calls
            assert 3 <= at_first <= 3 + 4, "what was running when it became too much ends"
            for more in range(1, 4):
                await test.advance("30s")
                assert calls == at_first + more, "one at a time"
            assert len(await test.dead_letters(orders)) == calls, "and what dies is set aside"
            is_broken = False
            await test.advance("30s")
            assert app.describe()["handlers"][0]["handled"] == 30 - at_first - 3
            assert not app.describe()["handlers"][0]["is_breaker_open"]

    asyncio.run(main())


def test_retries_have_their_turn_while_there_is_a_backlog(bootstrap: str, fresh: Fresh) -> None:
    """A handler that never catches up would leave its retries waiting for as long."""
    orders = fresh("orders")
    app = App(fresh("billing"))
    seen: list[str] = []
    more = True

    @app.handler(orders, workers=1, order="none", retry=Retry(now=0, later=["1s"]))
    async def bill(order: Order) -> None:
        nonlocal more
        seen.append(order.id)
        if order.id == "bad" and seen.count("bad") == 1:
            raise ValueError("once")
        if order.id == "bad":
            more = False
        elif more:
            app.send(orders, Order("next"))  # there is always one more
        await asyncio.sleep(0)

    async def main() -> None:
        async with TestApp(app, bootstrap_servers=bootstrap) as test:
            await test.send(orders, Order("bad"))
            for _ in range(2_000):
                app.send(orders, Order("next"))
            await until(lambda: app.describe()["handlers"][0]["retried"] == 1)
            test.time.advance(2_000)
            await until(lambda: seen.count("bad") == 2)
            await test.idle()

    asyncio.run(main())


def test_a_breaker_may_stop_the_app(bootstrap: str, fresh: Fresh) -> None:
    orders = fresh("orders")
    app = App(fresh("billing"))

    @app.handler(orders, retry=Retry(now=0), dead_letter=True, breaker=Breaker(consecutive=2, action="stop"))
    async def bill(order: Order) -> None:
        raise ConnectionError("the database is away")

    async def main() -> None:
        with pytest.raises(CircuitOpen, match="nothing is lost"):  # noqa: PT012  it is raised at the end
            async with TestApp(app, bootstrap_servers=bootstrap) as test:
                for number in range(5):
                    await test.send(orders, Order(str(number)))
                await until(lambda: app.failure is not None)

    asyncio.run(main())


def test_several_types_on_one_topic(bootstrap: str, fresh: Fresh) -> None:
    events = fresh("events")
    app = App(fresh("billing"))
    app.topic(events, Annotated[Order | Bill, ByHeader("type")])
    seen: list[Any] = []

    @app.handler(events)
    async def ordered(order: Order) -> None:
        seen.append(order)

    @app.handler(events)
    async def billed(bill: Bill) -> None:
        seen.append(bill)

    async def main() -> None:
        async with TestApp(app, bootstrap_servers=bootstrap) as test:
            await test.send(events, Order("x"))
            await test.send(events, Bill("x"))
            await test.idle()
            assert seen == [Order("x"), Bill("x")]
            with pytest.raises(WrongType, match=events):
                app.send(events, "text")

    asyncio.run(main())


@pytest.mark.parametrize("too_large_for", ["the producer", "the topic"])
def test_an_oversized_result_is_a_failure_of_its_record(bootstrap: str, fresh: Fresh, too_large_for: str) -> None:
    orders, bills = fresh("orders"), fresh("bills")
    app = App(fresh("billing"), producer={"message.max.bytes": 5_000_000} if too_large_for == "the topic" else {})

    @app.handler(orders, retry=Retry(now=0), dead_letter=True, to=bills)
    async def bill(order: Order) -> bytes:
        return bytes(2_000_000)

    async def main() -> None:
        async with TestApp(app, bootstrap_servers=bootstrap) as test:
            await test.send(orders, Order("x"))
            await test.idle()
            await test.assert_dead_lettered(orders, "larger")
            assert await test.sent(bills) == []

    asyncio.run(main())


def test_seek_and_replay(bootstrap: str, fresh: Fresh) -> None:
    orders, group = fresh("orders"), fresh("billing")
    app = App(group)
    seen: list[str] = []

    @app.handler(orders)
    async def bill(order: Order) -> None:
        seen.append(order.id)

    async def main() -> None:
        async with TestApp(app, bootstrap_servers=bootstrap) as test:
            for index, name in enumerate("abc"):
                await test.send(orders, Order(name), timestamp_ms=1_700_000_000_000 + index * 1_000)
            await test.idle()
            await app.seek(orders, 0, 2)
            await until(lambda: seen == ["a", "b", "c", "c"])
            await app.replay(orders, 1_700_000_000_500)
            await until(lambda: seen == ["a", "b", "c", "c", "b", "c"])
            await test.idle()
            with pytest.raises(ValueError, match="not assigned"):
                await app.seek(orders, 5, 0)
        assert (await asyncio.to_thread(committed, bootstrap, group, orders))[0] == 3

    asyncio.run(main())


def test_hooks_patterns_and_periodic_functions(bootstrap: str, fresh: Fresh) -> None:
    base = fresh("events")
    said: list[Any] = []

    class Watching:
        def on_consume(self, messages: Any) -> None:
            said.append(("consumed", len(messages)))

        def on_commit(self, offsets: Any) -> None:
            said.append(("committed", dict(offsets)))

        def on_send(self, record: Any) -> Any:
            raise ValueError("an interceptor's failure is its own")

    app = App(fresh("watcher"), interceptors=[Watching()], consumer={"topic.metadata.refresh.interval.ms": 200})
    app.on_start(lambda: said.append("start"))
    app.on_stop(lambda: said.append("stop"))
    app.on_assigned(lambda wheres: said.append(("assigned", wheres)))
    app.on_revoked(lambda wheres: said.append(("revoked", wheres)))
    app.every("10s")(lambda: said.append("tick"))
    seen: list[bytes] = []
    app.topic(f"{base}-one")

    @app.handler(f"^{base}-.*")
    async def take(value: bytes) -> None:
        seen.append(value)

    async def main() -> None:
        async with TestApp(app, bootstrap_servers=bootstrap) as test:
            await test.send(f"{base}-one", b"1")
            await test.idle()
            await test.send(f"{base}-two", b"2")  # made by sending to it
            await test.send(f"{base}-one-dlt", b"nobody's")
            await until(lambda: seen == [b"1", b"2"])
            await test.idle()
            await test.advance("20s")
            assert said.count("tick") == 2
        assert said[0] == "start"
        assert said[-1] == "stop"
        kinds = {each[0] for each in said if isinstance(each, tuple)}
        assert kinds == {"consumed", "committed", "assigned", "revoked"}

    asyncio.run(main())


def test_what_makes_no_sense_is_said_before_anything_runs() -> None:
    app = App("x")
    with pytest.raises(SetupError, match="keep_order"):
        app.handler("t", order="none", retry=Retry(later=["1s"], keep_order=True))
    with pytest.raises(SetupError, match="workers=0"):
        app.handler("t", workers=0)
    with pytest.raises(SetupError, match="no name of a topic"):
        app.handler("a topic")
    with pytest.raises(SetupError, match="needs a topic"):
        app.handler()
    with pytest.raises(SetupError, match="gets nothing"):

        @app.handler("t")
        async def handler(a: int, b: int) -> None: ...

    with pytest.raises(SetupError, match="the app's own"):
        App("x", consumer={"enable.auto.commit": True})
    with pytest.raises(SetupError, match="only while it runs"):
        app.send("t", b"")

    @app.handler("same", workers=1)
    async def one(value: bytes) -> None: ...

    with pytest.raises(SetupError, match="share a topic"):

        @app.handler("same", workers=2)
        async def other(value: bytes) -> None: ...
