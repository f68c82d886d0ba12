"""A client of Confluent's schema registry, and the wire format that goes with it: a zero, the schema's id, the bytes.

Invariant: decoding never waits for the network. An id that was not fetched yet raises `SchemaMissing`; the caller
fetches it off the loop (`Registry.fetch`) and decodes again. Schemas do not change under their id, so they are kept.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

from moldau.client import schema_registry as client
from moldau.client.schema_registry import NOT_FOUND, RegistryAddress, RegistryRefusal, ask_registry
from moldau.toolkit.errors import RegistryAway, SchemaMissing, SetupError, Undecodable

SchemaType = Literal["AVRO", "PROTOBUF", "JSON"]
_MAGIC = 0
_TIMEOUT_S = 10.0


@dataclass(slots=True, frozen=True)
class Schema:
    text: str
    type: SchemaType


class Registry:
    """`Registry("http://localhost:8081")`; a user and password may be part of the address."""

    def __init__(self, url: str | RegistryAddress, *, auto_register: bool = True) -> None:
        try:
            self._address = url if isinstance(url, RegistryAddress) else RegistryAddress.parse(url)
        except ValueError as error:
            raise SetupError(str(error)) from error
        self.url = self._address.url
        self._auto_register = auto_register
        self._lock = threading.Lock()
        self._by_id: dict[int, Schema] = {}
        self._ids: dict[tuple[str, str], int] = {}

    def known(self, schema_id: int) -> Schema:
        """A schema that was fetched before; otherwise `SchemaMissing`."""
        found = self._by_id.get(schema_id)
        if found is None:
            raise SchemaMissing(schema_id)
        return found

    def fetch(self, schema_id: int) -> Schema:
        """Ask the registry (blocking). An id it does not know makes the record undecodable."""
        answer = self._call("GET", f"/schemas/ids/{schema_id}")
        if answer is None:
            raise Undecodable(f"the registry at {self.url} knows no schema {schema_id}")
        schema = Schema(answer["schema"], answer.get("schemaType", "AVRO"))
        with self._lock:
            self._by_id[schema_id] = schema
        return schema

    def id_of(self, subject: str, schema: Schema) -> int:
        """The id under which records of this schema are written; blocks the first time, to register or look it up."""
        found = self._ids.get((subject, schema.text))
        if found is not None:
            return found
        body = {"schema": schema.text} | ({} if schema.type == "AVRO" else {"schemaType": schema.type})
        path = f"/subjects/{quote(subject, safe='')}" + ("/versions" if self._auto_register else "")
        answer = self._call("POST", path, body)
        if answer is None:
            raise SetupError(f"the registry has no such schema under {subject}: register it, or allow auto_register")
        with self._lock:
            self._ids[subject, schema.text] = int(answer["id"])
            self._by_id[int(answer["id"])] = schema
        return int(answer["id"])

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any] | None:
        try:
            found = ask_registry(self._address, method, path, body, timeout_s=_TIMEOUT_S, follows=True)
        except RegistryRefusal as refusal:
            if refusal.status == NOT_FOUND:
                return None
            if refusal.status in (409, 422):
                raise SetupError(f"the registry refuses the schema ({path}): {refusal.message}") from refusal
            raise RegistryAway(f"the registry at {self.url} answers {refusal}") from refusal
        except client.RegistryAway as error:
            raise RegistryAway(f"the registry at {self.url} cannot be asked: {error}") from error
        if not isinstance(found, dict):
            raise RegistryAway(f"the registry at {self.url} answers {path} with something that is no object")
        return found


def framed(schema_id: int, payload: bytes) -> bytes:
    """Confluent's wire format."""
    return bytes([_MAGIC]) + schema_id.to_bytes(4, "big") + payload


def unframed(data: bytes, topic: str) -> tuple[int, bytes]:
    """The schema's id and the bytes behind it."""
    if len(data) < 5 or data[0] != _MAGIC:
        raise Undecodable(f"{topic}: this is not Confluent's wire format (a zero, four bytes of schema id, the value)")
    return int.from_bytes(data[1:5], "big"), data[5:]
