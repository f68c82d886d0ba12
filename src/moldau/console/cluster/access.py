"""Who may do what on the cluster: ACLs, users with SCRAM passwords, quotas. Blocking.

A cluster without an authorizer says SECURITY_DISABLED; that is no failure but something to explain (`Disabled`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import NamedTuple

from moldau.client.connection import BrokerError, ClientError
from moldau.console.cluster.asking import Asker, check
from moldau.wire import ErrorCode
from moldau.wire.messages import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)

_ANY = 1
RESOURCES = {2: "topic", 3: "group", 4: "cluster", 5: "transactional-id", 6: "delegation-token", 7: "user"}
OPERATIONS = {
    2: "all",
    3: "read",
    4: "write",
    5: "create",
    6: "delete",
    7: "alter",
    8: "describe",
    9: "cluster-action",
    10: "describe-configs",
    11: "alter-configs",
    12: "idempotent-write",
    13: "create-tokens",
    14: "describe-tokens",
    15: "two-phase-commit",
}
PATTERNS = {3: "literal", 4: "prefixed"}
PERMISSIONS = {2: "deny", 3: "allow"}
MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
_HASHES = {1: "sha256", 2: "sha512"}
QUOTAS = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
    "connection_creation_rate",
)
ENTITIES = ("user", "client-id", "ip")
_ITERATIONS = 8_192
_OFF = (ErrorCode.SECURITY_DISABLED, ErrorCode.UNSUPPORTED_VERSION)


class Disabled(Exception):
    """The cluster has no such thing switched on."""


class Acl(NamedTuple):
    resource: int
    name: str
    pattern: int
    principal: str
    host: str
    operation: int
    permission: int

    @property
    def words(self) -> dict[str, str]:
        return {
            "resource": RESOURCES.get(self.resource, str(self.resource)),
            "pattern": PATTERNS.get(self.pattern, str(self.pattern)),
            "operation": OPERATIONS.get(self.operation, str(self.operation)),
            "permission": PERMISSIONS.get(self.permission, str(self.permission)),
        }


def acls(asker: Asker) -> list[Acl]:
    request = DescribeAclsRequest(
        resource_type_filter=_ANY,
        resource_name_filter=None,
        pattern_type_filter=_ANY,
        principal_filter=None,
        host_filter=None,
        operation=_ANY,
        permission_type=_ANY,
    )
    try:
        answer = asker.any(request, DescribeAclsResponse)
        check(answer.error_code, "ACLs", answer.error_message)
    except ClientError as error:
        raise _told(error) from error
    return sorted(
        Acl(
            row.resource_type,
            row.resource_name,
            row.pattern_type,
            each.principal,
            each.host,
            each.operation,
            each.permission_type,
        )
        for row in answer.resources
        for each in row.acls
    )


def _told(error: ClientError) -> Exception:
    if isinstance(error, BrokerError):
        return Disabled(str(error)) if error.code in _OFF else error
    return Disabled(str(error)) if "does not speak" in str(error) else error


def create_acl(asker: Asker, acl: Acl) -> None:
    creation = CreateAclsRequest.AclCreation(
        resource_type=acl.resource,
        resource_name=acl.name,
        resource_pattern_type=acl.pattern,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )
    for row in asker.controller(CreateAclsRequest(creations=[creation]), CreateAclsResponse).results:
        check(row.error_code, "the ACL", row.error_message)


def delete_acl(asker: Asker, acl: Acl) -> int:
    one = DeleteAclsRequest.DeleteAclsFilter(
        resource_type_filter=acl.resource,
        resource_name_filter=acl.name,
        pattern_type_filter=acl.pattern,
        principal_filter=acl.principal,
        host_filter=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )
    count = 0
    for row in asker.controller(DeleteAclsRequest(filters=[one]), DeleteAclsResponse).filter_results:
        check(row.error_code, "the ACL", row.error_message)
        count += len(row.matching_acls)
    return count


class ScramUser(NamedTuple):
    name: str
    mechanisms: tuple[tuple[int, int], ...]  # mechanism, iterations


def scram_users(asker: Asker) -> list[ScramUser]:
    try:
        answer = asker.any(DescribeUserScramCredentialsRequest(users=None), DescribeUserScramCredentialsResponse)
        check(answer.error_code, "users", answer.error_message)
    except ClientError as error:
        raise _told(error) from error
    return sorted(
        ScramUser(row.user, tuple((each.mechanism, each.iterations) for each in row.credential_infos))
        for row in answer.results
        if not row.error_code
    )


def save_user(asker: Asker, name: str, mechanism: int, password: str) -> None:
    salt = os.urandom(24)
    salted = hashlib.pbkdf2_hmac(_HASHES[mechanism], password.encode(), salt, _ITERATIONS)
    row = AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        name=name, mechanism=mechanism, iterations=_ITERATIONS, salt=salt, salted_password=salted
    )
    _alter_user(asker, AlterUserScramCredentialsRequest(upsertions=[row]))


def delete_user(asker: Asker, name: str, mechanism: int) -> None:
    row = AlterUserScramCredentialsRequest.ScramCredentialDeletion(name=name, mechanism=mechanism)
    _alter_user(asker, AlterUserScramCredentialsRequest(deletions=[row]))


def _alter_user(asker: Asker, request: AlterUserScramCredentialsRequest) -> None:
    for row in asker.controller(request, AlterUserScramCredentialsResponse).results:
        check(row.error_code, f"user {row.user}", row.error_message)


class Quota(NamedTuple):
    entity: tuple[tuple[str, str | None], ...]  # type, name; None is the default of the type
    values: tuple[tuple[str, float], ...]


def quotas(asker: Asker) -> list[Quota]:
    try:
        answer = asker.any(DescribeClientQuotasRequest(components=[], strict=False), DescribeClientQuotasResponse)
        check(answer.error_code, "quotas", answer.error_message)
    except ClientError as error:
        raise _told(error) from error
    found = [
        Quota(
            tuple((each.entity_type, each.entity_name) for each in row.entity),
            tuple(sorted((each.key, each.value) for each in row.values)),
        )
        for row in answer.entries or ()
    ]
    return sorted(found, key=lambda each: [(kind, name or "") for kind, name in each.entity])


def save_quota(asker: Asker, entity: Sequence[tuple[str, str | None]], name: str, value: float | None) -> None:
    """None removes it."""
    entry = AlterClientQuotasRequest.EntryData(
        entity=[AlterClientQuotasRequest.EntityData(entity_type=kind, entity_name=each) for kind, each in entity],
        ops=[AlterClientQuotasRequest.OpData(key=name, value=value or 0.0, remove=value is None)],
    )
    for row in asker.controller(AlterClientQuotasRequest(entries=[entry]), AlterClientQuotasResponse).entries:
        check(row.error_code, "the quota", row.error_message)
