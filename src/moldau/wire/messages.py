"""Every message of the table as a class, made when first asked for: `messages.MetadataRequest`.

The types for editors and mypy are in `messages.pyi`, generated from the table by `scripts/generate_stubs.py`.
"""

from moldau.wire import schema
from moldau.wire.codegen import message_class
from moldau.wire.message import Message


def __getattr__(name: str) -> type[Message]:
    if name.startswith("__"):
        raise AttributeError(name)
    try:
        made = message_class(name)
    except KeyError as error:
        raise AttributeError(f"no message {name} in the schema table (src/moldau/wire/schema)") from error
    globals()[name] = made
    return made


def __dir__() -> list[str]:
    return sorted(schema.names())
