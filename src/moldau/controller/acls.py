"""CreateAcls, DeleteAcls and DescribeAcls, and who may do what by them.

A rule names a resource by its exact name, by a prefix of it, or by "*". A request is refused if any rule that fits it
denies it, allowed if one allows it, and otherwise refused; only a resource without any rule at all is left to the
configured default. Being allowed to read, write, delete or alter something includes seeing that it exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from moldau.controller.context import RECORDS_PER_COMMAND_MAX, ControllerContext, ControllerResult
from moldau.controller.errors import ApiError
from moldau.controller.image import Acl, ClusterImage
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode
from moldau.wire.message import Message

WILDCARD = "*"
WILDCARD_PRINCIPAL = "User:*"
CLUSTER_NAME = "kafka-cluster"

_RESOURCE_TYPES = ("UNKNOWN", "ANY", "TOPIC", "GROUP", "CLUSTER", "TRANSACTIONAL_ID", "DELEGATION_TOKEN", "USER")
_PATTERN_TYPES = ("UNKNOWN", "ANY", "MATCH", "LITERAL", "PREFIXED")
_PERMISSIONS = ("UNKNOWN", "ANY", "DENY", "ALLOW")
_OPERATIONS = (
    "UNKNOWN",
    "ANY",
    "ALL",
    "READ",
    "WRITE",
    "CREATE",
    "DELETE",
    "ALTER",
    "DESCRIBE",
    "CLUSTER_ACTION",
    "DESCRIBE_CONFIGS",
    "ALTER_CONFIGS",
    "IDEMPOTENT_WRITE",
    "CREATE_TOKENS",
    "DESCRIBE_TOKENS",
    "TWO_PHASE_COMMIT",
)
_UNKNOWN, _ANY = 0, 1


class AclResource:
    """Kinds of resource a rule may be about (not the numbers that configs use)."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class Pattern:
    MATCH = 2  # in filters: whatever would apply to the resource of that name
    LITERAL = 3
    PREFIXED = 4


class Operation:
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission:
    DENY = 2
    ALLOW = 3


_IMPLIED_BY: Mapping[int, frozenset[int]] = {
    Operation.DESCRIBE: frozenset(
        {Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    ),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS}),
}


def create_acls(
    image: ClusterImage, request: m.CreateAclsRequest, context: ControllerContext
) -> ControllerResult[m.CreateAclsResponse]:
    """A rule that exists already is not written again."""
    response = m.CreateAclsResponse()
    records: list[Message] = []
    existing = set(image.acls.values())
    for creation in request.creations:
        result = m.CreateAclsResponse.AclCreationResult(error_message=None)
        response.results.append(result)
        acl = Acl(
            creation.resource_type,
            creation.resource_name,
            creation.resource_pattern_type,
            creation.principal,
            creation.host,
            creation.operation,
            creation.permission_type,
        )
        try:
            _check_new(acl)
        except ApiError as error:
            result.error_code, result.error_message = error.code, error.message
            continue
        if acl not in existing:
            existing.add(acl)
            records.append(m.AccessControlEntryRecord(context.random.uuid(), *acl))
    return ControllerResult(response, records)


def _name(names: tuple[str, ...], number: int) -> str:
    return names[number] if 0 <= number < len(names) else names[_UNKNOWN]


def _check_new(acl: Acl) -> None:
    if acl.resource_type == AclResource.CLUSTER and acl.resource_name != CLUSTER_NAME:
        raise _invalid(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not acl.resource_name:
        raise _invalid("Invalid empty resource name")
    resource_type = _name(_RESOURCE_TYPES, acl.resource_type)
    if resource_type in ("UNKNOWN", "ANY"):
        raise _invalid(f"Invalid resourceType {resource_type}")
    if acl.pattern_type not in (Pattern.LITERAL, Pattern.PREFIXED):
        raise _invalid(f"Invalid patternType {_name(_PATTERN_TYPES, acl.pattern_type)}")
    operation = _name(_OPERATIONS, acl.operation)
    if operation in ("UNKNOWN", "ANY"):
        raise _invalid(f"Invalid operation {operation}")
    if acl.permission_type not in (Permission.DENY, Permission.ALLOW):
        raise _invalid(f"Invalid permissionType {_name(_PERMISSIONS, acl.permission_type)}")
    if ":" not in acl.principal:
        raise _invalid(
            f"Could not parse principal from `{acl.principal}` (no colon is present separating the principal type "
            "from the principal name)"
        )


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, message)


class AclFilter(NamedTuple):
    """Which rules are meant. None matches every name, principal or host; 1 (ANY) every type, operation, permission."""

    resource_type: int
    resource_name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission_type: int

    def matches(self, acl: Acl) -> bool:
        return (
            self.resource_type in (_ANY, acl.resource_type)
            and self._matches_pattern(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (_ANY, acl.operation)
            and self.permission_type in (_ANY, acl.permission_type)
        )

    def _matches_pattern(self, acl: Acl) -> bool:
        if self.pattern_type not in (_ANY, Pattern.MATCH, acl.pattern_type):
            return False
        name = self.resource_name
        if name is None or name == acl.resource_name:
            return True
        if self.pattern_type != Pattern.MATCH:
            return False
        if acl.pattern_type == Pattern.PREFIXED:
            return name.startswith(acl.resource_name)
        return acl.resource_name == WILDCARD

    def check(self) -> None:
        if "UNKNOWN" in (_name(_RESOURCE_TYPES, self.resource_type), _name(_PATTERN_TYPES, self.pattern_type)):
            raise _invalid("Unknown patternFilter.")
        if "UNKNOWN" in (_name(_OPERATIONS, self.operation), _name(_PERMISSIONS, self.permission_type)):
            raise _invalid("Unknown entryFilter.")


def delete_acls(
    image: ClusterImage, request: m.DeleteAclsRequest, _context: ControllerContext
) -> ControllerResult[m.DeleteAclsResponse]:
    response = m.DeleteAclsResponse()
    removed: dict[bytes, Message] = {}
    for asked in request.filters:
        result = m.DeleteAclsResponse.DeleteAclsFilterResult(error_message=None)
        response.filter_results.append(result)
        wanted = AclFilter(
            asked.resource_type_filter,
            asked.resource_name_filter,
            asked.pattern_type_filter,
            asked.principal_filter,
            asked.host_filter,
            asked.operation,
            asked.permission_type,
        )
        try:
            wanted.check()
        except ApiError as error:
            result.error_code, result.error_message = error.code, error.message
            continue
        for acl_id, acl in image.acls.items():
            if wanted.matches(acl):
                removed[acl_id] = m.RemoveAccessControlEntryRecord(acl_id)
                result.matching_acls.append(m.DeleteAclsResponse.DeleteAclsMatchingAcl(ErrorCode.NONE, None, *acl))
    if len(removed) > RECORDS_PER_COMMAND_MAX:
        message = f"Cannot remove more than {RECORDS_PER_COMMAND_MAX} acls in a single delete operation."
        refused = [
            m.DeleteAclsResponse.DeleteAclsFilterResult(ErrorCode.INVALID_REQUEST, message) for _ in request.filters
        ]
        return ControllerResult(m.DeleteAclsResponse(0, refused), [], message)
    return ControllerResult(response, list(removed.values()))


def describe_acls(image: ClusterImage, request: m.DescribeAclsRequest) -> m.DescribeAclsResponse:
    wanted = AclFilter(
        request.resource_type_filter,
        request.resource_name_filter,
        request.pattern_type_filter,
        request.principal_filter,
        request.host_filter,
        request.operation,
        request.permission_type,
    )
    response = m.DescribeAclsResponse(error_message=None)
    try:
        wanted.check()
    except ApiError as error:
        response.error_code, response.error_message = error.code, error.message
        return response
    by_resource: dict[tuple[int, str, int], list[m.DescribeAclsResponse.AclDescription]] = {}
    for acl in image.acls.values():
        if wanted.matches(acl):
            resource = (acl.resource_type, acl.resource_name, acl.pattern_type)
            rule = m.DescribeAclsResponse.AclDescription(acl.principal, acl.host, acl.operation, acl.permission_type)
            by_resource.setdefault(resource, []).append(rule)
    response.resources = [
        m.DescribeAclsResponse.DescribeAclsResource(*resource, rules) for resource, rules in by_resource.items()
    ]
    return response


@dataclass(slots=True, frozen=True)
class Authorizer:
    """Rules arranged for quick answers. Make a new one with `of` when the image's ACLs change."""

    super_users: frozenset[str] = frozenset()
    allow_if_no_acl: bool = False
    _literal: Mapping[tuple[int, str], list[Acl]] = field(default_factory=dict)
    _prefixed: Mapping[tuple[int, str], list[Acl]] = field(default_factory=dict)
    # Per resource type, the lengths of its prefixes: only those need to be looked up.
    _prefix_lengths: Mapping[int, list[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, acls: Iterable[Acl], *, super_users: Iterable[str] = (), allow_if_no_acl: bool = False) -> Authorizer:
        literal: dict[tuple[int, str], list[Acl]] = {}
        prefixed: dict[tuple[int, str], list[Acl]] = {}
        lengths: dict[int, set[int]] = {}
        for acl in acls:
            target = prefixed if acl.pattern_type == Pattern.PREFIXED else literal
            target.setdefault((acl.resource_type, acl.resource_name), []).append(acl)
            if acl.pattern_type == Pattern.PREFIXED:
                lengths.setdefault(acl.resource_type, set()).add(len(acl.resource_name))
        ordered = {kind: sorted(found) for kind, found in lengths.items()}
        return cls(frozenset(super_users), allow_if_no_acl, literal, prefixed, ordered)

    def authorize(self, principal: str, host: str, operation: int, resource_type: int, name: str) -> bool:
        if principal in self.super_users:
            return True
        rules = self._rules(resource_type, name)
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

    def _rules(self, resource_type: int, name: str) -> list[Acl]:
        rules = list(self._literal.get((resource_type, name), ()))
        if name != WILDCARD:
            rules += self._literal.get((resource_type, WILDCARD), ())
        for length in self._prefix_lengths.get(resource_type, ()):
            if length > len(name):
                break
            rules += self._prefixed.get((resource_type, name[:length]), ())
        return rules

    def authorize_any(self, principal: str, host: str, operation: int, resource_type: int) -> bool:
        """Whether there is some resource of the kind the operation is allowed on (an idempotent producer's question).

        Kafka's rule: an ALLOW counts unless a DENY covers it: the same literal name, a prefix of it, or everything.
        """
        if principal in self.super_users:
            return True
        denied_names: set[str] = set()
        denied_prefixes: set[str] = set()
        allows: list[Acl] = []
        for (kind, _), rules in [*self._literal.items(), *self._prefixed.items()]:
            if kind != resource_type:
                continue
            for acl in rules:
                if acl.principal not in (principal, WILDCARD_PRINCIPAL) or acl.host not in (WILDCARD, host):
                    continue
                if acl.permission_type == Permission.DENY and acl.operation in (Operation.ALL, operation):
                    (denied_prefixes if acl.pattern_type == Pattern.PREFIXED else denied_names).add(acl.resource_name)
                elif acl.permission_type == Permission.ALLOW and (
                    acl.operation == Operation.ALL or acl.operation in _IMPLIED_BY.get(operation, (operation,))
                ):
                    allows.append(acl)
        if WILDCARD in denied_names:
            return False
        if self.allow_if_no_acl or any(acl.resource_name == WILDCARD for acl in allows):
            return True
        return any(
            not any(acl.resource_name.startswith(prefix) for prefix in denied_prefixes)
            and not (acl.pattern_type == Pattern.LITERAL and acl.resource_name in denied_names)
            for acl in allows
        )


def authorize(
    image: ClusterImage,
    principal: str,
    host: str,
    operation: int,
    resource: tuple[int, str],
    *,
    super_users: Iterable[str] = (),
    allow_if_no_acl: bool = False,
) -> bool:
    """One answer, for a resource's kind and name, without keeping the arrangement; see `Authorizer` for many."""
    rules = Authorizer.of(image.acls.values(), super_users=super_users, allow_if_no_acl=allow_if_no_acl)
    return rules.authorize(principal, host, operation, *resource)
