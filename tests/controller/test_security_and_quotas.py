"""ACLs, SCRAM credentials and client quotas, as the controller takes them."""

import base64
import hashlib
import hmac
import math

import pytest

from moldau.controller.acls import (
    AclResource,
    Operation,
    Pattern,
    Permission,
    create_acls,
    delete_acls,
    describe_acls,
)
from moldau.controller.image import Acl
from moldau.controller.quotas import alter_client_quotas, describe_client_quotas
from moldau.controller.scram import alter_user_scram_credentials, describe_user_scram_credentials
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode
from tests.controller.world import World

TOPIC, GROUP, CLUSTER = AclResource.TOPIC, AclResource.GROUP, AclResource.CLUSTER
LITERAL, PREFIXED, MATCH = Pattern.LITERAL, Pattern.PREFIXED, Pattern.MATCH
ALLOW, DENY = Permission.ALLOW, Permission.DENY
ANY = 1
Scram = m.AlterUserScramCredentialsRequest


def allow(name: str, operation: int = Operation.READ, pattern: int = LITERAL, who: str = "User:ann") -> Acl:
    return Acl(TOPIC, name, pattern, who, "*", operation, ALLOW)


def deny(name: str, operation: int = Operation.READ, pattern: int = LITERAL, who: str = "User:ann") -> Acl:
    return Acl(TOPIC, name, pattern, who, "*", operation, DENY)


def _creation(acl: Acl) -> m.CreateAclsRequest.AclCreation:
    return m.CreateAclsRequest.AclCreation(*acl)


def create(world: World, *acls: Acl) -> list[tuple[int, str | None]]:
    request = m.CreateAclsRequest([_creation(acl) for acl in acls])
    response = world.run(create_acls(world.image, request, world.context))
    return [(result.error_code, result.error_message) for result in response.results]


def test_rules_are_created_once() -> None:
    world = World()
    assert create(world, allow("a"), allow("a"), deny("a")) == [(0, "")] * 3
    assert create(world, allow("a")) == [(0, "")]
    assert sorted(world.image.acls.values()) == sorted([allow("a"), deny("a")])


@pytest.mark.parametrize(
    ("acl", "message"),
    [
        (allow("a")._replace(resource_type=1), "Invalid resourceType ANY"),
        (allow("a")._replace(resource_type=99), "Invalid resourceType UNKNOWN"),
        (allow("a")._replace(pattern_type=MATCH), "Invalid patternType MATCH"),
        (allow("a")._replace(operation=ANY), "Invalid operation ANY"),
        (allow("a")._replace(permission_type=0), "Invalid permissionType UNKNOWN"),
        (allow(""), "Invalid empty resource name"),
        (
            allow("x")._replace(resource_type=CLUSTER),
            "The only valid name for the CLUSTER resource is kafka-cluster",
        ),
        (
            allow("a", who="ann"),
            "Could not parse principal from `ann` (no colon is present separating the principal type from the "
            "principal name)",
        ),
    ],
)
def test_rules_that_make_no_sense(acl: Acl, message: str) -> None:
    world = World()
    assert create(world, acl, allow("fine")) == [(ErrorCode.INVALID_REQUEST, message), (0, "")]
    assert list(world.image.acls.values()) == [allow("fine")]


def _filter(
    name: str | None = None, pattern: int = ANY, kind: int = ANY, operation: int = ANY, who: str | None = None
) -> m.DeleteAclsRequest.DeleteAclsFilter:
    return m.DeleteAclsRequest.DeleteAclsFilter(kind, name, pattern, who, None, operation, ANY)


def found(world: World, wanted: m.DeleteAclsRequest.DeleteAclsFilter) -> set[tuple[str, int]]:
    request = m.DescribeAclsRequest(
        wanted.resource_type_filter,
        wanted.resource_name_filter,
        wanted.pattern_type_filter,
        wanted.principal_filter,
        wanted.host_filter,
        wanted.operation,
        wanted.permission_type,
    )
    response = describe_acls(world.image, request)
    assert response.error_code == ErrorCode.NONE
    return {(resource.resource_name, resource.pattern_type) for resource in response.resources}


def test_filters_find_what_they_say() -> None:
    world = World()
    create(world, allow("orders"), allow("ord", pattern=PREFIXED), allow("*"), allow("other", who="User:bob"))
    assert found(world, _filter()) == {("orders", 3), ("ord", 4), ("*", 3), ("other", 3)}
    assert found(world, _filter("orders", LITERAL)) == {("orders", 3)}
    assert found(world, _filter("orders", PREFIXED)) == set()
    assert found(world, _filter("orders", MATCH)) == {("orders", 3), ("ord", 4), ("*", 3)}
    assert found(world, _filter("ord", ANY)) == {("ord", 4)}
    assert found(world, _filter(who="User:bob")) == {("other", 3)}
    assert found(world, _filter(kind=GROUP)) == set()
    assert found(world, _filter(operation=Operation.WRITE)) == set()


def test_rules_are_deleted_by_filter() -> None:
    world = World()
    create(world, allow("a"), allow("b"), deny("a"))
    request = m.DeleteAclsRequest([_filter("a"), _filter("a", LITERAL), _filter(pattern=0)])
    response = world.run(delete_acls(world.image, request, world.context))
    assert [len(result.matching_acls) for result in response.filter_results] == [2, 2, 0]
    assert response.filter_results[2].error_message == "Unknown patternFilter."
    assert list(world.image.acls.values()) == [allow("b")]
    bad = describe_acls(world.image, m.DescribeAclsRequest(ANY, None, ANY, None, None, 0, ANY))
    assert (bad.error_code, bad.error_message) == (ErrorCode.INVALID_REQUEST, "Unknown entryFilter.")


def _upsert(
    name: str, mechanism: int = 1, iterations: int = 4096
) -> m.AlterUserScramCredentialsRequest.ScramCredentialUpsertion:
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", b"salt", iterations)
    return Scram.ScramCredentialUpsertion(name, mechanism, iterations, b"salt", salted)


def scram(world: World, request: m.AlterUserScramCredentialsRequest) -> dict[str, tuple[ErrorCode, str | None]]:
    response = world.run(alter_user_scram_credentials(world.image, request, world.context))
    return {result.user: (ErrorCode(result.error_code), result.error_message) for result in response.results}


def test_the_keys_are_those_of_rfc_7677() -> None:
    """The example of RFC 7677 section 3: user "user", password "pencil", SCRAM-SHA-256."""
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", salt, 4096)
    world = World()
    scram(world, Scram(upsertions=[Scram.ScramCredentialUpsertion("user", 1, 4096, salt, salted)]))
    (credential,) = world.image.scram.values()
    auth = (
        b"n=user,r=rOprNGfwEbeRWgbNEkqO,"
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,"
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    )
    server_signature = hmac.digest(credential.server_key, auth, "sha256")
    assert base64.b64encode(server_signature) == b"6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    proof = base64.b64decode("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    signature = hmac.digest(credential.stored_key, auth, "sha256")
    client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
    assert hashlib.sha256(client_key).digest() == credential.stored_key


def test_credentials_come_and_go() -> None:
    world = World()
    assert scram(world, Scram(upsertions=[_upsert("ann"), _upsert("bob", 2, 8192)])) == {
        "ann": (ErrorCode.NONE, None),
        "bob": (ErrorCode.NONE, None),
    }
    scram(world, Scram(upsertions=[_upsert("ann", 2)]))
    everybody = describe_user_scram_credentials(world.image, m.DescribeUserScramCredentialsRequest(None))
    assert {r.user: [(i.mechanism, i.iterations) for i in r.credential_infos] for r in everybody.results} == {
        "ann": [(1, 4096), (2, 4096)],
        "bob": [(2, 8192)],
    }
    assert scram(world, Scram([Scram.ScramCredentialDeletion("ann", 1)])) == {"ann": (ErrorCode.NONE, None)}
    assert scram(world, Scram([Scram.ScramCredentialDeletion("ann", 1)])) == {
        "ann": (ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
    }
    users = [m.DescribeUserScramCredentialsRequest.UserName(name) for name in ("bob", "eve", "ann", "ann")]
    some = describe_user_scram_credentials(world.image, m.DescribeUserScramCredentialsRequest(users))
    assert {r.user: ErrorCode(r.error_code) for r in some.results} == {
        "bob": ErrorCode.NONE,
        "eve": ErrorCode.RESOURCE_NOT_FOUND,
        "ann": ErrorCode.DUPLICATE_RESOURCE,
    }


def test_credentials_that_are_refused() -> None:
    world = World()
    request = Scram(
        deletions=[Scram.ScramCredentialDeletion("twice", 1)],
        upsertions=[
            _upsert("twice"),
            _upsert(""),
            _upsert("weak", iterations=4095),
            _upsert("strong", iterations=16385),
            _upsert("odd", mechanism=7),
        ],
    )
    assert scram(world, request) == {
        "twice": (ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request"),
        "": (ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"),
        "weak": (ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations"),
        "strong": (ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations"),
        "odd": (ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
    }
    assert not world.image.scram


Quotas = m.AlterClientQuotasRequest


def limit(
    world: World, entity: dict[str, str | None], *ops: tuple[str, float | None], validate_only: bool = False
) -> tuple[ErrorCode, str | None]:
    parts = [Quotas.EntityData(kind, name) for kind, name in entity.items()]
    changes = [Quotas.OpData(key, value or 0.0, value is None) for key, value in ops]
    request = Quotas([Quotas.EntryData(parts, changes)], validate_only)
    (answer,) = world.run(alter_client_quotas(world.image, request, world.context)).entries
    assert [(part.entity_type, part.entity_name) for part in answer.entity] == list(entity.items())
    return ErrorCode(answer.error_code), answer.error_message


def test_quotas_are_set_changed_and_removed() -> None:
    world = World()
    ann = {"user": "ann", "client-id": None}
    assert limit(world, ann, ("producer_byte_rate", 100.0), ("request_percentage", 12.5)) == (ErrorCode.NONE, None)
    assert limit(world, ann, ("producer_byte_rate", 200.0), ("request_percentage", None)) == (ErrorCode.NONE, None)
    assert dict(world.image.quotas) == {(("client-id", None), ("user", "ann")): {"producer_byte_rate": 200.0}}
    written = world.offset
    limit(world, ann, ("producer_byte_rate", 200.0), ("consumer_byte_rate", None))
    assert world.offset == written
    assert limit(world, ann, ("producer_byte_rate", 1.0), validate_only=True) == (ErrorCode.NONE, None)
    assert limit(world, ann, ("producer_byte_rate", None)) == (ErrorCode.NONE, None)
    assert not world.image.quotas


@pytest.mark.parametrize(
    ("entity", "op", "message"),
    [
        ({}, ("producer_byte_rate", 1.0), "Invalid empty client quota entity"),
        ({"planet": "x"}, ("producer_byte_rate", 1.0), "Unhandled client quota entity type: planet"),
        ({"user": ""}, ("producer_byte_rate", 1.0), "Empty user not supported"),
        ({"user": "ann"}, ("connection_creation_rate", 1.0), "Invalid configuration key connection_creation_rate"),
        ({"user": "ann"}, ("producer_byte_rate", -1.0), "Quota producer_byte_rate must be greater than 0"),
        ({"user": "ann"}, ("request_percentage", math.nan), "Quota request_percentage must be greater than 0"),
        ({"user": "ann"}, ("producer_byte_rate", 1.5), "producer_byte_rate cannot be a fractional value."),
        (
            {"user": "ann"},
            ("producer_byte_rate", 1e19),
            "Proposed value for producer_byte_rate is too large for a LONG.",
        ),
        (
            {"ip": "10.0.0.1"},
            ("connection_creation_rate", 2.0**31),
            "Proposed value for connection_creation_rate is too large for an INT.",
        ),
        ({"ip": "no host"}, ("connection_creation_rate", 1.0), "no host is not a valid IP or resolvable host."),
        (
            {"ip": "10.0.0.1", "user": "ann"},
            ("connection_creation_rate", 1.0),
            "Invalid quota entity combination, IP entity should not be combined with User or ClientId",
        ),
    ],
)
def test_quotas_that_are_refused(entity: dict[str, str | None], op: tuple[str, float], message: str) -> None:
    world = World()
    assert limit(world, entity, op) == (ErrorCode.INVALID_REQUEST, message)
    assert not world.image.quotas


def test_an_entity_or_a_key_twice() -> None:
    world = World()
    code, message = limit(world, {"user": "ann"}, ("request_percentage", 1.0), ("request_percentage", 2.0))
    assert code == ErrorCode.INVALID_REQUEST
    assert message is not None
    assert message.startswith("Duplicate quota key request_percentage")
    entry = Quotas.EntryData([Quotas.EntityData("user", "ann")], [Quotas.OpData("request_percentage", 1.0, False)])
    response = world.run(alter_client_quotas(world.image, Quotas([entry, entry]), world.context))
    assert [answer.error_code for answer in response.entries] == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]


def quotas(
    world: World, *components: tuple[str, int, str | None], strict: bool = False
) -> set[tuple[tuple[str, str | None], ...]]:
    request = m.DescribeClientQuotasRequest(
        [m.DescribeClientQuotasRequest.ComponentData(*component) for component in components], strict
    )
    response = describe_client_quotas(world.image, request)
    assert response.error_code == ErrorCode.NONE, response.error_message
    assert response.entries is not None
    return {tuple((part.entity_type, part.entity_name) for part in entry.entity) for entry in response.entries}


def test_quotas_are_found_by_filter() -> None:
    world = World()
    rate = ("consumer_byte_rate", 1.0)
    entities: list[dict[str, str | None]] = [
        {"user": "ann"},
        {"user": None},
        {"user": "ann", "client-id": "x"},
        {"client-id": "x"},
    ]
    for entity in entities:
        limit(world, entity, rate)
    limit(world, {"ip": None}, ("connection_creation_rate", 5.0))
    exact, default, specified = 0, 1, 2
    ann, ann_x = (("user", "ann"),), (("client-id", "x"), ("user", "ann"))
    assert len(quotas(world)) == 5
    assert quotas(world, strict=True) == set()
    assert quotas(world, ("user", exact, "ann")) == {ann, ann_x}
    assert quotas(world, ("user", exact, "ann"), strict=True) == {ann}
    assert quotas(world, ("user", default, None)) == {(("user", None),)}
    assert quotas(world, ("user", specified, None)) == {ann, ann_x, (("user", None),)}
    assert quotas(world, ("user", exact, "ann"), ("client-id", specified, None)) == {ann_x}


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("", 0, "a")], ErrorCode.INVALID_REQUEST),
        ([("user", 0, "a"), ("user", 1, None)], ErrorCode.INVALID_REQUEST),
        ([("planet", 0, "a")], ErrorCode.UNSUPPORTED_VERSION),
        ([("user", 0, None)], ErrorCode.INVALID_REQUEST),
        ([("user", 1, "a")], ErrorCode.INVALID_REQUEST),
        ([("user", 2, "a")], ErrorCode.INVALID_REQUEST),
        ([("user", 9, None)], ErrorCode.INVALID_REQUEST),
        ([("user", 2, None), ("ip", 2, None)], ErrorCode.INVALID_REQUEST),
    ],
)
def test_filters_that_make_no_sense(components: list[tuple[str, int, str | None]], code: ErrorCode) -> None:
    made = [m.DescribeClientQuotasRequest.ComponentData(*component) for component in components]
    response = describe_client_quotas(World().image, m.DescribeClientQuotasRequest(made, False))
    assert response.error_code == code
    assert response.entries is None
