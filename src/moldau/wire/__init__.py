"""Kafka's wire protocol: messages, headers, error codes. Bytes in, values out; no sockets, no files.

Start with `schema` (the table and its notation), then `codegen` (how it becomes code). `produce` and `fetch` are the
two messages written by hand, because every record passes through them.
"""

from moldau.wire.apis import Api, apis
from moldau.wire.codec import decode, decode_prefix, decode_request, encode, encode_long
from moldau.wire.errors import ErrorCode
from moldau.wire.message import Message, Struct
from moldau.wire.primitives import ZERO_UUID, MalformedFrame

__all__ = [
    "ZERO_UUID",
    "Api",
    "ErrorCode",
    "MalformedFrame",
    "Message",
    "Struct",
    "apis",
    "decode",
    "decode_prefix",
    "decode_request",
    "encode",
    "encode_long",
]
