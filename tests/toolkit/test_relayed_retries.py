"""`Retry(later=…, by="relay")`: failed records wait among the delayed messages, and none is lost or doubled."""

import asyncio
import itertools
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from moldau.toolkit import App, Message, Producer, Retry, SetupError, TestApp
from moldau.toolkit.delays import DelayRelay, Delays
from moldau.toolkit.delays.entry import ID_BYTES_MAX
from moldau.toolkit.delays.retries import retry_id
from moldau.toolkit.delays.topics import DelayTopics
from moldau.toolkit.letters import Origin
from moldau.toolkit.partitioners import by_key
from tests.toolkit import relays
from tests.toolkit.killing import make_topic
from tests.toolkit.test_delays import records, values, wait_until
from tests.toolkit.test_relay import health, relay_process
from tests.toolkit.test_transactional import Work, ended

Fresh = Callable[[str], str]


def test_a_relay_waits_and_everything_else_is_as_without(bootstrap: str, fresh: Fresh) -> None:
    topic, attempts = fresh("mails"), list[int]()
    app = App(fresh("app"), delays=fresh("delays"))

    @app.handler(topic, retry=Retry(now=1, later=["10s", "1m"], by="relay"), dead_letter=True)
    async def handle(_: str, message: Message) -> None:
        attempts.append(message.attempt)
        raise ConnectionError("the mail server is away")

    async def main() -> None:
        async with TestApp(app, bootstrap_servers=bootstrap) as test:
            await test.send(topic, "x", key="k", headers={"tenant": "blue"})
            await test.advance("9s")
            await test.assert_retried(topic, 0)  # it waits elsewhere
            await test.advance("2s")
            (retried,) = await test.retried(topic)
            assert (retried.topic, retried.key, retried.value) == (f"{topic}-retry-0", b"k", b"x")
            assert retried.header("kafka_original-topic") == topic.encode()
            await test.advance("2m")
            await test.assert_retried(topic, 2)
            (dead,) = await test.dead_letters(topic)
            sent = [header for header in (await test.records(topic))[0].headers if header[0] != "moldau-id"]
            own = [each for each in dead.headers if not each[0].startswith(("kafka_", "retry_topic", "__connect"))]
            assert [header for header in own if header[0] != "moldau-id"] == sent == [("tenant", b"blue")]
        assert attempts == [1, 2, 3, 4]

    asyncio.run(main())


def test_a_failure_that_is_repeated_is_one_retry(bootstrap: str, fresh: Fresh) -> None:
    """As after a crash between the acknowledgement and the commit: the record is read, and fails, again."""
    topic, failures = fresh("numbers"), list[str]()
    app = App(fresh("app"), delays=fresh("delays"))

    @app.handler(topic, retry=Retry(now=0, later=["1m"], by="relay"), dead_letter=True)
    async def handle(value: str, message: Message) -> None:
        if message.attempt == 1:
            failures.append(value)
            raise ValueError(value)

    async def main() -> None:
        async with TestApp(app, bootstrap_servers=bootstrap) as test:
            await test.send(topic, "x")
            await test.idle()
            await app.seek(topic, 0, 0)
            await test.idle()
            assert failures == ["x", "x"]
            await test.advance("2m")
            await test.assert_retried(topic, 1)
            await test.assert_dead_lettered(topic)

    asyncio.run(main())


@pytest.mark.parametrize("partitioner", ["murmur2", "round-robin", "random", lambda _topic, _key, _count: 0])
def test_an_id_has_one_partition_whatever_the_apps_partitioner(partitioner: Any) -> None:
    """Or a cancel would not find what it is to cancel."""
    producer = Producer("127.0.0.1:1", partitioner=partitioner)
    delays = Delays(producer, partitions=4)
    for number in range(20):
        command = delays.command(f"m{number}", None)
        assert command.key is not None
        expected = None if partitioner == "murmur2" else by_key("", command.key, 4)  # None: murmur2 is the client's own
        assert command.partition == expected
    producer.close(0)


def test_what_is_too_large_for_the_delays_waits_in_its_retry_topic(bootstrap: str, fresh: Fresh) -> None:
    topic, delays, attempts = fresh("numbers"), fresh("delays"), list[int]()
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(delays, 1, 1, config={"max.message.bytes": "3000"})])[delays].result(15)
    app = App(fresh("app"), delays=delays)

    @app.handler(topic, retry=Retry(now=0, later=["1m"], by="relay"), dead_letter=True)
    async def handle(_: str, message: Message) -> None:
        attempts.append(message.attempt)
        if message.attempt == 1:
            raise ValueError("once")

    async def main() -> None:
        async with TestApp(app, bootstrap_servers=bootstrap) as test:
            await test.send(topic, "x" * 3_000)
            await test.advance("50s")
            assert attempts == [1]
            await test.advance("20s")
            assert attempts == [1, 2]

    asyncio.run(main())


def test_what_makes_no_sense_is_said() -> None:
    for wrong in ({"by": "relay"}, {"later": ["1s"], "keep_order": True, "by": "relay"}, {"by": "nobody"}):
        with pytest.raises(SetupError, match="by="):
            Retry(**wrong)


def test_an_id_is_never_too_long() -> None:
    long = Origin("t" * 249, 2**31 - 1, 2**63 - 1, 0, "CreateTime")
    ids = {retry_id("g" * 300, long, level) for level in range(3)}
    assert len(ids) == 3
    assert max(len(each.encode()) for each in ids) <= ID_BYTES_MAX


def test_the_relays_process_does_it_and_says_so(bootstrap: str, fresh: Fresh) -> None:
    topic, delays = fresh("numbers"), fresh("delays")
    make_topic(bootstrap, topic, 1)
    seen: list[int] = []

    async def main(url: str) -> None:
        app = App(fresh("app"), bootstrap_servers=bootstrap, auto_offset_reset="earliest", delays=delays)

        @app.handler(topic, retry=Retry(now=0, later=["50ms"], by="relay"), dead_letter=True)
        async def handle(_: str, message: Message) -> None:
            seen.append(message.attempt)
            if message.attempt == 1:
                raise ValueError("once")

        await app.start()
        try:
            await app.send(topic, "x")
            await asyncio.to_thread(wait_until, lambda: seen == [1, 2])
            await asyncio.to_thread(wait_until, lambda: health(url)["parts"][f"delays {delays}"]["retries"] == 1)
        finally:
            await app.stop()

    with relay_process(bootstrap, "--delays", delays) as (_, url):
        asyncio.run(main(url))


# Members and relays that die.


def check_killed(
    work: Work, delays: str, rounds: Sequence[tuple[Sequence[tuple[str, int]], Sequence[tuple[str, int]]]]
) -> None:
    """Of each round, members die at the first steps and relays at the others, beside one of each that does not.

    Every fifth record fails the first time: it must come out once, as all others, after one retry.
    """
    work.delays = delays
    relay = DelayRelay(work.bootstrap, topic=delays, partitions=8)
    relay.start()
    numbers = itertools.count()
    victims: list[subprocess.Popen[bytes]] = []
    try:
        with ended(work.members), ended(victims):
            work.start()
            for members, others in rounds:
                work.send(200)
                doomed = [work.start(step, count) for step, count in members]
                for step, count in others:
                    log = work.folder / f"member-relay-{next(numbers)}.log"
                    doomed.append(relays.start_victim(work.bootstrap, delays, step, count, log))
                    victims.append(doomed[-1])
                work.send_until_killed(doomed)
            work.until_done()
            retried = Counter(values(work.bootstrap, f"{work.topic}-retry-0"))
            assert retried == Counter(map(str, range(0, work.sent, 5)))
            assert not records(work.bootstrap, DelayTopics(delays).dead)
    finally:
        relay.stop()
