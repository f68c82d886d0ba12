"""AlterUserScramCredentials and DescribeUserScramCredentials (KIP-554).

The client sends the salted password; what is kept are the keys derived from it (RFC 5802), from which it cannot be had
back. A user with any mistake in the request is left alone altogether.

Who asks for a user that does not exist is shown a salt all the same (`security/scram_users.py`). What these salts are
made of must be secret, the same on every node, and stay when users come and go: the first change of users writes it
down, as a setting of a resource that no API names. Apache Kafka keeps such a record, and makes nothing of it.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from moldau.controller.context import ControllerContext, ControllerResult
from moldau.controller.errors import ApiError
from moldau.controller.image import ClusterImage, ConfigResource, ScramKey
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode
from moldau.wire.message import Message

_Change: TypeAlias = (
    "m.AlterUserScramCredentialsRequest.ScramCredentialDeletion"
    " | m.AlterUserScramCredentialsRequest.ScramCredentialUpsertion"
)
SCRAM_SHA_256, SCRAM_SHA_512 = 1, 2
HASHES: Mapping[int, str] = {SCRAM_SHA_256: "sha256", SCRAM_SHA_512: "sha512"}
ITERATIONS_MIN, ITERATIONS_MAX = 4096, 16384
_DECOYS = ConfigResource(0, "moldau")
_DECOY_SEED = "scram.decoy.seed"


def alter_user_scram_credentials(
    image: ClusterImage, request: m.AlterUserScramCredentialsRequest, _context: ControllerContext
) -> ControllerResult[m.AlterUserScramCredentialsResponse]:
    response = m.AlterUserScramCredentialsResponse()
    records: list[Message] = []
    changes: list[_Change] = [*request.deletions, *request.upsertions]
    mentions = Counter(change.name for change in changes)
    answered: set[str] = set()
    for change in changes:
        if change.name in answered:
            continue
        answered.add(change.name)
        result = m.AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult(change.name, 0, None)
        response.results.append(result)
        try:
            _check(image, change, mentions[change.name])
        except ApiError as error:
            result.error_code, result.error_message = error.code, error.message
            continue
        records.append(_record(change))
    if records and _DECOY_SEED not in image.config(*_DECOYS):
        secret = decoy_secret(image)
        if secret is None:
            made = (each for each in records if isinstance(each, m.UserScramCredentialRecord))
            secret = next((_secret_from(each.server_key) for each in made), None)
        if secret is not None:
            records.insert(0, m.ConfigRecord(*_DECOYS, _DECOY_SEED, secret.hex()))
    return ControllerResult(response, records)


def decoy_secret(image: ClusterImage) -> bytes | None:
    """What the salts of users that do not exist are made of. Before it is written down, and in a cluster whose
    controllers are Apache Kafka's, the first user's key stands for it; None if there is none."""
    written = image.config(*_DECOYS).get(_DECOY_SEED)
    if written is not None:
        return bytes.fromhex(written)
    first = min(image.scram, default=None)
    return None if first is None else _secret_from(image.scram[first].server_key)


def _secret_from(server_key: bytes) -> bytes:
    return hmac.digest(server_key, b"salts of users that do not exist", "sha256")


def _check(image: ClusterImage, change: _Change, mentions: int) -> None:
    if mentions > 1:
        raise ApiError(ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request")
    if not change.name:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if change.mechanism not in HASHES:
        raise ApiError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if isinstance(change, m.AlterUserScramCredentialsRequest.ScramCredentialDeletion):
        if ScramKey(change.name, change.mechanism) not in image.scram:
            raise ApiError(ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
    elif change.iterations < ITERATIONS_MIN:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    elif change.iterations > ITERATIONS_MAX:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")


def _record(change: _Change) -> Message:
    if isinstance(change, m.AlterUserScramCredentialsRequest.ScramCredentialDeletion):
        return m.RemoveUserScramCredentialRecord(change.name, change.mechanism)
    stored_key, server_key = derived_keys(change.mechanism, change.salted_password)
    return m.UserScramCredentialRecord(
        change.name, change.mechanism, change.salt, stored_key, server_key, change.iterations
    )


def derived_keys(mechanism: int, salted_password: bytes) -> tuple[bytes, bytes]:
    """(stored key, server key), RFC 5802 section 3."""
    name = HASHES[mechanism]
    client_key = hmac.digest(salted_password, b"Client Key", name)
    server_key = hmac.digest(salted_password, b"Server Key", name)
    return hashlib.new(name, client_key).digest(), server_key


def describe_user_scram_credentials(
    image: ClusterImage, request: m.DescribeUserScramCredentialsRequest
) -> m.DescribeUserScramCredentialsResponse:
    """Without users: all of them."""
    asked: Iterable[str] = [user.name for user in request.users or []] or [key.user for key in image.scram]
    mentions = Counter(user.name for user in request.users or [])
    by_user: dict[str, list[m.DescribeUserScramCredentialsResponse.CredentialInfo]] = {}
    for key, credential in image.scram.items():
        info = m.DescribeUserScramCredentialsResponse.CredentialInfo(key.mechanism, credential.iterations)
        by_user.setdefault(key.user, []).append(info)
    response = m.DescribeUserScramCredentialsResponse()
    for user in dict.fromkeys(asked):
        result = m.DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult(user)
        if mentions[user] > 1:
            result.error_code = ErrorCode.DUPLICATE_RESOURCE
            result.error_message = (
                f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
            )
        elif user not in by_user:
            result.error_code = ErrorCode.RESOURCE_NOT_FOUND
            result.error_message = f"Attempt to describe a user credential that does not exist: {user}"
        else:
            result.credential_infos = sorted(by_user[user], key=lambda info: info.mechanism)
        response.results.append(result)
    return response
