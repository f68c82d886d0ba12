"""ACLs arranged for quick answers, and how Kafka reads them.

A rule names a resource by its exact name, by a prefix of it, or by "*". A request is refused if any rule that fits it
denies it, allowed if one allows it, and otherwise refused; only a resource without any rule at all is left to the
configured default. Being allowed to read, write, delete or alter something includes seeing that it exists; a denial
includes nothing but what it says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from moldau.controller.acls import WILDCARD, WILDCARD_PRINCIPAL, Operation, Pattern, Permission
from moldau.controller.addresses import plain_address
from moldau.controller.image import Acl

_IMPLIED_BY: Mapping[int, frozenset[int]] = {
    Operation.DESCRIBE: frozenset(
        {Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    ),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS}),
}
_ANY_NAME = "hardcode"  # the name Kafka asks about when it wants to know of no resource in particular


class Rules:
    """Of one moment; `add` and `remove` follow the metadata, one rule at a time."""

    __slots__ = ("_literal", "_prefix_counts", "_prefix_lengths", "_prefixed", "allow_if_no_acl")

    def __init__(self, acls: Iterable[Acl] = (), *, allow_if_no_acl: bool = False) -> None:
        self.allow_if_no_acl = allow_if_no_acl
        self._literal: dict[tuple[int, str], list[Acl]] = {}
        self._prefixed: dict[tuple[int, str], list[Acl]] = {}
        # Per kind of resource, the lengths of its prefixes: only those need to be looked up. And how many have each.
        self._prefix_lengths: dict[int, list[int]] = {}
        self._prefix_counts: dict[tuple[int, int], int] = {}
        for acl in acls:
            self.add(acl)

    def add(self, acl: Acl) -> None:
        acl = _with_plain_host(acl)
        if acl.pattern_type != Pattern.PREFIXED:
            self._literal.setdefault((acl.resource_type, acl.resource_name), []).append(acl)
            return
        self._prefixed.setdefault((acl.resource_type, acl.resource_name), []).append(acl)
        length = acl.resource_type, len(acl.resource_name)
        self._prefix_counts[length] = self._prefix_counts.get(length, 0) + 1
        self._note_lengths(acl.resource_type)

    def remove(self, acl: Acl) -> None:
        """Once: the same rule may be there under another id."""
        acl = _with_plain_host(acl)
        is_prefixed = acl.pattern_type == Pattern.PREFIXED
        among = self._prefixed if is_prefixed else self._literal
        key = acl.resource_type, acl.resource_name
        among[key].remove(acl)
        if not among[key]:
            del among[key]
        if is_prefixed:
            self._prefix_counts[acl.resource_type, len(acl.resource_name)] -= 1
            self._note_lengths(acl.resource_type)

    def _note_lengths(self, kind: int) -> None:
        self._prefix_lengths[kind] = sorted(
            length for (of, length), count in self._prefix_counts.items() if of == kind and count
        )

    def allows(self, principal: str, host: str, operation: int, kind: int, name: str) -> bool:
        """Whether the principal (`User:ann`) may do that to the resource of that kind and name, from that address."""
        rules = self._about(kind, name)
        if not rules:
            return self.allow_if_no_acl
        allowed = False
        for acl in rules:
            if acl.principal not in (principal, WILDCARD_PRINCIPAL) or acl.host not in (WILDCARD, host):
                continue
            if acl.permission_type == Permission.DENY:
                if acl.operation in (Operation.ALL, operation):
                    return False
            elif acl.operation == Operation.ALL or acl.operation in _IMPLIED_BY.get(operation, (operation,)):
                allowed = True
        return allowed

    def _about(self, kind: int, name: str) -> list[Acl]:
        rules = list(self._literal.get((kind, name), ()))
        if name != WILDCARD:
            rules += self._literal.get((kind, WILDCARD), ())
        for length in self._prefix_lengths.get(kind, ()):
            if length > len(name):
                break
            rules += self._prefixed.get((kind, name[:length]), ())
        return rules

    def allows_somewhere(self, principal: str, host: str, operation: int, kind: int) -> bool:
        """Whether there is some resource of the kind the operation is allowed on (an idempotent producer's question).

        Kafka's rule: an ALLOW counts unless a DENY covers it: the same literal name, a prefix of it, or everything.
        """
        if self.allows(principal, host, operation, kind, _ANY_NAME):
            return True
        denied_names: set[str] = set()
        denied_prefixes: set[str] = set()
        allowed: list[Acl] = []
        for acl in self._of_kind(kind):
            if acl.principal not in (principal, WILDCARD_PRINCIPAL) or acl.host not in (WILDCARD, host):
                continue
            if acl.operation not in (Operation.ALL, operation):
                continue
            if acl.permission_type == Permission.ALLOW:
                allowed.append(acl)
            else:
                (denied_prefixes if acl.pattern_type == Pattern.PREFIXED else denied_names).add(acl.resource_name)
        if WILDCARD in denied_names:
            return False
        return any(
            acl.resource_name == WILDCARD
            or not (
                any(acl.resource_name.startswith(prefix) for prefix in denied_prefixes)
                or (acl.pattern_type == Pattern.LITERAL and acl.resource_name in denied_names)
            )
            for acl in allowed
        )

    def _of_kind(self, kind: int) -> Iterator[Acl]:
        for among in (self._literal, self._prefixed):
            for (of, _), rules in among.items():
                if of == kind:
                    yield from rules


def _with_plain_host(acl: Acl) -> Acl:
    host = plain_address(acl.host)
    return acl if host == acl.host else acl._replace(host=host)
