"""A schema registry, asked over Confluent's API. Works with every registry that speaks it.

An id never changes its schema, so what was answered once is kept for the life of the process (a bounded number), for
all its tasks. An id that the registry does not know is an error of that record, and asked for again after a while: it
may be registered by then. A registry that does not answer, or answers what no registry would, is waited for as long as
brokers are (`outage`) once it has answered; at the first question, when the address may be wrong, for seconds.
"""

from __future__ import annotations

import math
import time
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from moldau.client.schema_registry import NOT_FOUND, RegistryAddress, RegistryAway, RegistryRefusal, ask_registry
from moldau.spark.broker_outage import Waiting

_KEPT_MAX = 10_000
_FIRST_SECONDS = 4.0
_PAUSE_SECONDS = 1.0
_UNKNOWN_SECONDS = 10.0
_TIMEOUT_SECONDS = 10.0


class RegistryError(RuntimeError):
    """The registry cannot be asked, or refuses; the message says what to do."""


class UnknownSchema(ValueError):
    """The registry answers that there is no such schema."""


@dataclass(slots=True, frozen=True)
class RegistrySettings:
    """Where it is, how to log in, and how long it may be away. Printed without the login."""

    url: str
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    outage_s: float = 0.0

    @classmethod
    def parse(cls, settings: Mapping[str, str], outage_s: float = 0.0) -> RegistrySettings:
        """By Confluent's names: url, basic.auth.user.info (user:password), bearer.auth.token."""
        known = {"url", "basic.auth.user.info", "basic.auth.credentials.source", "bearer.auth.token"}
        if unknown := sorted(set(settings) - known):
            raise ValueError(f"schema.registry.{unknown[0]} is not known: {', '.join(sorted(known))} are")
        try:
            url = RegistryAddress.parse(settings.get("url", "")).url
        except ValueError as error:
            raise ValueError("schema.registry.url is missing or not a URL: write http://host:8081") from error
        user, _, password = settings.get("basic.auth.user.info", "").partition(":")
        parsed = urllib.parse.urlsplit(settings["url"])
        if parsed.username:
            user, password = urllib.parse.unquote(parsed.username), urllib.parse.unquote(parsed.password or "")
        return cls(url, user, password, settings.get("bearer.auth.token", ""), outage_s)


@dataclass(slots=True, frozen=True)
class Schema:
    """A schema as the registry has it. `references` are the schemas it imports, by the names it calls them."""

    id: int
    kind: str  # AVRO, JSON or PROTOBUF
    text: str
    references: Mapping[str, str] = field(default_factory=dict)


class Registry:
    """One registry; remembers what it was told."""

    def __init__(
        self, settings: RegistrySettings, clock: Callable[[], float] = time.monotonic, *, has_answered: bool = False
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._has_answered = has_answered
        self._by_id: dict[int, Schema] = {}
        self._unknown: dict[int, tuple[float, str]] = {}  # when it was asked, and what was told

    def schema(self, number: int) -> Schema:
        """The schema of an id; raises UnknownSchema."""
        found = self._by_id.get(number)
        if found is not None:
            return found
        asked_at, told = self._unknown.get(number, (-math.inf, ""))
        if self._clock() - asked_at < _UNKNOWN_SECONDS:
            raise UnknownSchema(told)
        if len(self._by_id) + len(self._unknown) >= _KEPT_MAX:
            self._by_id.clear()
            self._unknown.clear()
        try:
            found = self._by_id[number] = self._schema(number, self._ask(f"/schemas/ids/{number}", {"schema": str}))
        except UnknownSchema as error:
            told = f"schema id {number} is not known to the registry ({error})"
            self._unknown[number] = (self._clock(), told)
            raise UnknownSchema(told) from None
        return found

    def latest(self, subject: str) -> Schema:
        """The newest schema of a subject; raises UnknownSchema."""
        path = f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/latest"
        answer = self._ask(path, {"id": int, "schema": str})
        return self._schema(answer["id"], answer)

    def register(self, subject: str, kind: str, text: str) -> int:
        """The id of a schema under a subject; it becomes a new version if it is compatible and not there yet."""
        body: dict[str, Any] = {"schema": text}
        if kind != "AVRO":
            body["schemaType"] = kind
        path = f"/subjects/{urllib.parse.quote(subject, safe='')}/versions"
        number: int = self._ask(path, {"id": int}, body)["id"]
        return number

    def _schema(self, number: int, answer: Mapping[str, Any]) -> Schema:
        references: dict[str, str] = {}
        self._collect(answer, references)
        return Schema(number, answer.get("schemaType", "AVRO"), answer["schema"], references)

    def _collect(self, answer: Mapping[str, Any], found: dict[str, str]) -> None:
        """Imported schemas, and theirs: what is imported stands before what imports it."""
        for each in answer.get("references") or ():
            if each["name"] not in found:
                subject = urllib.parse.quote(each["subject"], safe="")
                other = self._ask(f"/subjects/{subject}/versions/{int(each['version'])}", {"schema": str})
                self._collect(other, found)
                found[each["name"]] = other["schema"]

    def _ask(self, path: str, needs: Mapping[str, type], body: Mapping[str, Any] | None = None) -> Any:
        """Its answer, which has what is needed of it."""
        waiting: Waiting | None = None
        while True:
            try:
                answer = self._ask_once(path, needs, body)
            except RegistryRefusal as refusal:
                told = str(refusal)
                if refusal.status == NOT_FOUND and refusal.code is not None:
                    self._has_answered = True
                    raise UnknownSchema(told) from None
                if refusal.status in (401, 403):
                    told += ": check schema.registry.basic.auth.user.info"
                # A proxy says 404 while it does not know better.
                if refusal.status < 500 and refusal.status not in (NOT_FOUND, 429):
                    raise RegistryError(f"the registry refuses {path}: {told}") from None
                failure = RegistryError(f"the registry fails at {path}: {told}")
            except RegistryAway as error:
                failure = RegistryError(f"the registry at {self._settings.url} does not answer: {error}")
            else:
                self._has_answered = True
                return answer
            if waiting is None:
                patience_s = self._settings.outage_s if self._has_answered else 0.0
                waiting = Waiting(max(patience_s, _FIRST_SECONDS), self._clock, whom="the schema registry")
            if waiting.is_over():
                raise failure
            waiting.say(failure)
            time.sleep(_PAUSE_SECONDS)  # nobody calls when it is back: it must be asked

    def _ask_once(self, path: str, needs: Mapping[str, type], body: Mapping[str, Any] | None) -> Any:
        settings = self._settings
        user_info = f"{settings.user}:{settings.password}" if settings.user else ""
        address = RegistryAddress.parse(settings.url, user_info=user_info, token=settings.token)
        method = "GET" if body is None else "POST"
        found = ask_registry(address, method, path, body, timeout_s=_TIMEOUT_SECONDS, follows=True)
        if not isinstance(found, dict):
            raise RegistryAway("its answer is no object")
        if lacking := next((name for name, kind in needs.items() if not isinstance(found.get(name), kind)), None):
            raise RegistryAway(f"its answer has no {lacking!r}: is it a schema registry?")
        return found


@lru_cache(maxsize=16)
def of_tasks(settings: RegistrySettings) -> Registry:
    """The one that all tasks of this process ask. The driver has asked it before them, so silence is an outage."""
    return Registry(settings, has_answered=True)
