"""Records of `__cluster_metadata`, `__consumer_offsets` and `__transaction_state` in words."""

from __future__ import annotations

from typing import Any

from moldau.cli.record_forms import as_json


def decode_internal(topic: str, key: bytes | None, value: bytes | None) -> tuple[Any, Any]:
    try:
        if topic == "__cluster_metadata" and value is not None:
            from moldau.wire.internal import decode_metadata_record

            found = decode_metadata_record(value)
            return type(found).__name__, plain(found)
        if topic in ("__consumer_offsets", "__transaction_state") and key is not None:
            return _keyed(topic, key, value)
    except Exception as error:  # a record of a newer Kafka, or a damaged one: shown as it is
        return as_json(key), f"({type(error).__name__}: {error}) {as_json(value)}"
    return as_json(key), as_json(value)


def _keyed(topic: str, key: bytes, value: bytes | None) -> tuple[Any, Any]:
    if topic == "__consumer_offsets":
        from moldau.groups.records import decode_entry

        entry = decode_entry(key, value)
        if entry is not None:
            named = {"type": type(entry.key).__name__.removesuffix("Key"), **plain(entry.key)}
            return named, None if entry.value is None else plain(entry.value)
    else:
        from moldau.wire import decode
        from moldau.wire.internal import decode_value
        from moldau.wire.messages import TransactionLogKey, TransactionLogValue

        found = decode(TransactionLogKey, 0, key[2:])
        return plain(found), None if value is None else plain(decode_value(TransactionLogValue, value))
    return as_json(key), as_json(value)


def plain(message: Any) -> Any:
    """A message as JSON has it."""
    from moldau.wire.message import Struct

    if isinstance(message, list | tuple):
        return [plain(each) for each in message]
    if isinstance(message, Struct):
        return {
            name: plain(getattr(message, name))
            for name in getattr(message, "__slots__", ())
            if name != "unknown_tags" and not name.startswith("_")
        }
    return message.hex() if isinstance(message, bytes | memoryview) else message
