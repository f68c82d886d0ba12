"""Handlers whose output and commit are one transaction: on a real cluster, with members that die in the middle."""

import asyncio
import itertools
import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from moldau.toolkit import App, Batch, HandlerFailed, Retry, SetupError, TestApp
from moldau.toolkit.consuming import _fencing
from moldau.toolkit.offset_map import Noted
from moldau.toolkit.scheduler import Entry, Scheduler
from moldau.toolkit.sending import Record
from moldau.toolkit.transactional import Outputs, Snapshot, TransactionThread, Unknown
from tests.support.broker_process import BrokerProcess
from tests.toolkit.killing import make_topic
from tests.toolkit.test_delays import values, wait_until
from tests.toolkit.transactional_members import GO_ON, KILL, STEPS, STOP, start_member

Fresh = Callable[[str], str]


def test_what_a_handler_sends_goes_out_with_its_commit(bootstrap: str, fresh: Fresh) -> None:
    orders, bills, notes, dead = fresh("orders"), fresh("bills"), fresh("notes"), fresh("dead")
    app = App(fresh("app"), delays=fresh("delays"))
    attempts: Counter[str] = Counter()

    @app.handler(orders, transactional=True, to=bills, retry=Retry(now=2, backoff="1ms"), dead_letter=dead, workers=4)
    async def bill(name: str) -> str:
        attempts[name] += 1
        receipt = await app.send(notes, f"{name} {attempts[name]}")
        assert receipt.offset == -1  # it is on its way when the handler has ended
        await app.send(notes, f"{name} later", after="1h")
        if name == "bad" or (name == "moody" and attempts[name] < 2):
            raise ValueError(name)
        return f"bill for {name}"

    async def main() -> None:
        async with TestApp(app, bootstrap_servers=bootstrap) as test:
            for name in ("good", "moody", "bad"):
                await test.send(orders, name, key=name)
            await test.advance("2h")
            assert sorted(await test.sent(bills)) == ["bill for good", "bill for moody"]
            # Nothing of attempts that failed, and nothing of what is dead.
            assert sorted(await test.sent(notes)) == [b"good 1", b"good later", b"moody 2", b"moody later"]
            assert [each.value for each in await test.records(dead)] == [b"bad"]
            assert attempts["bad"] == 3

    asyncio.run(main())


def test_plain_handlers_take_part_from_their_threads(bootstrap: str, fresh: Fresh) -> None:
    numbers, out = fresh("numbers"), fresh("out")
    app = App(fresh("app"))

    @app.handler(numbers, transactional=True)
    def handle(text: str) -> None:
        app.send(out, text * 2)

    async def main() -> None:
        async with TestApp(app, bootstrap_servers=bootstrap) as test:
            await test.send(numbers, "ab")
            await test.idle()
            await test.assert_sent(out, b"abab")

    asyncio.run(main())


def test_an_output_the_cluster_refuses_makes_its_record_a_dead_letter(bootstrap: str, fresh: Fresh) -> None:
    numbers, small = fresh("numbers"), fresh("small")
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(small, 1, 1, config={"max.message.bytes": "600"})])[small].result(15)
    app = App(fresh("app"))

    @app.handler(numbers, transactional=True, to=small, dead_letter=True)
    async def handle(text: str) -> str:
        return text * 1_000 if text == "large" else text

    async def main() -> None:
        async with TestApp(app, bootstrap_servers=bootstrap) as test:
            for text in ("one", "large", "two"):
                await test.send(numbers, text)
            await test.idle()
            assert await test.sent(small) == ["one", "two"]
            await test.assert_dead_lettered(numbers, "cannot be sent")

    asyncio.run(main())


def test_without_dead_letters_a_refused_output_ends_the_app(bootstrap: str, fresh: Fresh) -> None:
    numbers, small = fresh("numbers"), fresh("small")
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(small, 1, 1, config={"max.message.bytes": "600"})])[small].result(15)
    app = App(fresh("app"))

    @app.handler(numbers, transactional=True, to=small)
    async def handle(text: str) -> str:
        return text * 1_000

    async def main() -> None:
        async with TestApp(app, bootstrap_servers=bootstrap) as test:
            await test.send(numbers, "large")
            await test.idle()

    with pytest.raises(HandlerFailed, match="dead_letter=True"):
        asyncio.run(main())


@pytest.mark.parametrize("was_committed", [True, False])
def test_a_transaction_whose_end_is_unknown_is_neither_repeated_nor_lost(
    bootstrap: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch, was_committed: bool
) -> None:
    numbers, out = fresh("numbers"), fresh("out")
    app = App(fresh("app"))
    original, left = TransactionThread._transact, [1]

    def transact(self: TransactionThread, snapshot: Snapshot, metadata: Any, careful: bool) -> None:
        if was_committed or not left[0]:
            original(self, snapshot, metadata, careful)
        if left[0]:
            left[0] -= 1
            raise Unknown("the connection broke")

    monkeypatch.setattr(TransactionThread, "_transact", transact)

    @app.handler(numbers, transactional=True, to=out, workers=4, order="none")
    async def handle(text: str) -> str:
        return text

    async def main() -> None:
        async with TestApp(app, bootstrap_servers=bootstrap, partitions=2) as test:
            for number in range(40):
                await test.send(numbers, str(number), key=str(number))
            await test.idle()
            assert sorted(await test.sent(out)) == sorted(map(str, range(40)))
            assert left == [0]

    asyncio.run(main())


def test_what_is_sent_after_the_handler_ended_is_an_error(bootstrap: str, fresh: Fresh) -> None:
    numbers = fresh("numbers")
    app = App(fresh("app"))
    late: list[BaseException] = []

    @app.handler(numbers, transactional=True)
    async def handle(text: str) -> None:
        async def linger() -> None:
            await go_on.wait()
            try:
                app.send(fresh("out"), text)
            except SetupError as error:
                late.append(error)

        tasks.append(asyncio.create_task(linger()))

    tasks: list[asyncio.Task[None]] = []
    go_on: asyncio.Event

    async def main() -> None:
        nonlocal go_on
        go_on = asyncio.Event()
        async with TestApp(app, bootstrap_servers=bootstrap) as test:
            await test.send(numbers, "x")
            await test.idle()
            go_on.set()
            await asyncio.gather(*tasks)
            assert "has ended" in str(late[0])

    asyncio.run(main())


@pytest.mark.parametrize("wrong", [{"batch": Batch()}, {"commit": "manual"}, {"commit": "auto"}])
def test_what_cannot_be_transactional_is_said(wrong: dict[str, object]) -> None:
    with pytest.raises(SetupError, match="transactional"):
        App("a").handler("t", transactional=True, **wrong)  # type: ignore[arg-type]  # what is to be refused


def test_only_what_is_finished_joins_a_snapshot_and_what_is_lost_never_does() -> None:
    async def main() -> None:
        scheduler, outputs = Scheduler("none"), Outputs()
        part = scheduler.assigned(("t", 0), 1, 0, Noted())
        entries = [Entry(None, offset, None, 1) for offset in range(3)]
        scheduler.arrived(("t", 0), 1, entries, 0)
        for entry in entries:
            assert scheduler.take(0) is entry
            outputs.put(entry, [Record("out", b"%d" % entry.offset)])
        scheduler.finished(entries[2])
        told = scheduler.snapshot(part)
        assert scheduler.is_whole(("t", 0), told)
        snapshot = outputs.snapshot({("t", 0): told})
        assert [entry.offset for entry, _ in snapshot.outputs] == [2]
        outputs.done(snapshot)
        assert outputs.count == 2
        assert not scheduler.is_whole(("t", 0), (told[0], "")), "a map that forgets what was told before"
        scheduler.removed(("t", 0))
        assert outputs.snapshot({("t", 0): told}).outputs == []
        outputs.forget_gone()
        assert outputs.count == 0

    asyncio.run(main())


# Members that die.


@contextmanager
def ended(processes: list[subprocess.Popen[bytes]]) -> Iterator[None]:
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


class Work:
    """Numbers in, one line and one more for each of them out."""

    def __init__(self, bootstrap: str, fresh: Fresh, folder: Path) -> None:
        self.bootstrap, self.folder = bootstrap, folder
        self.group, self.topic, self.out = fresh("group"), fresh("numbers"), fresh("out")
        for name in (self.topic, self.out, f"{self.out}-more"):
            make_topic(bootstrap, name, 4)
        self.delays = ""
        self.sent = 0
        self.members: list[subprocess.Popen[bytes]] = []
        self._numbers = itertools.count()

    def send(self, count: int) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "log_level": 0})
        for number in range(self.sent, self.sent + count):
            producer.produce(self.topic, str(number), str(number % 50))
        assert producer.flush(60) == 0
        self.sent += count

    def start(self, step: str = "-", count: int = 0, number: int = KILL) -> subprocess.Popen[bytes]:
        log = self.folder / f"member-{next(self._numbers)}.log"
        member = start_member(self.bootstrap, self.group, self.topic, self.out, log, step, count, number, self.delays)
        self.members.append(member)
        return member

    def logs(self) -> str:
        return "\n".join(path.read_text()[-2_000:] for path in sorted(self.folder.glob("member-*.log")))

    def send_until_killed(self, doomed: Sequence[subprocess.Popen[bytes]]) -> None:
        """They die when they reach their step, and need records for that."""
        deadline = time.monotonic() + 90
        while any(each.poll() is None for each in doomed):
            assert time.monotonic() < deadline, self.logs()
            self.send(20)
            time.sleep(0.1)  # other processes: they can only be looked at
        assert {each.returncode for each in doomed} == {-KILL}, self.logs()

    def until_done(self) -> None:
        """Every number's output is there, once."""
        deadline = time.monotonic() + 100
        while (found := Counter(values(self.bootstrap, self.out))).total() < self.sent:
            assert time.monotonic() < deadline, f"{found.total()} of {self.sent}\n{self.logs()}"
            time.sleep(0.2)
        assert found == Counter(f"done {number}" for number in range(self.sent))
        more = Counter(values(self.bootstrap, f"{self.out}-more"))
        assert more == Counter(f"more {number}" for number in range(self.sent))


def check_killed(work: Work, rounds: Sequence[Sequence[tuple[str, int]]]) -> None:
    with ended(work.members):
        work.start()
        for victims in rounds:
            work.send(200)
            doomed = [work.start(step, count) for step, count in victims]
            work.send_until_killed(doomed)
        work.until_done()


@pytest.mark.timeout(900)
def test_members_killed_between_every_two_steps_lose_and_double_nothing(
    bootstrap: str, fresh: Fresh, tmp_path: Path
) -> None:
    work = Work(bootstrap, fresh, tmp_path)
    check_killed(work, [[(step, 1) for step in STEPS[:3]], [(step, 1) for step in STEPS[3:]]])


@pytest.mark.timeout(600)
def test_a_member_that_stood_still_while_others_took_over_is_fenced(
    bootstrap: str, fresh: Fresh, tmp_path: Path
) -> None:
    work = Work(bootstrap, fresh, tmp_path)
    with ended(work.members):
        work.send(300)
        frozen = work.start("produced", 1, STOP)
        pid, status = os.waitpid(frozen.pid, os.WUNTRACED)
        assert pid == frozen.pid
        assert os.WIFSTOPPED(status)
        work.start()
        work.until_done()  # the other one has done it all
        os.kill(frozen.pid, GO_ON)
        work.send(300)
        work.until_done()


@pytest.mark.timeout(600)
def test_a_broker_that_is_killed_and_comes_back(tmp_path: Path, fresh: Fresh) -> None:
    with BrokerProcess(tmp_path / "data") as server:
        work = Work(server.bootstrap_servers, fresh, tmp_path)
        with ended(work.members):
            work.start()
            work.send(500)
            wait_until(lambda: values(server.bootstrap_servers, work.out))
            work.send(500)
            server.kill()
            server.start()
            work.send(100)
            work.until_done()


def test_a_client_whose_session_is_over_has_nothing_to_fence_with(bootstrap: str, fresh: Fresh) -> None:
    """A real consumer that is no member: its metadata would be taken from anybody."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": fresh("group"), "log_level": 0})
    try:
        assert _fencing(consumer) is None
        topic = fresh("numbers")
        make_topic(bootstrap, topic, 1)
        consumer.subscribe([topic])
        wait_until(lambda: consumer.poll(0.1) is not None or consumer.assignment())
        assert _fencing(consumer) is not None
    finally:
        consumer.close()
