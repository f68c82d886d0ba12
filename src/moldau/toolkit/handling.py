"""From a function's signature to a call: which parameter gets the value, the message, a header, the key, the app.

    async def bill(order: Order, message: Message, tenant: Annotated[str, FromHeader("tenant")]) -> Bill: ...

The first parameter that is nothing else gets the value, decoded as its annotation says. Found once, before the app
starts; a call does only what the function asked for.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin, get_type_hints

from moldau.toolkit.codec import Codec
from moldau.toolkit.codecs import codec_for
from moldau.toolkit.errors import SetupError, Undecodable
from moldau.toolkit.message import Message

if TYPE_CHECKING:
    from moldau.toolkit.registry import Registry


@dataclass(slots=True, frozen=True)
class FromHeader:
    """`Annotated[str, FromHeader("tenant")]`: the header's text (or bytes); `… | None` if it may be missing."""

    name: str


@dataclass(slots=True, frozen=True)
class FromKey:
    """`Annotated[str, FromKey()]`: the record's key, decoded."""


@dataclass(slots=True, frozen=True)
class Function:
    """A handler function, understood."""

    call: Callable[..., Any]
    name: str
    is_async: bool
    value_type: Any
    returns: Any
    is_batch: bool
    wants_message: bool  # anything beside the value
    extras: tuple[tuple[str, Callable[[Message], Any]], ...]
    value_name: str | None


Provider = Callable[..., Callable[[Message], Any] | None]
"""`provides(hint, is_async=…, name=…)` of whatever wraps the call: what gives a parameter its argument."""


def understand(
    call: Callable[..., Any],
    app: Any,
    topic: str,
    registry: Registry | None,
    is_batch: bool,
    provides: Provider | None = None,
) -> Function:
    """Read the signature; what makes no sense is said now."""
    name = getattr(call, "__qualname__", repr(call))
    try:
        hints = get_type_hints(call, include_extras=True)
    except Exception as error:  # a name that cannot be resolved
        raise SetupError(f"{name}: its annotations cannot be understood: {error}") from error
    value_name: str | None = None
    value_type: Any = bytes
    extras: list[tuple[str, Callable[[Message], Any]]] = []
    for parameter in inspect.signature(call).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise SetupError(f"{name}: a handler's parameters have names; *{parameter.name} has none")
        hint = hints.get(parameter.name, Any)
        extra = _extra(hint, app, name, topic, registry)
        if extra is None and provides is not None:
            extra = provides(hint, is_async=inspect.iscoroutinefunction(call), name=name)
        if extra is not None:
            extras.append((parameter.name, extra))
        elif value_name is None:
            value_name = parameter.name
            value_type = bytes if hint is Any else hint
        elif parameter.default is parameter.empty:
            raise SetupError(
                f"{name}: {parameter.name} gets nothing: the value goes to {value_name}; others are of type Message or "
                "App, or Annotated with FromHeader or FromKey; a database transaction needs once="
            )
    if is_batch:
        if get_origin(value_type) not in (list, Sequence) and value_name is not None:
            raise SetupError(f"{name}: a batch handler's values are a list: annotate {value_name} with list[…]")
        value_type = get_args(value_type)[0] if get_args(value_type) else bytes
        if extras:
            raise SetupError(f"{name}: a batch handler gets the values only, or list[Message]")
    return Function(
        call,
        name,
        inspect.iscoroutinefunction(call),
        value_type,
        hints.get("return"),
        is_batch,
        bool(extras),
        tuple(extras),
        value_name,
    )


def _extra(hint: Any, app: Any, name: str, topic: str, registry: Registry | None) -> Callable[[Message], Any] | None:
    if hint is Message:
        return lambda message: message
    if isinstance(hint, type) and hint is type(app):
        return lambda _: app
    if get_origin(hint) is Annotated:
        kind, *marks = get_args(hint)
        for mark in marks:
            if isinstance(mark, FromHeader):
                return _header_reader(mark.name, kind, name)
            if isinstance(mark, FromKey):
                codec = codec_for(kind, topic, "key", registry)
                return lambda message: codec.read(message.key, message.headers)
    return None


def _header_reader(header: str, kind: Any, name: str) -> Callable[[Message], Any]:
    members = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    allows_none = type(None) in members
    wants_text = str in members
    if not wants_text and bytes not in members:
        raise SetupError(f"{name}: the header {header!r} is str or bytes, and may be `| None`")

    def read(message: Message) -> Any:
        found = message.header(header)
        if found is None:
            if allows_none:
                return None
            raise Undecodable(f"{message.topic}: the header {header!r} is missing")
        try:
            return found.decode() if wants_text else found
        except UnicodeDecodeError as error:
            raise Undecodable(f"{message.topic}: the header {header!r} is no UTF-8 text") from error

    return read


@dataclass(slots=True, frozen=True)
class Dispatch:
    """The functions of one topic; where there are several, the value's type decides."""

    codec: Codec
    functions: tuple[Function, ...]

    def choose(self, value: Any) -> Function:
        if len(self.functions) == 1:
            return self.functions[0]
        for function in self.functions:
            kind = function.value_type
            if isinstance(kind, type) and isinstance(value, kind):
                return function
        known = ", ".join(str(getattr(each.value_type, "__name__", each.value_type)) for each in self.functions)
        raise Undecodable(f"no handler takes a {type(value).__name__}: there are handlers for {known}")


def arguments(function: Function, message: Message, value: Any) -> dict[str, Any]:
    """What the function is called with, where it wants more than the value."""
    found = {name: read(message) for name, read in function.extras}
    if function.value_name is not None:
        found[function.value_name] = value
    return found
