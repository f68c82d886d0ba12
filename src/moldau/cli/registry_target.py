"""The schema registry a command talks to: where it is, how to log in, and what its errors mean for the exit code.

It is said by `--registry` (`MOLDAU_REGISTRY`), or by `schema.registry.url` among the client settings, so that a context
or a client.properties may hold it, under the names Confluent's clients use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import quote, urlencode

from moldau.cli.failure import ExitCode, fail, misused

if TYPE_CHECKING:
    from moldau.client.schema_registry import RegistryAddress, RegistryAway, RegistryRefusal

_URL = "schema.registry.url"
_TIMEOUT_SECONDS = 10.0


def registry_address(url: str | None, settings: Mapping[str, str]) -> RegistryAddress | None:
    """None if nobody says where it is. Of several addresses, the first."""
    from moldau.client.schema_registry import RegistryAddress

    def of(name: str) -> str:
        return settings.get(f"schema.registry.{name}") or settings.get(name, "")

    where = url or settings.get(_URL, "").partition(",")[0].strip()
    if not where:
        return None
    try:
        return RegistryAddress.parse(where, user_info=of("basic.auth.user.info"), token=of("bearer.auth.token"))
    except ValueError as error:
        misused(str(error))


class RegistryTarget:
    """Made by the frame from a command's options."""

    def __init__(self, url: str | None, settings: Mapping[str, str]) -> None:
        address = registry_address(url, settings)
        if address is None:
            misused(f"where is the schema registry? Say --registry http://HOST:PORT, MOLDAU_REGISTRY or -X {_URL}=…")
        self._address = address
        self.url = address.url
        waits = settings.get("request.timeout.ms", "")
        self._timeout_s = int(waits) / 1000 if waits.isdecimal() and int(waits) else _TIMEOUT_SECONDS

    def ask(self, method: str, *path: str | int, body: Mapping[str, Any] | None = None, **query: Any) -> Any:
        """Its answer; any error ends the command."""
        from moldau.client.schema_registry import RegistryRefusal

        try:
            return self.try_to_ask(method, *path, body=body, **query)
        except RegistryRefusal as refusal:
            self.refused(refusal)

    def try_to_ask(self, method: str, *path: str | int, body: Mapping[str, Any] | None = None, **query: Any) -> Any:
        """Likewise, for who knows what to do about a refusal."""
        from moldau.client.schema_registry import RegistryAway, ask_registry

        if "" in path:  # registries would take it for all subjects: a variable of a script that is not set
            misused("a subject has a name, and this one is empty")
        asked = {name: str(value).lower() for name, value in query.items() if value not in (None, False)}
        where = "/" + "/".join(quote(str(part), safe="") for part in path) + (f"?{urlencode(asked)}" if asked else "")
        try:
            # A login follows no redirect; and one of a change would arrive as a question.
            return ask_registry(self._address, method, where, body, timeout_s=self._timeout_s, follows=False)
        except RegistryAway as error:
            self._away(error, is_change=method != "GET")

    def _away(self, error: RegistryAway, *, is_change: bool) -> NoReturn:
        is_doubtful = is_change and error.was_sent
        doubt = "; it may have been done all the same: look before trying again" if is_doubtful else ""
        fail(f"no schema registry answers at {self.url}: {error}{doubt}", ExitCode.UNREACHABLE)

    def refused(self, refusal: RegistryRefusal) -> NoReturn:
        if refusal.status in (401, 403):
            advice = "see http://USER:PASSWORD@HOST:PORT, or -X basic.auth.user.info=USER:PASSWORD"
            fail(f"the registry at {self.url} refuses: {refusal} ({advice})", ExitCode.DENIED)
        if refusal.code is None and refusal.status < 500:
            fail(f"what answers at {self.url} is no schema registry: {refusal}", ExitCode.FAILED)
        is_missing = refusal.status == 404
        fail(f"the registry refuses: {refusal.message}", ExitCode.NOT_FOUND if is_missing else ExitCode.FAILED)
