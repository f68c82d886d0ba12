"""The APIs of the protocol: keys, names, versions, which of them are flexible, who serves them.

Read from the head lines of the schema table, so adding an API means adding its two messages there.
"""

from dataclasses import dataclass
from functools import cache

from moldau.wire import messages, schema
from moldau.wire.message import Message
from moldau.wire.schema import Versions

API_VERSIONS = 18


@dataclass(slots=True, frozen=True)
class Api:
    """One API: its key, its versions and its messages."""

    key: int
    name: str
    versions: Versions  # stable versions only
    flexible: Versions
    listeners: frozenset[str]  # "broker", "controller"

    @property
    def request(self) -> type[Message]:
        return getattr(messages, self.name + "Request")  # type: ignore[no-any-return]  # looked up by name

    @property
    def response(self) -> type[Message]:
        return getattr(messages, self.name + "Response")  # type: ignore[no-any-return]  # looked up by name

    def request_header_version(self, version: int) -> int:
        first, last = self.flexible  # `in` would be a call, and every request comes through here
        return 2 if first <= version <= last else 1

    def response_header_version(self, version: int) -> int:
        """ApiVersions always answers with header 0: a client that asks for too new a version must still understand."""
        first, last = self.flexible
        return 1 if first <= version <= last and self.key != API_VERSIONS else 0


@cache
def apis() -> dict[int, Api]:
    """Every API by its key."""
    found = {}
    for name, head in schema.heads().items():
        if head.kind == "request":
            stable = Versions(head.versions.first, head.versions.last - head.unstable_last)
            api_name = name.removesuffix("Request")
            found[head.number] = Api(head.number, api_name, stable, head.flexible, frozenset(head.listeners))
    return dict(sorted(found.items()))
