"""`moldau relay`: the process behind the applications, which sends what is due and what outboxes hold."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moldau.cli.failure import fail, misused
from moldau.cli.frame import Commands, Target

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.toolkit.relay import Part


app = Commands()


@app.command()
def relay(
    target: Target,
    delays: Annotated[
        list[str] | None,
        typer.Option("--delays", metavar="TOPIC", help="Delayed messages of this name; may be repeated."),
    ] = None,
    no_delays: Annotated[bool, typer.Option("--no-delays", help="Leave delayed messages to other relays.")] = False,
    outbox: Annotated[
        list[str] | None,
        typer.Option("--outbox", metavar="URL", help="Send the outbox of this database; may be repeated."),
    ] = None,
    http: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where /health and /metrics are; port 0 for any, - for none.")
    ] = "127.0.0.1:9309",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of the clients, under Kafka's name; repeatable."),
    ] = None,
) -> None:
    """Send delayed messages and retries when they are due, and outboxes, until SIGTERM or Ctrl-C.

    Several relays share the work.
    """
    from moldau.net.loop import new_event_loop

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    config = target.librdkafka(**_config(settings or []))
    bootstrap_server = target.bootstrap_servers
    parts = [] if no_delays else _delays(bootstrap_server, delays or [], config)
    place = None if http == "-" else _place(http)
    parts += _outboxes(bootstrap_server, outbox or [], config)
    if not parts:
        misused("there is nothing to relay: --no-delays leaves nothing to do but an --outbox")
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(parts, place))


def _delays(bootstrap_server: str, topics: list[str], config: dict[str, Any]) -> list[Callable[[], Part]]:
    from moldau.toolkit.delays import DelayRelay
    from moldau.toolkit.delays.topics import DELAYS

    def maker(topic: str) -> Callable[[], Part]:
        return lambda: DelayRelay(bootstrap_server, config=config, topic=topic)

    return [maker(topic) for topic in topics or [DELAYS]]


class _OutboxPart:
    """An outbox's relay under a name of its own, which does not tell the database's password."""

    def __init__(self, name: str, url: str, bootstrap_server: str, config: dict[str, Any]) -> None:
        from moldau.toolkit.db import Outbox, OutboxRelay

        self.name = name
        self._relay = OutboxRelay(Outbox(url), bootstrap_servers=bootstrap_server, config=config)

    async def start(self) -> None:
        await self._relay.start()

    async def stop(self) -> None:
        await self._relay.stop()

    def health(self) -> dict[str, Any]:
        return self._relay.health()


def _outboxes(bootstrap_server: str, urls: list[str], config: dict[str, Any]) -> list[Callable[[], Part]]:
    if not urls:
        return []
    from moldau.toolkit.db import Outbox

    def maker(name: str, url: str) -> Callable[[], Part]:
        Outbox(url)  # what is wrong with the address is said now
        return lambda: _OutboxPart(name, url, bootstrap_server, config)

    return [maker("outbox" if not number else f"outbox {number + 1}", url) for number, url in enumerate(urls)]


def _config(settings: list[str]) -> dict[str, Any]:
    found = {}
    for each in settings:
        name, equals, value = each.partition("=")
        if not equals or not name:
            misused(f"{each!r}: write --set KEY=VALUE")
        found[name] = value
    return found


def _place(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535:
        misused(f"{text!r} is no address: write HOST:PORT, for example 127.0.0.1:9309")
    return host.strip("[]") or "127.0.0.1", int(port)


async def _serve(parts: list[Callable[[], Part]], place: tuple[str, int] | None) -> None:
    from moldau.toolkit.relay import Supervisor
    from moldau.toolkit.relay.http import health_answers, serve_answers

    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    supervisor = Supervisor(parts)
    server = None
    if place is not None:
        try:
            server = await serve_answers(*place, health_answers(supervisor.health, supervisor.metrics))
        except OSError as error:
            fail(f"nobody can listen at {place[0]}:{place[1]} ({error.strerror}): choose another place with --http")
        host, port = server.sockets[0].getsockname()[:2]
        typer.echo(f"relaying; http://{host}:{port}/health")
    else:
        typer.echo("relaying")
    try:
        await supervisor.run(stopping)
    finally:
        if server is not None:
            server.close()
            await server.wait_closed()
