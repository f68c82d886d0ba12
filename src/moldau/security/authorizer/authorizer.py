"""The authorizer of a node: super users, the rules of the metadata, and answers that are remembered.

Every Produce and Fetch asks the same few questions again and again, so answers are kept until the rules change. What is
kept is bounded: beyond `REMEMBERED_MAX` answers everything is forgotten, and asked anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from moldau.controller.image import Acl
from moldau.controller.persistent import PersistentMap, changed_keys
from moldau.security.authorizer.operations import SUPPORTED
from moldau.security.authorizer.rules import Rules
from moldau.security.principal import Principal

REMEMBERED_MAX = 100_000
_NO_ACLS: PersistentMap[bytes, Acl] = PersistentMap()

# Who asks what, from where, about which kind of resource.
_Question = tuple[Principal, str, int, int]


class Known(dict[str, bool]):
    """The answers to one question, by the name of the resource. Who looks one up that is not there yet has it made."""

    __slots__ = ("_decide",)

    def __init__(self, decide: Callable[[str], bool]) -> None:
        super().__init__()
        self._decide = decide

    def __missing__(self, name: str) -> bool:
        answer = self[name] = self._decide(name)
        return answer


class Authorizer:
    """Kafka's StandardAuthorizer. `follow` is told of every new image's ACLs before anybody acts on that image."""

    __slots__ = ("_acls", "_remembered", "_rules", "_size", "_super_users", "epoch")

    def __init__(self, super_users: Iterable[str] = (), *, allow_if_no_acl: bool = False) -> None:
        """`super_users` as in the settings: `User:name`."""
        self._super_users = frozenset(super_users)
        self._rules = Rules(allow_if_no_acl=allow_if_no_acl)
        self._acls = _NO_ACLS
        self._remembered: dict[_Question, Known] = {}
        self._size = 0
        self.epoch = object()
        """Another one when answers that somebody keeps may be wrong."""

    def follow(self, acls: PersistentMap[bytes, Acl]) -> None:
        """The rules are these from now on. Costs what changed, not what there is."""
        if acls is self._acls:
            return
        for key in changed_keys(self._acls, acls):
            if (before := self._acls.get(key)) is not None:
                self._rules.remove(before)
            if (after := acls.get(key)) is not None:
                self._rules.add(after)
        self._acls = acls
        self._forget()

    def _forget(self) -> None:
        self._remembered = {}
        self._size = 0
        self.epoch = object()

    def known(self, principal: Principal, host: str, operation: int, kind: int) -> Known:
        """The answers by name; they hold while `epoch` is the same."""
        question = (principal, host, operation, kind)
        known = self._remembered.get(question)
        if known is None:
            self._count()
            known = self._remembered[question] = Known(partial(self._decide, str(principal), host, operation, kind))
        return known

    def _decide(self, principal: str, host: str, operation: int, kind: int, name: str) -> bool:
        self._count()
        return principal in self._super_users or self._rules.allows(principal, host, operation, kind, name)

    def _count(self) -> None:
        """Something more is remembered: an answer, or that somebody asks at all."""
        self._size += 1
        if self._size > REMEMBERED_MAX:
            self._forget()

    def allows(self, principal: Principal, host: str, operation: int, kind: int, name: str) -> bool:
        return self.known(principal, host, operation, kind)[name]

    def allows_somewhere(self, principal: Principal, host: str, operation: int, kind: int) -> bool:
        """Whether there is some resource of the kind the operation is allowed on."""
        text = str(principal)
        return text in self._super_users or self._rules.allows_somewhere(text, host, operation, kind)

    def allowed_operations(self, principal: Principal, host: str, kind: int, name: str) -> list[int]:
        """Of those the kind of resource has."""
        return [each for each in SUPPORTED[kind] if self.allows(principal, host, each, kind, name)]
