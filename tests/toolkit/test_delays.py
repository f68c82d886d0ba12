"""Delayed messages on a real cluster: never early, never twice, never lost; cancelled ones never sent."""

import itertools
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer as Sender
from confluent_kafka.admin import AdminClient, NewTopic

from moldau.toolkit import Producer, SetupError
from moldau.toolkit.delays import DelayRelay, Delays, entry
from moldau.toolkit.delays.entry import DUE, Delayed
from moldau.toolkit.delays.topics import DelayTopics
from moldau.toolkit.errors import ToolkitError
from moldau.toolkit.letters import ID
from moldau.toolkit.reading import read_topic
from tests.support.broker_process import BrokerProcess
from tests.toolkit.killing import make_topic
from tests.toolkit.relays import STEPS, start_victim

Fresh = Callable[[str], str]


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def wait_until(condition: Callable[[], Any], seconds: float = 50.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it does not come true"
        time.sleep(0.02)


def records(bootstrap: str, topic: str) -> list[Any]:
    try:
        return list(read_topic({"bootstrap.servers": bootstrap}, topic))
    except ToolkitError:
        return []


def values(bootstrap: str, topic: str) -> list[str]:
    return [(each.value() or b"").decode() for each in records(bootstrap, topic)]


class Setting:
    """Topics of this test, a producer, and relays that end with it."""

    def __init__(self, bootstrap: str, fresh: Fresh) -> None:
        self.bootstrap = bootstrap
        self.topic = fresh("delays")
        self.out = fresh("out")
        make_topic(bootstrap, self.out, 1)
        self.producer = Producer(bootstrap)
        self.delays = Delays(self.producer, topic=self.topic, partitions=2)
        self.relays: list[DelayRelay] = []

    def relay(self, wall: Callable[[], int] | None = None) -> DelayRelay:
        relay = DelayRelay(self.bootstrap, topic=self.topic, partitions=2, wall_ms=wall)
        self.relays.append(relay)
        relay.start()
        return relay

    def end(self) -> None:
        for relay in self.relays:
            relay.stop()
        self.producer.close()


@pytest.fixture
def setting(bootstrap: str, fresh: Fresh) -> Iterator[Setting]:
    found = Setting(bootstrap, fresh)
    try:
        yield found
    finally:
        found.end()


def test_a_message_comes_when_it_is_due_as_it_was_sent(setting: Setting) -> None:
    relay = setting.relay()
    at = datetime.now(UTC) + timedelta(milliseconds=700)
    sent = setting.delays.send(setting.out, "hello", key="k", headers={"tenant": "blue"}, at=at)
    sent.result(20)
    setting.delays.send(setting.out, None, key="k", after="10ms").result(20)
    wait_until(lambda: relay.counts().delivered == 2)
    empty, hello = sorted(records(setting.bootstrap, setting.out), key=lambda each: each.value() or b"")
    assert (empty.key(), empty.value()) == (b"k", None)
    assert (hello.key(), hello.value()) == (b"k", b"hello")
    headers = dict(hello.headers())
    assert headers["tenant"] == b"blue"
    assert headers[ID].decode() == sent.id
    assert int(headers[DUE]) == round(at.timestamp() * 1_000)
    assert hello.timestamp()[1] >= round(at.timestamp() * 1_000)
    assert relay.health()["pending"] == 0


def test_what_was_cancelled_before_it_was_due_is_not_sent_though_no_relay_was_there(setting: Setting) -> None:
    first = setting.delays.send(setting.out, "never", after="30s")
    first.result(20)
    assert first.id is not None
    setting.delays.cancel(first.id).result(20)
    setting.delays.send(setting.out, "replaced", after="30s", id="r").result(20)
    setting.delays.send(setting.out, "instead", after="31s", id="r").result(20)
    setting.delays.cancel("nobody").result(20)
    later = wall_ms() + 40_000
    relay = setting.relay(lambda: later)  # a relay that starts when all of it is overdue
    wait_until(lambda: relay.counts().delivered == 1)
    assert values(setting.bootstrap, setting.out) == ["instead"]


def test_a_cancel_acknowledged_at_the_last_moment_is_honoured(setting: Setting) -> None:
    """The relay has looked for commands, then comes the cancel, then the relay looks at its clock: it is due."""
    early, late = 1_800_000_000_000, 1_800_000_100_000
    delays = Delays(setting.producer, topic=setting.topic)
    armed: list[str] = []
    lock = threading.Lock()

    def clock() -> int:
        with lock:  # two partitions ask
            if not armed:
                return early
            while len(armed) > 1:
                delays.cancel(armed.pop()).result(20)
            return late

    relay = setting.relay(clock)
    for attempt in range(1, 11):
        names = [f"{attempt}-{number}" for number in range(4)]
        for name in names:
            setting.delays.send(setting.out, name, at=late, id=name).result(20)
        wait_until(lambda: relay.health()["pending"] == 4)
        with lock:
            armed[:] = ["nobody", *names]  # from now on it is late
        wait_until(lambda: relay.health()["pending"] == 0)
        armed.clear()
    assert relay.counts().delivered == 0
    assert values(setting.bootstrap, setting.out) == []


def test_a_cancel_of_the_same_transaction_is_honoured_though_another_transaction_hides_it(setting: Setting) -> None:
    """The message is overdue when it becomes visible; its cancel is committed with it, but lies behind what somebody
    else has not ended yet, and nobody who reads committed records sees that far."""
    relay = setting.relay()
    wait_until(lambda: relay.is_ready and relay.owned == [0, 1])
    one, two = (
        Sender({"bootstrap.servers": setting.bootstrap, "transactional.id": f"{setting.out}-{n}"}) for n in "12"
    )

    def command(sender: Sender, id_: str, text: str | None, due_ms: int = 0) -> None:
        value = None if text is None else entry.encode(Delayed(due_ms, setting.out, None, text.encode(), []))
        sender.produce(setting.topic, value, id_, partition=0)
        sender.flush(20)

    for sender in (one, two):
        sender.init_transactions(20)
        sender.begin_transaction()
    command(one, "a", "never")
    command(two, "b", "later", wall_ms() + 1_000)
    command(one, "a", None)
    one.commit_transaction(20)
    wait_until(lambda: relay.health()["pending"] == 1)
    two.commit_transaction(20)
    wait_until(lambda: relay.counts().delivered)
    assert values(setting.bootstrap, setting.out) == ["later"]


def test_a_cancel_that_comes_when_the_message_is_due_already_harms_nobody(setting: Setting) -> None:
    relay = setting.relay()
    setting.delays.send(setting.out, "sent", after="1ms", id="late").result(20)
    wait_until(lambda: relay.counts().delivered == 1)
    setting.delays.cancel("late").result(20)
    setting.delays.send(setting.out, "again", after="1ms", id="late").result(20)  # the id is free again
    wait_until(lambda: relay.counts().delivered == 2)
    assert values(setting.bootstrap, setting.out) == ["sent", "again"]


def test_cron_sends_again_until_it_is_cancelled(setting: Setting) -> None:
    now = 1_800_000_000_000
    clock = [now]
    relay = setting.relay(lambda: clock[0])
    delays = Delays(setting.producer, topic=setting.topic, wall_ms=lambda: clock[0])
    delays.send(setting.out, "tick", cron="* * * * *", id="c").result(20)
    wait_until(lambda: relay.health()["pending"] == 1)
    for minute in range(1, 4):
        clock[0] = now + minute * 60_000
        wait_until(lambda count=minute: relay.counts().delivered == count)  # type: ignore[misc]  # bound now
    delays.cancel("c").result(20)
    wait_until(lambda: relay.health()["pending"] == 0)
    clock[0] += 600_000
    delays.send(setting.out, "end", after="0s").result(20)
    wait_until(lambda: relay.counts().delivered == 4)
    found = records(setting.bootstrap, setting.out)
    assert [each.value() for each in found] == [b"tick", b"tick", b"tick", b"end"]
    assert len({dict(each.headers())[ID] for each in found}) == 4


def test_a_clock_that_is_set_back_makes_nothing_early(setting: Setting) -> None:
    clock = [1_800_000_000_000]
    relay = setting.relay(lambda: clock[0])
    due = clock[0] + 5_000
    setting.delays.send(setting.out, "x", at=due).result(20)
    wait_until(lambda: relay.health()["pending"] == 1)
    clock[0] -= 3_600_000  # an hour back
    setting.delays.send(setting.out, "y", at=due - 3_600_000).result(20)
    wait_until(lambda: relay.health()["pending"] == 2)
    clock[0] += 6_000
    wait_until(lambda: relay.counts().delivered == 1)
    assert values(setting.bootstrap, setting.out) == ["y"]
    clock[0] = due - 1
    wait_until(lambda: relay.known_until_ms() == due - 1)
    assert relay.counts().delivered == 1
    clock[0] = due
    wait_until(lambda: relay.counts().delivered == 2)
    assert values(setting.bootstrap, setting.out) == ["y", "x"]


def test_what_cannot_be_delivered_is_set_aside_and_holds_up_nobody(setting: Setting, fresh: Fresh) -> None:
    small = fresh("small")
    admin = AdminClient({"bootstrap.servers": setting.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(small, 1, 1, config={"max.message.bytes": "500"})])[small].result(15)
    setting.delays.send("no topic has such a name!", "a", key="k", after="1ms").result(20)
    setting.delays.send(small, "b" * 1_000, after="1ms").result(20)
    for number in range(10):  # in one batch with the one that is too large
        setting.delays.send(small, f"c{number}", after="1ms").result(20)
    setting.delays.send(setting.out, "good", after="1ms").result(20)
    relay = setting.relay()
    wait_until(lambda: relay.counts().dead == 2 and relay.counts().delivered == 11)
    assert sorted(values(setting.bootstrap, small)) == [f"c{number}" for number in range(10)]
    dead = records(setting.bootstrap, DelayTopics(setting.topic).dead)
    assert sorted(each.value()[:1] for each in dead) == [b"a", b"b"]
    assert {dict(each.headers())["kafka_dlt-original-topic"] for each in dead} == {
        b"no topic has such a name!",
        small.encode(),
    }
    assert values(setting.bootstrap, setting.out) == ["good"]


def test_foreign_bytes_among_the_commands_are_skipped(setting: Setting) -> None:
    relay = setting.relay()
    setting.delays.send(setting.out, "first", after="1ms").result(20)
    for partition in range(2):
        setting.producer.send(setting.topic, b"what is this", key=b"x", partition=partition).result(20)
    setting.delays.send(setting.out, "second", after="1ms").result(20)
    wait_until(lambda: relay.counts().delivered == 2 and relay.counts().refused == 2)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"at": 5, "after": "1s"},
        {"at": datetime(2030, 1, 1)},  # noqa: DTZ001  what is to be refused
        {"at": -1},
        {"after": "1s", "id": ""},
        {"after": "1s", "id": "\0x"},
        {"cron": "sometimes"},
    ],
)
def test_what_makes_no_sense_is_an_error_at_the_call(setting: Setting, wrong: dict[str, Any]) -> None:
    with pytest.raises(SetupError):
        setting.delays.send(setting.out, "x", **wrong)


def test_relays_share_the_work_and_a_new_one_knows_what_is_pending(setting: Setting) -> None:
    one, two = setting.relay(), setting.relay()
    wait_until(lambda: sorted(one.owned + two.owned) == [0, 1] and len(one.owned) == 1)
    for number in range(100):
        setting.delays.send(setting.out, str(number), after="1500ms")
    setting.producer.flush()
    wait_until(lambda: one.counts().scheduled + two.counts().scheduled == 100)
    one.stop()
    wait_until(lambda: two.owned == [0, 1] and one.counts().delivered + two.counts().delivered == 100)
    assert Counter(values(setting.bootstrap, setting.out)) == Counter(map(str, range(100)))


class Traffic:
    """Schedules and cancels without a pause, and knows what must come of it."""

    def __init__(self, bootstrap: str, topic: str, out: str, seed: int) -> None:
        self.producer = Producer(bootstrap)
        self.delays = Delays(self.producer, topic=topic, partitions=8)
        self.expected: set[str] = set()
        self.out = out
        self._random = random.Random(seed)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        for number in itertools.count():
            if self._ending.wait(0.004):
                break
            name = f"m{number}"
            if self._random.random() < 0.2:
                self.delays.send(self.out, name, after="60s", id=name).result(60)
                self.delays.cancel(name)
            else:
                self.delays.send(self.out, name, after=self._random.choice([0.0, 0.05, 0.5, 2.0]), id=name)
                self.expected.add(name)

    def __enter__(self) -> "Traffic":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        self.producer.close()


@contextmanager
def steady_relay(bootstrap: str, topic: str) -> Iterator[DelayRelay]:
    relay = DelayRelay(bootstrap, topic=topic, partitions=8)
    relay.start()
    try:
        yield relay
    finally:
        relay.stop()


def check_killed(
    bootstrap: str, topic: str, out: str, folder: Path, rounds: Sequence[Sequence[tuple[str, int]]]
) -> None:
    """Relays that die at these steps beside one that does not: at the end the topic holds the truth."""
    make_topic(bootstrap, out, 1)
    numbers = itertools.count()
    with steady_relay(bootstrap, topic) as relay:
        wait_until(lambda: len(relay.owned) == 8)
        with Traffic(bootstrap, topic, out, seed=3) as traffic:
            for victims in rounds:
                logs = [folder / f"victim-{next(numbers)}.log" for _ in victims]
                processes = [
                    start_victim(bootstrap, topic, *victim, log) for victim, log in zip(victims, logs, strict=True)
                ]
                try:
                    codes = [process.wait(60) for process in processes]
                finally:
                    for process in processes:
                        process.kill()
                assert set(codes) == {-signal.SIGKILL}, [log.read_text() for log in logs]
        wait_until(lambda: len(relay.owned) == 8 and relay.is_ready)
        assert traffic.expected
        wait_until(lambda: relay.health()["pending"] == 0 and set(values(bootstrap, out)) >= traffic.expected)
    found = Counter(values(bootstrap, out))
    assert set(found) == traffic.expected, "lost, or sent though it was cancelled"
    assert max(found.values()) == 1, [name for name, count in found.items() if count > 1]


@pytest.mark.timeout(900)
def test_relays_killed_between_every_two_steps_lose_and_double_nothing(
    bootstrap: str, fresh: Fresh, tmp_path: Path
) -> None:
    check_killed(
        bootstrap,
        fresh("delays"),
        fresh("out"),
        tmp_path,
        [[(s, 1) for s in STEPS[::2]], [(s, 1) for s in STEPS[1::2]]],
    )


@pytest.mark.timeout(600)
def test_a_broker_that_comes_and_goes(tmp_path: Path, fresh: Fresh) -> None:
    with BrokerProcess(tmp_path / "data") as server:
        setting = Setting(server.bootstrap_servers, fresh)
        try:
            relay = setting.relay()
            for number in range(200):
                setting.delays.send(setting.out, f"{number}", after=0.5 + number % 20 / 10)
            assert setting.producer.flush()
            wait_until(lambda: relay.counts().delivered > 0)
            server.kill()
            server.start()
            wait_until(lambda: relay.counts().delivered >= 200 and relay.health()["pending"] == 0)
            assert Counter(values(server.bootstrap_servers, setting.out)) == Counter(map(str, range(200)))
        finally:
            setting.end()
