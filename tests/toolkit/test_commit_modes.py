"""When an offset is committed, and group protocols: automatic commits, and KIP-848's groups."""

import asyncio
from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient

from moldau.toolkit import App, Retry, TestApp
from tests.toolkit.killing import make_topic
from tests.toolkit.test_app import committed
from tests.toolkit.waiting import until

Fresh = Callable[[str], str]


def test_automatic_commits_do_not_wait_for_the_handler(bootstrap: str, fresh: Fresh) -> None:
    """At most once: what was begun is committed, even if it never ends; and a failure is not repeated."""
    topic, group = fresh("numbers"), fresh("group")
    seen: list[tuple[str, int]] = []

    def member(name: str) -> App:
        app = App(group, stop_within="50ms")

        @app.handler(topic, workers=4, order="none", commit="auto", retry=Retry(now=0), dead_letter=True)
        async def handle(number: int) -> None:
            seen.append((name, number))
            if number == 1:
                await asyncio.Event().wait()
            if number == 2:
                raise ValueError("no good")

        return app

    async def main() -> None:
        async with TestApp(first := member("first"), bootstrap_servers=bootstrap) as test:
            for number in range(4):
                await test.send(topic, number)
            await until(lambda: len(seen) == 4)
            await first.commit()
            assert (await asyncio.to_thread(committed, bootstrap, group, topic))[0] == 4
        async with TestApp(member("second"), bootstrap_servers=bootstrap) as test:
            await test.send(topic, 4)
            await test.idle()
            await test.assert_dead_lettered(topic, "no good")
        assert [number for name, number in seen if name == "second"] == [4]

    asyncio.run(main())


@pytest.mark.timeout(120)
def test_groups_of_the_new_protocol(bootstrap: str, fresh: Fresh) -> None:
    """KIP-848: two members share the partitions, one leaves, nothing is lost and nothing done twice."""
    topic, group = fresh("numbers"), fresh("group")
    make_topic(bootstrap, topic, 4)
    done: list[tuple[str, int]] = []

    def member(name: str) -> App:
        app = App(
            group,
            bootstrap_servers=bootstrap,
            auto_offset_reset="earliest",
            commit_every="20ms",
            revoke_within="20s",
            consumer={"group.protocol": "consumer"},
        )

        @app.handler(topic, workers=8)
        async def handle(number: int) -> None:
            await asyncio.sleep(0.002)
            done.append((name, number))

        return app

    async def main() -> None:
        first, second = member("first"), member("second")
        await first.start()
        count = 0

        def send(more: int) -> None:
            nonlocal count
            for number in range(count, count + more):
                first.send(topic, number, key=f"k{number % 40}")
            count += more

        send(100)
        await until(lambda: len(done) > 50)
        await second.start()
        while not any(name == "second" for name, _ in done):
            send(20)
            await asyncio.sleep(0.01)
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        (described,) = (admin.describe_consumer_groups([group])).values()
        found = await asyncio.to_thread(described.result, 10)
        assert len(found.members) == 2
        assert str(found.type).endswith("CONSUMER")
        await second.stop()
        send(100)
        await until(lambda: len({number for _, number in done}) == count)
        await first.stop()
        assert sorted(number for _, number in done) == list(range(count))

    asyncio.run(main())
