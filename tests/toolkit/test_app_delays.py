"""`app.send(..., after=…)` and `app.cancel`, with the virtual time of `TestApp`."""

import asyncio
from collections.abc import Callable

import pytest

from moldau.toolkit import App, SetupError, TestApp

Fresh = Callable[[str], str]


def test_reminders_in_virtual_time(bootstrap: str, fresh: Fresh) -> None:
    orders, reminders = fresh("orders"), fresh("reminders")
    app = App(fresh("app"), delays=fresh("delays"))
    seen: list[str] = []

    @app.handler(orders)
    async def order(name: str) -> None:
        await app.send(reminders, name, after="1h", id=f"remind-{name}")
        if name == "paid":
            await app.cancel("remind-paid")

    @app.handler(reminders)
    async def remind(name: str) -> None:
        seen.append(name)

    async def main() -> None:
        async with TestApp(app, bootstrap_servers=bootstrap) as test:
            await test.send(orders, "paid")
            await test.send(orders, "open")
            await test.advance("59m")
            assert seen == []
            await test.advance("2m")
            assert seen == ["open"]
            await test.send(reminders, "weekly", cron="0 9 * * MON", zone="Europe/Prague", id="weekly")
            await test.advance("14d")
            assert seen == ["open", "weekly", "weekly"]

    asyncio.run(main())


def test_an_id_is_for_later(bootstrap: str, fresh: Fresh) -> None:
    app = App(fresh("app"))
    topic = fresh("t")
    app.topic(topic, str)

    async def main() -> None:
        async with TestApp(app, bootstrap_servers=bootstrap):
            with pytest.raises(SetupError, match="say when"):
                app.send(topic, "x", id="name")

    asyncio.run(main())
