"""One question to a schema registry over Confluent's API: the address, the login, and what went wrong. Blocking.

What callers keep, how often they try again and what they call an error is theirs: the toolkit, Spark, the console and
the command line ask through here.

Invariant: a login goes to the address that was given and to no other, and stands in no message.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

_MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
_ANSWER_BYTES_MAX = 64 << 20
_REFUSAL_BYTES_MAX = 10_000
NOT_FOUND = 404


class RegistryAway(Exception):
    """It does not answer, or answers what no registry would. `was_sent`: it may have heard the question."""

    def __init__(self, message: str, *, was_sent: bool = True) -> None:
        super().__init__(message)
        self.was_sent = was_sent


class RegistryRefusal(Exception):
    """It answers with an error. `code` is its own, None if what answers is no registry: a proxy, say."""

    def __init__(self, status: int, code: int | None, message: str) -> None:
        super().__init__(f"{status} {message}")
        self.status = status
        self.code = code
        self.message = message


@dataclass(slots=True, frozen=True)
class RegistryAddress:
    """Where it is, without the login, and the login, which is not shown."""

    url: str
    login: str = field(default="", repr=False)

    @classmethod
    def parse(cls, url: str, *, user_info: str = "", token: str = "") -> RegistryAddress:
        """A user and password (`user:password`, or part of the address) or a bearer token. Raises ValueError."""
        try:
            parts = urlsplit(url)
            is_whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # a port that is none, half a pair of brackets
            is_whole = False
        if not is_whole:
            bare = url.rpartition("@")[2]
            raise ValueError(f"{bare!r} is no address of a schema registry: write http://HOST:PORT")
        place = parts.netloc.rpartition("@")[2]
        user, colon, password = user_info.partition(":")
        if parts.username:
            user, password = unquote(parts.username), unquote(parts.password or "")
        login = ""
        if token:
            login = f"Bearer {token}"
        elif user or colon:
            login = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        return cls(f"{parts.scheme}://{place}{parts.path.rstrip('/')}", login)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


_FOLLOWING = urllib.request.build_opener()
_STAYING = urllib.request.build_opener(_NoRedirect)


def ask_registry(
    address: RegistryAddress,
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    *,
    timeout_s: float,
    follows: bool,
) -> Any:
    """Its answer, from JSON. A redirect is followed without the login (`follows`), or else is a refusal."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address.url + path, data, method=method)  # noqa: S310  http(s), checked in parse
    request.add_header("Accept", f"{_MEDIA_TYPE}, application/json")
    if data is not None:
        request.add_header("Content-Type", _MEDIA_TYPE)
    if address.login:
        request.add_unredirected_header("Authorization", address.login)
    opener = _FOLLOWING if follows else _STAYING
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            content = answer.read(_ANSWER_BYTES_MAX)
    except urllib.error.HTTPError as error:
        with error:
            raise _refusal(error) from None
    except (ValueError, http.client.InvalidURL):  # which names what it found there: a login, perhaps
        unsendable = "its address or login has characters that no request may have"
        raise RegistryAway(unsendable, was_sent=False) from None
    except (OSError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        told = reason.strerror if isinstance(reason, OSError) and not isinstance(reason, ssl.SSLError) else ""
        was_sent = not isinstance(error, urllib.error.URLError)
        raise RegistryAway(told or str(reason) or type(reason).__name__, was_sent=was_sent) from error
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise RegistryAway("its answer is no JSON: is it a schema registry?") from error


def _refusal(error: urllib.error.HTTPError) -> RegistryRefusal:
    """What it says, and whether a registry says it: those have error codes of their own."""
    content: Any = None
    with contextlib.suppress(ValueError, RecursionError, OSError, http.client.HTTPException):
        content = json.loads(error.read(_REFUSAL_BYTES_MAX))
    told = content if isinstance(content, dict) else {}
    code = told.get("error_code")
    message = told.get("message") or error.reason or "without a reason"
    return RegistryRefusal(error.code, code if isinstance(code, int) else None, str(message))
