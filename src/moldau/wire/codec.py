"""Messages to bytes and back, for everything but the hot paths of Produce and Fetch (see `produce`, `fetch`)."""

from io import BytesIO
from struct import error as struct_error
from typing import TypeVar

from moldau.wire import codegen
from moldau.wire.message import Message
from moldau.wire.primitives import MalformedFrame

M = TypeVar("M", bound=Message)


def encode(message: Message, version: int) -> bytes:
    """The message in this version. Fields the version does not have are left out."""
    return codegen.encoder(type(message).__name__, version)(message)


def encode_long(message: Message, version: int) -> bytes:
    """The same, for a message of very many elements and the thread that encodes it: `encode` is quicker, but keeps
    millions of pieces and joins them in one step of the interpreter, in which nobody else has a turn."""
    out = BytesIO()
    codegen.writer(type(message).__name__, version)(message, out.write)
    return out.getvalue()


def decode_request(cls: type[M], version: int, buffer: bytes | bytearray | memoryview) -> M:
    """A request as a broker reads it: bytes after its end are ignored, as Apache Kafka ignores them.

    Real clients send such bytes: librdkafka 2.16 asks for all topics in Metadata v13 with three too many.
    """
    return decode_prefix(cls, version, buffer if isinstance(buffer, bytes) else bytes(buffer))[0]


def decode(cls: type[M], version: int, buffer: bytes | bytearray | memoryview) -> M:
    """The message that fills the whole buffer, or MalformedFrame: for responses and stored records."""
    data = buffer if isinstance(buffer, bytes) else bytes(buffer)
    message, position = decode_prefix(cls, version, data)
    if position != len(data):
        raise MalformedFrame(f"{cls.__name__} v{version}: {len(data) - position} bytes too many")
    return message


def decode_prefix(cls: type[M], version: int, data: bytes, position: int = 0) -> tuple[M, int]:
    """The message at `position` and the position after it, or MalformedFrame."""
    try:
        message, position = codegen.decoder(cls.__name__, version)(data, position)
    except (IndexError, struct_error):
        raise MalformedFrame(f"{cls.__name__} v{version}: the frame ends too early") from None
    except UnicodeDecodeError as error:
        raise MalformedFrame(f"{cls.__name__} v{version}: a string is not UTF-8: {error.reason}") from None
    except MalformedFrame as error:
        raise MalformedFrame(f"v{version}: {error}") from None
    return message, position
