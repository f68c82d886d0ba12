"""Reading a schema registry: the one the console was started with, and no other. Blocking; answers are kept a while."""

from __future__ import annotations

import base64
import binascii
import threading
import time
from collections import OrderedDict
from typing import Any
from urllib.parse import quote

from moldau.client.schema_registry import NOT_FOUND, RegistryAddress, RegistryAway, RegistryRefusal, ask_registry
from moldau.toolkit.registry import Schema

_TIMEOUT_S = 5.0
_KEPT = 2_000
_MISSING_S = 30.0  # so long an id that nobody knew is not asked for again


class RegistryTrouble(Exception):
    """The registry does not answer, or not as one."""


class RegistryReader:
    def __init__(self, url: str) -> None:
        self._address = RegistryAddress.parse(url)
        self.url = self._address.url
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, int], tuple[Any, float]] = OrderedDict()

    def schema(self, schema_id: int) -> Schema | None:
        """None if the registry does not know it, or is away: the bytes are shown without it."""
        return self._remembered("schema", schema_id, self._fetch_schema)  # type: ignore[no-any-return]

    def descriptor(self, schema_id: int) -> bytes | None:
        """A Protobuf schema's file, compiled; None if the registry has only its text."""
        return self._remembered("descriptor", schema_id, self._fetch_descriptor)  # type: ignore[no-any-return]

    def _remembered(self, kind: str, schema_id: int, fetch: Any) -> Any:
        now = time.monotonic()
        with self._lock:
            found, at = self._kept.get((kind, schema_id), (None, -_MISSING_S))
            if found is not None or now - at < _MISSING_S:
                return found
        try:
            found = fetch(schema_id)
        except RegistryTrouble:
            found = None
        with self._lock:
            self._kept[kind, schema_id] = (found, now)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return found

    def _fetch_schema(self, schema_id: int) -> Schema | None:
        answer = self.get(f"/schemas/ids/{schema_id}")
        if not isinstance(answer, dict) or "schema" not in answer:
            return None
        return Schema(str(answer["schema"]), answer.get("schemaType", "AVRO"))

    def _fetch_descriptor(self, schema_id: int) -> bytes | None:
        answer = self.get(f"/schemas/ids/{schema_id}?format=serialized")
        if not isinstance(answer, dict):
            return None
        try:
            return base64.b64decode(str(answer.get("schema", "")), validate=True) or None
        except (binascii.Error, ValueError):
            return None

    def subjects(self) -> list[str]:
        found = self.get("/subjects")
        return sorted(str(each) for each in found) if isinstance(found, list) else []

    def versions(self, subject: str) -> list[int]:
        found = self.get(f"/subjects/{quote(subject, safe='')}/versions")
        return sorted(int(each) for each in found) if isinstance(found, list) else []

    def version(self, subject: str, version: int) -> dict[str, Any] | None:
        found = self.get(f"/subjects/{quote(subject, safe='')}/versions/{version}")
        return found if isinstance(found, dict) else None

    def compatibility(self, subject: str) -> str:
        for path in (f"/config/{quote(subject, safe='')}", "/config"):
            found = self.get(path)
            if isinstance(found, dict) and "compatibilityLevel" in found:
                return str(found["compatibilityLevel"])
        return "?"

    def get(self, path: str) -> Any:
        """None if there is no such thing."""
        try:
            return ask_registry(self._address, "GET", path, timeout_s=_TIMEOUT_S, follows=False)
        except RegistryRefusal as refusal:
            if refusal.status == NOT_FOUND:
                return None
            raise RegistryTrouble(f"the registry at {self.url} answers {refusal.status}") from refusal
        except RegistryAway as error:
            raise RegistryTrouble(f"the registry at {self.url} cannot be asked: {error}") from error
