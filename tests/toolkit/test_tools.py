"""Dead letters and their way back, traces, lag: as functions and as commands."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.toolkit import App, OpenTelemetry, Retry, TestApp
from moldau.toolkit.dead_letters import by_reason, find_letter, letters_in, redrive
from moldau.toolkit.errors import ToolkitError
from moldau.toolkit.lag import Judgement, LagMonitor, PartitionLag, Sample, command_alert, judge, trend
from moldau.toolkit.trace import story
from tests.toolkit.waiting import wait_for

Fresh = Callable[[str], str]


@dataclass
class Order:
    id: str
    amount: int = 1


def moldau(bootstrap: str, *arguments: str, cwd: Path | None = None, code: int = 0) -> str:
    command = [sys.executable, "-m", "moldau", *arguments, "-b", bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=60, check=False)
    assert done.returncode == code, (done.stdout, done.stderr)
    return done.stdout + done.stderr


def test_dead_letters_and_their_way_back(bootstrap: str, fresh: Fresh) -> None:
    orders = fresh("orders")
    app = App(fresh("billing"))
    seen: list[str] = []
    broken = {"a", "b", "c"}

    @app.handler(orders, retry=Retry(now=0), dead_letter=True)
    async def bill(order: Order) -> None:
        if order.id in broken:
            raise (KeyError if order.id == "c" else ValueError)(f"no {order.id}")
        seen.append(order.id)

    async def main() -> None:
        async with TestApp(app, bootstrap_servers=bootstrap) as test:
            for name in ("a", "b", "c", "fine"):
                await test.send(orders, Order(name), key=name, headers={"tenant": "x"})
            await test.send(orders, b"\xff", key="d")
            await test.idle()
            config = {"bootstrap.servers": bootstrap}
            found = await asyncio.to_thread(lambda: list(letters_in(config, f"{orders}-dlt")))
            assert [(reason.name, reason.count) for reason in by_reason(found)] == [
                ("ValueError", 2),
                ("KeyError", 1),
                ("moldau.toolkit.errors.Undecodable", 1),
            ]
            letter = await asyncio.to_thread(find_letter, config, f"{orders}-dlt", "0:0")
            assert (letter.key, letter.error, letter.attempts) == (b"a", "no a", 1)
            assert letter.id == f"{orders}-0-0@{app.name}"
            broken.clear()
            said = await asyncio.to_thread(moldau, bootstrap, "dlq", "redrive", orders, "--id", letter.id)
            assert "1 sent back, 0 were before, 3 left" in said
            await test.idle()
            assert seen == ["fine", "a"]
            for _ in range(2):  # the second time everything was before
                done = await asyncio.to_thread(redrive, config, f"{orders}-dlt", lambda each: "no" in each.error)
            assert (done.sent, done.skipped, done.left) == (0, 3, 1)
            await test.idle()
            assert seen == ["fine", "a", "b", "c"]
            (back,) = [each for each in await test.records(orders) if each.offset == 5]
            assert back.header("tenant") == b"x"
            assert back.header("kafka_dlt-original-topic") is None
            # Letters that were sent back and died again have a new id.
            broken.add("z")
            await asyncio.to_thread(redrive, config, f"{orders}-dlt", to=fresh("elsewhere"), rate=1_000)
            said = await asyncio.to_thread(moldau, bootstrap, "dlq", "list", orders)
            assert "4 letters, 4 of them sent back" in said
            assert "ValueError: no a" in said
            shown = await asyncio.to_thread(moldau, bootstrap, "dlq", "show", orders, "0:3")
            assert "Undecodable" in shown
            assert r"b'\xff'" in shown

    asyncio.run(main())
    with pytest.raises(ToolkitError, match="no topic"):
        list(letters_in({"bootstrap.servers": bootstrap}, fresh("nothing")))
    assert "say which" in moldau(bootstrap, "dlq", "redrive", "t", code=2)


def test_the_story_of_a_message(bootstrap: str, fresh: Fresh) -> None:
    orders, topic = fresh("orders"), fresh("trace")
    app = App(fresh("billing"), trace=topic)

    @app.handler(orders, retry=Retry(now=0, later=["10s"]), dead_letter=True)
    async def bill(order: Order) -> None:
        raise ValueError("no good")

    async def main() -> str:
        async with TestApp(app, bootstrap_servers=bootstrap) as test:
            delivery = app.send(orders, Order("x"))
            await delivery
            await test.idle()
            await test.advance("10s")
            name, value = next(each for each in delivery.record.headers if each[0] == "moldau-id")
            assert name
            assert value is not None
            return value.decode()

    message = asyncio.run(main())
    steps = story({"bootstrap.servers": bootstrap}, message, topic)
    events = [(step.event, step.details.get("topic")) for step in steps]
    told = [event for event, _ in events if event != "produced"]
    assert told == ["stored", "stored", "retried", "stored", "dead-lettered"]
    assert {name for _, name in events} == {orders, f"{orders}-retry-0", f"{orders}-dlt"}
    assert steps[-1].details["to"] == f"{orders}-dlt"
    assert "dead-lettered" in moldau(bootstrap, "trace", message, "--topic", topic)
    assert "nothing is noted" in moldau(bootstrap, "trace", "unknown", "--topic", topic, code=4)


def test_opentelemetrys_context_travels(bootstrap: str, fresh: Fresh) -> None:
    """From the span around a send, through the handler's own span, to the span's id in what the handler sends."""
    from opentelemetry.sdk.trace import TracerProvider

    tracer = TracerProvider().get_tracer("test")
    orders, bills, others = fresh("orders"), fresh("bills"), fresh("others")
    app = App(fresh("billing"), interceptors=[OpenTelemetry()])
    spans: dict[str, tuple[int, int, int | None]] = {}

    @app.handler(orders, to=bills)
    async def bill(order: Order) -> bytes:
        with tracer.start_as_current_span("bill") as span:
            context, parent = span.get_span_context(), getattr(span, "parent", None)
            spans[order.id] = (context.trace_id, context.span_id, parent.span_id if parent is not None else None)
            await app.send(others, order.id)
        return b"billed"

    async def main() -> None:
        async with TestApp(app, bootstrap_servers=bootstrap) as test:
            with tracer.start_as_current_span("order") as span:
                outer = span.get_span_context()
                await test.send(orders, Order("x"))
            await test.send(orders, Order("y"))
            await test.idle()
            assert spans["x"][0] == outer.trace_id
            assert spans["x"][2] == outer.span_id
            assert spans["y"][0] != outer.trace_id, "what was sent outside of a span begins its own"
            assert spans["y"][2] is None
            (first, second) = await test.records(others)
            for record, name in ((first, "x"), (second, "y")):
                trace_id, span_id, _ = spans[name]
                assert (record.header("traceparent") or b"").startswith(f"00-{trace_id:032x}-{span_id:016x}-".encode())
            (first, second) = await test.records(bills)
            of_the_order = f"00-{outer.trace_id:032x}-{outer.span_id:016x}-".encode()
            assert (first.header("traceparent") or b"").startswith(of_the_order)
            assert second.header("traceparent") is None

    asyncio.run(main())


def test_without_opentelemetry_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ToolkitError, match="install opentelemetry-api"):
        OpenTelemetry()


def samples(*pairs: tuple[int, int]) -> list[Sample]:
    return [Sample(index * 1_000, committed, end) for index, (committed, end) in enumerate(pairs)]


@pytest.mark.parametrize(
    ("pairs", "members", "said"),
    [
        ([(5, 5)], 0, "ok"),
        ([(0, 9)], 0, "stopped"),
        ([(0, 9)], 1, "ok"),
        ([(5, 5), (5, 5), (5, 9)], 1, "ok"),
        ([(5, 9), (5, 9), (5, 9)], 1, "stalled"),
        ([(5, 9), (5, 90), (5, 900)], 1, "stalled"),
        ([(5, 9), (5, 9), (5, 9)], 0, "stopped"),
        ([(5, 9), (6, 20), (7, 30)], 1, "slow"),
        ([(5, 9), (6, 20), (7, 30)], 0, "slow"),  # a Spark query has no members
        ([(5, 1_000), (400, 1_100), (800, 1_200)], 1, "ok"),
        ([(5, 9), (9, 9), (9, 30)], 1, "ok"),
    ],
)
def test_judgements(pairs: list[tuple[int, int]], members: int, said: Judgement) -> None:
    assert judge(samples(*pairs), members) == said


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ([(0, 9)], "ok"),
        ([(0, 9), (3, 9)], "ok"),
        ([(5, 9), (6, 20), (7, 30)], "slow"),
        ([(5, 9), (5, 9)], "stopped"),
    ],
)
def test_what_never_has_members_is_judged_by_its_movement(pairs: list[tuple[int, int]], said: Judgement) -> None:
    """A Spark query: one measurement of it is no reason for an alarm."""
    assert judge(samples(*pairs), 0, has_no_membership=True) == said


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=8), st.integers(0, 2))
def test_who_has_caught_up_is_ok(pairs: list[tuple[int, int]], members: int) -> None:
    assert judge(samples(*pairs, (60, 60)), members) == "ok"


def test_a_trend_is_in_records_a_second() -> None:
    assert trend(samples((0, 10), (0, 20), (0, 30))) == 10
    assert trend(samples((0, 10))) == 0


def test_lag_in_records_and_seconds(bootstrap: str, fresh: Fresh, tmp_path: Path) -> None:
    orders, group = fresh("orders"), fresh("billing")
    app = App(group, commit_every="50ms")
    told: list[tuple[PartitionLag, Judgement]] = []

    @app.handler(orders)
    async def bill(order: Order) -> None:
        if order.id == "slow":
            await asyncio.sleep(3_600)

    async def main() -> None:
        app.stop_within_ms = 10
        noted = tmp_path / "alert.json"
        write = [sys.executable, "-c", f"import sys; open({str(noted)!r}, 'w').write(sys.stdin.read())"]
        alerts = [lambda state, before: told.append((state, before)), command_alert(write)]
        monitor = LagMonitor({"bootstrap.servers": bootstrap}, [group], alerts=alerts)
        async with TestApp(app, bootstrap_servers=bootstrap) as test:
            old = (time.time_ns() // 1_000_000) - 60_000
            await test.send(orders, Order("quick"), timestamp_ms=old)
            await test.idle()
            (state,) = await asyncio.to_thread(monitor.measure)
            assert (state.lag, state.seconds, state.judgement, state.members) == (0, 0.0, "ok", 1)
            for _ in range(3):
                await test.send(orders, Order("slow"), timestamp_ms=old)
            (state,) = await asyncio.to_thread(monitor.measure)
            while state.seconds is None:  # the record could not be read at once
                (state,) = await asyncio.to_thread(monitor.measure)
            assert state.lag == 3
            assert state.seconds >= 60
            assert state.judgement == "ok"  # they only just came
            window = LagMonitor({"bootstrap.servers": bootstrap}, [group], alerts=alerts)
            await asyncio.to_thread(window.measure)
            (state,) = await asyncio.to_thread(window.measure)
            assert state.judgement == "stalled"
        (state,) = await asyncio.to_thread(window.measure)
        assert (state.judgement, state.members) == ("stopped", 0)
        assert [(each.judgement, before) for each, before in told] == [("stalled", "ok"), ("stopped", "stalled")]
        found = json.loads(noted.read_text())
        assert (found["judgement"], found["before"], found["lag"]) == ("stopped", "stalled", 3)

    asyncio.run(main())
    assert "stopped" in moldau(bootstrap, "lag", group)


def test_app_run_until_it_is_told_to_stop(bootstrap: str, fresh: Fresh, tmp_path: Path) -> None:
    orders, done = fresh("orders"), tmp_path / "done.txt"
    source = f"""
from moldau.toolkit import App

app = App({fresh("billing")!r}, auto_offset_reset="earliest")


@app.handler({orders!r})
async def bill(value: str) -> None:
    with open({str(done)!r}, "a") as out:
        out.write(value)


@app.on_stop
def stopped() -> None:
    with open({str(done)!r}, "a") as out:
        out.write(" stopped")
"""
    (tmp_path / "billing.py").write_text(source)
    command = [sys.executable, "-m", "moldau", "app", "run", "billing:app", "-b", bootstrap]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE)
    try:
        from moldau.toolkit import Producer

        producer = Producer(bootstrap)
        producer.send(orders, "handled").result(20)
        producer.close()
        wait_for(done.exists)
        process.terminate()
        assert process.wait(50) == 0
    finally:
        process.kill()
        process.communicate()
    assert done.read_text() == "handled stopped"
    document = json.loads(run_plain(["app", "asyncapi", "billing:app"], tmp_path))
    assert document["asyncapi"] == "3.0.0"
    assert document["channels"][orders]["address"] == orders
    assert "no module nothing" in run_plain(["app", "run", "nothing:app"], tmp_path, code=4)
    assert "no App called other" in run_plain(["app", "run", "billing:other"], tmp_path, code=4)


def run_plain(arguments: list[str], cwd: Path, code: int = 0) -> str:
    command = [sys.executable, "-m", "moldau", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def test_an_asyncapi_document() -> None:
    app = App("billing")

    @app.handler("orders", to="bills")
    async def bill(order: Order) -> dict[str, Any]:
        """Bill an order."""
        return {}

    found = app.asyncapi(version="2.0.0")
    assert found["info"] == {"title": "billing", "version": "2.0.0"}
    assert set(found["channels"]) == {"orders", "bills"}
    payload = found["components"]["messages"]["orders"]["payload"]
    assert payload["$defs"]["Order"]["properties"]["amount"]["type"] == "integer"
    receive = next(each for each in found["operations"].values() if each["action"] == "receive")
    assert receive == {"action": "receive", "channel": {"$ref": "#/channels/orders"}, "summary": "Bill an order."}
