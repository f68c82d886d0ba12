"""Avro values, bare or in Confluent's wire format; objects of a class are converted by their fields."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

from moldau.toolkit.codec import Codec
from moldau.toolkit.errors import RegistryAway, SetupError, Undecodable, WrongType
from moldau.toolkit.registry import Registry, Schema, framed, unframed

if TYPE_CHECKING:
    from moldau.toolkit.codec import Part


def avro_codec(kind: Any, schema: str | dict[str, Any], topic: str, part: Part, registry: Registry | None) -> Codec:
    """With a registry every value begins with its schema's id, and is read with the schema it was written with."""
    try:
        import fastavro
        import msgspec
    except ImportError as error:
        raise SetupError(f"{topic}: Avro needs fastavro: pip install 'moldau[toolkit,avro]'") from error
    content = json.loads(schema) if isinstance(schema, str) else schema
    try:
        parsed = fastavro.parse_schema(content)
    except Exception as error:  # fastavro has several roots
        raise SetupError(f"{topic}: the Avro schema is not valid: {error}") from error
    text = json.dumps(content)
    writers: dict[int, Any] = {}
    is_class = kind not in (dict, Any)

    def encode(value: Any) -> bytes:
        if is_class and not isinstance(value, kind):
            raise WrongType(f"{topic}: expected `{kind.__name__}`, got `{type(value).__name__}`")
        out = io.BytesIO()
        try:
            plain = msgspec.to_builtins(value, builtin_types=(bytes,)) if is_class else value
            fastavro.schemaless_writer(out, parsed, plain, strict=True)
        except Exception as error:  # whatever fastavro found wrong with the value
            raise WrongType(f"{topic}: {error}") from error
        payload = out.getvalue()
        if registry is None:
            return payload
        try:
            return framed(registry.id_of(f"{topic}-{part}", Schema(text, "AVRO")), payload)
        except RegistryAway as error:
            raise RegistryAway(f"{topic}: {error}") from error

    def decode(data: bytes) -> Any:
        writer = parsed
        if registry is not None:
            schema_id, data = unframed(data, topic)
            if schema_id not in writers:
                writers[schema_id] = fastavro.parse_schema(json.loads(registry.known(schema_id).text))
            writer = writers[schema_id]
        source = io.BytesIO(data)
        try:
            found = fastavro.schemaless_reader(source, writer, parsed)
            found = msgspec.convert(found, kind) if is_class else found
        except Exception as error:  # damaged bytes end in any of a dozen exceptions
            raise Undecodable(f"{topic}: this is not the Avro value expected: {error!r}") from error
        if source.read(1):
            raise Undecodable(f"{topic}: bytes are left over after the Avro value")
        return found

    return Codec("avro", encode, decode, schema=lambda: {"x-avro-schema": content})
