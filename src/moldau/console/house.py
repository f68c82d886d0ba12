"""All a running console has: the one object that knows everything, made by `app.py`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from confluent_kafka import KafkaException, Producer

from moldau.client.security import librdkafka_security
from moldau.client.settings import parse_client_settings
from moldau.console.cluster.asking import Asker
from moldau.console.cluster.model import Snapshot
from moldau.console.cluster.watching import Watcher
from moldau.console.gate.audit import Audit
from moldau.console.gate.oidc import Oidc
from moldau.console.gate.refusal import Refusal
from moldau.console.gate.roles import Role
from moldau.console.gate.sessions import Person, Session, Sessions
from moldau.console.gate.users import Users
from moldau.console.jobs import Jobs
from moldau.console.messages.masking import Masks
from moldau.console.messages.registry import RegistryReader
from moldau.console.messages.tail import Tails
from moldau.console.pipelines import pipeline_numbers
from moldau.console.settings import ConsoleSettings
from moldau.console.views import Views

T = TypeVar("T")

_THREADS = 8
_ASKING_MAX = 64  # that wait or are answered
_LOGGING_IN_MAX = 4
_ANSWER_S = 25.0
_FLUSH_S = 10.0


class House:
    def __init__(self, settings: ConsoleSettings, views: Views) -> None:
        self.settings = settings
        self.views = views
        self.sessions = Sessions()
        self.users = Users(settings.users_file) if settings.users_file is not None else None
        self.oidc = Oidc(settings.oidc) if settings.oidc is not None else None
        self.audit = Audit(settings.audit_file)
        self.masks = Masks(settings.masks)
        self.registry = RegistryReader(settings.registry_url) if settings.registry_url else None
        self.jobs = Jobs()
        short = {"request.timeout.ms": "10000", "socket.connection.setup.timeout.ms": "5000"}
        kafka = {**short, "client.id": "moldau-console", **settings.kafka}
        self.asker = Asker(parse_client_settings(kafka))
        self.watcher = Watcher(Asker(parse_client_settings(kafka)), settings.refresh_s, self._more_numbers)
        self.client: dict[str, Any] = {
            "bootstrap.servers": settings.kafka["bootstrap.servers"],
            "client.id": "moldau-console",
            "log_level": 0,
            "socket.connection.setup.timeout.ms": 5_000,
            **librdkafka_security(settings.kafka),
        }
        self.tails = Tails(self.client)
        self.stopping = asyncio.Event()
        self._threads = ThreadPoolExecutor(_THREADS, "moldau-console-ask")
        self._asking = 0
        self._logging_in = 0
        self._producer: Producer | None = None
        self._producer_lock = threading.Lock()

    # ---- life

    async def start(self) -> None:
        self.watcher.start()
        self._threads.submit(self.views.prepare)

    async def stop(self) -> None:
        self.stopping.set()
        self.tails.stop()
        await self.watcher.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.asker.close()

    def _more_numbers(self) -> dict[Hashable, float]:
        return pipeline_numbers(self.settings.pipeline_folders)

    # ---- people

    def stranger(self) -> Person:
        return Person("", Role.ANYBODY if self.settings.has_login else self.settings.open_role)

    def refresh_person(self, session: Session) -> None:
        """What the users file says now counts now."""
        if self.users is None or not session.person.name or session.notes.get("from") == "oidc":
            return
        user = self.users.find(session.person.name)
        session.person = Person(user.name, user.role) if user is not None else self.stranger()

    # ---- the cluster

    @property
    def snapshot(self) -> Snapshot:
        return self.watcher.snapshot

    async def ask(self, question: Callable[..., T], *given: Any, timeout_s: float = _ANSWER_S) -> T:
        """Off the loop, for so long, and only so many at once."""
        if self._asking >= _ASKING_MAX:
            raise Refusal(
                503, "Too many questions to the cluster are waiting for their answers. Try again in a moment."
            )
        self._asking += 1
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                return await loop.run_in_executor(self._threads, question, *given)
        except TimeoutError as error:
            raise Refusal(504, f"The cluster has not answered within {timeout_s:.0f} s.") from error
        finally:
            self._asking -= 1

    async def ask_for_login(self, question: Callable[..., T], *given: Any) -> T:
        """Strangers can ask this, as often as they like: they get some of the threads, and never all."""
        if self._logging_in >= _LOGGING_IN_MAX:
            raise Refusal(429, "Too many people are logging in. Try again in a moment.")
        self._logging_in += 1
        try:
            return await self.ask(question, *given)
        finally:
            self._logging_in -= 1

    async def refresh(self) -> None:
        """After a change: have the next page show it, if the cluster is quick."""
        number = self.snapshot.number
        self.watcher.look_now()
        # The round under way may have begun before the change; the one after it has not.
        if await self.watcher.after(number, 2.0):
            self.watcher.look_now()
            await self.watcher.after(number + 1, 1.5)

    def send(
        self, topic: str, value: bytes | None, key: bytes | None, headers: list[Any], partition: int | None
    ) -> Any:
        """Produce one record and wait until it is stored; returns where. Blocks."""
        with self._producer_lock:
            if self._producer is None:
                self._producer = Producer({**self.client, "enable.idempotence": True, "message.timeout.ms": 9_000})
            producer = self._producer
        told: list[Any] = []

        def note(error: Any, message: Any) -> None:
            told.append((error, message))

        where = -1 if partition is None else partition  # -1: as the key says
        producer.produce(topic, value, key, where, note, headers=headers)
        producer.flush(_FLUSH_S)
        if not told:
            raise Refusal(504, "The record was not acknowledged in time; it may be stored or not.")
        error, message = told[0]
        if error is not None:
            raise KafkaException(error)
        return message
