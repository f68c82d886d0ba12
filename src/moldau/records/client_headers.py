"""Headers of records as confluent-kafka gives and takes them, where a name is no text.

Kafka's header names are bytes that clients take for UTF-8. Java puts replacement characters where they are not.
confluent-kafka (2.16) raises an error and gives, from then on, a list with holes in it, which end the process that
looks into them; so does a name that cannot be encoded, when it is sent. So nobody asks a message for its headers but
through here, and names are looked at before they are sent.
"""

import operator
from collections.abc import Iterable
from typing import Any

# Not `message.headers()`: the client gives its broken list and sets an error besides. In code that runs often Python
# (3.11) does not look for that, and the error comes up anywhere later. Calls from C code are always looked at.
_ask = operator.methodcaller("headers")

UNREADABLE = "moldau_headers-unreadable"
"""Stands for all headers of a record whose names are no text."""


def headers_of(message: Any) -> list[Any]:
    """A message's headers; the one header `UNREADABLE`, with the reason, if the client cannot read them."""
    try:
        found = _ask(message)
    except SystemError as failure:
        reason = failure.__cause__
        if not isinstance(reason, UnicodeDecodeError):
            raise
        found = [(UNREADABLE, f"a name is not UTF-8: {reason.object!r}".encode())]
        message.set_headers(found)  # instead of the broken list
    return list(found or ())


def check_names(headers: Iterable[tuple[str, Any]]) -> None:
    """ValueError if a name is no text that can be sent."""
    for name, _ in headers:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{name!a} is no name of a header: it has half a character and cannot be UTF-8") from None
