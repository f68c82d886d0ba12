"""An AsyncAPI 3 document of an app: its topics as channels, its handlers and results as operations."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Protocol

from moldau.toolkit.codec import Codec
from moldau.toolkit.codecs import codec_for
from moldau.toolkit.message import Message

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moldau.toolkit.registry import Registry
    from moldau.toolkit.sending import Topic
    from moldau.toolkit.spec import HandlerSpec

    class Documented(Protocol):
        """An app, as far as its document may touch it."""

        @property
        def name(self) -> str: ...
        @property
        def bootstrap_servers(self) -> str: ...
        @property
        def declared(self) -> Mapping[str, Topic]: ...
        @property
        def specs(self) -> Sequence[HandlerSpec]: ...
        @property
        def registry(self) -> Registry | None: ...


def document(app: Documented, version: str) -> dict[str, Any]:
    """Plain data; `json.dumps` or a YAML library make a file of it."""
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    messages: dict[str, Any] = {}
    types: dict[str, Any] = {name: topic.value for name, topic in app.declared.items()}
    for spec in app.specs:
        for function in spec.functions:
            for topic in [*spec.topics, *(pattern.pattern for pattern in spec.patterns)]:
                types.setdefault(topic, None if function.value_type is Message else function.value_type)
                _operation(operations, f"receive_{function.name}_{topic}", "receive", topic, function.call.__doc__)
            if spec.options.to is not None:
                _operation(operations, f"send_{function.name}_{spec.options.to}", "send", spec.options.to, None)
                types.setdefault(spec.options.to, function.returns)
    for topic, annotation in types.items():
        key = _key(topic)
        codec = codec_for(annotation, topic, "value", app.registry) if annotation is not None else None
        messages[key] = {"name": codec.name if codec is not None else "bytes", "payload": _payload(codec)}
        channels[key] = {
            "address": topic,
            "messages": {key: {"$ref": f"#/components/messages/{key}"}},
            "bindings": {"kafka": {"topic": topic}},
        }
    return {
        "asyncapi": "3.0.0",
        "info": {"title": app.name, "version": version},
        "servers": {"kafka": {"host": app.bootstrap_servers.partition(",")[0], "protocol": "kafka"}},
        "channels": channels,
        "operations": operations,
        "components": {"messages": messages},
    }


def _operation(operations: dict[str, Any], name: str, action: str, topic: str, doc: str | None) -> None:
    operations[_key(name)] = {
        "action": action,
        "channel": {"$ref": f"#/channels/{_key(topic)}"},
        **({"summary": doc.strip().splitlines()[0]} if doc and doc.strip() else {}),
    }


def _payload(codec: Codec | None) -> dict[str, Any]:
    return codec.schema() if codec is not None and codec.schema is not None else {}


def _key(name: str) -> str:
    """AsyncAPI's keys are letters, digits, dots, dashes and underscores."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)
