"""CreateAcls, DeleteAcls and DescribeAcls. Who may do what by these rules: `moldau.security.authorizer`."""

from __future__ import annotations

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


def create_acls(
    image: ClusterImage, request: m.CreateAclsRequest, context: ControllerContext
) -> ControllerResult[m.CreateAclsResponse]:
    """A rule that exists already is not written again."""
    response = m.CreateAclsResponse()
    records: list[Message] = []
    existing = set(image.acls.values())
    for creation in request.creations:
        result = m.CreateAclsResponse.AclCreationResult(error_message="")  # as Kafka says that all is well
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


def operation_name(operation: int) -> str:
    return _name(_OPERATIONS, operation)


def resource_name(kind: int) -> str:
    """Of a kind of resource."""
    return _name(_RESOURCE_TYPES, kind)


def words(acl: Acl) -> str:
    """A rule as people and audit logs read it."""
    pattern, permission = _name(_PATTERN_TYPES, acl.pattern_type), _name(_PERMISSIONS, acl.permission_type)
    resource = f"{resource_name(acl.resource_type)}:{pattern}:{acl.resource_name}"
    return f"{permission} {acl.principal} {operation_name(acl.operation)} {resource} from {acl.host}"


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
    response = m.DescribeAclsResponse(error_message="")
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
