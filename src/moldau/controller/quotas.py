"""AlterClientQuotas and DescribeClientQuotas: how much users, clients and addresses may use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from ipaddress import ip_address

from moldau.controller.context import ControllerContext, ControllerResult
from moldau.controller.errors import ApiError
from moldau.controller.image import ClusterImage, QuotaEntity
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode
from moldau.wire.message import Message

USER, CLIENT_ID, IP = "user", "client-id", "ip"
_EXACT, _DEFAULT, _SPECIFIED = 0, 1, 2
_INT_MAX, _LONG_MAX = (1 << 31) - 1, (1 << 63) - 1

# Quota -> the largest whole number it may be, and that number's name; None where fractions are fine.
_USER_QUOTAS: Mapping[str, tuple[int, str] | None] = {
    "producer_byte_rate": (_LONG_MAX, "a LONG"),
    "consumer_byte_rate": (_LONG_MAX, "a LONG"),
    "request_percentage": None,
    "controller_mutation_rate": None,
}
_IP_QUOTAS: Mapping[str, tuple[int, str] | None] = {"connection_creation_rate": (_INT_MAX, "an INT")}


def is_ip_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def alter_client_quotas(
    image: ClusterImage,
    request: m.AlterClientQuotasRequest,
    _context: ControllerContext,
    is_host: Callable[[str], bool] = is_ip_address,
) -> ControllerResult[m.AlterClientQuotasResponse]:
    """`is_host` says which names an IP quota may have: resolving host names is the caller's to allow."""
    response = m.AlterClientQuotasResponse()
    records: list[Message] = []
    seen: set[QuotaEntity] = set()
    for entry in request.entries:
        answer = m.AlterClientQuotasResponse.EntryData(
            error_message=None,
            entity=[
                m.AlterClientQuotasResponse.EntityData(part.entity_type, part.entity_name) for part in entry.entity
            ],
        )
        response.entries.append(answer)
        try:
            records += _quota_records(image, entry, seen, is_host)
        except ApiError as error:
            answer.error_code, answer.error_message = error.code, error.message
    return ControllerResult(response, [] if request.validate_only else records)


def _quota_records(
    image: ClusterImage,
    entry: m.AlterClientQuotasRequest.EntryData,
    seen: set[QuotaEntity],
    is_host: Callable[[str], bool],
) -> list[Message]:
    entity = _entity(entry.entity)
    if entity in seen:
        raise _invalid(f"Ignoring duplicate entity {_readable(entity)}")
    seen.add(entity)
    known = _known_quotas(dict(entity), is_host)
    current = image.quotas.get(entity, {})
    wanted: dict[str, float | None] = {}
    for op in entry.ops:
        if op.key in wanted:
            raise _invalid(f"Duplicate quota key {op.key} not updating quota for this entity {_readable(entity)}")
        wanted[op.key] = None if op.remove else op.value
    records: list[Message] = []
    for key, value in wanted.items():
        if value is not None:
            _check_value(known, key, value)
        if value != current.get(key):
            parts = [m.ClientQuotaRecord.EntityData(kind, name) for kind, name in entity]
            records.append(m.ClientQuotaRecord(parts, key, value or 0.0, value is None))
    return records


def _entity(parts: Iterable[m.AlterClientQuotasRequest.EntityData]) -> QuotaEntity:
    found: dict[str, str | None] = {}
    for part in parts:
        if part.entity_type in found:
            raise _invalid(f"Invalid client quota entity, duplicate entity entry {part.entity_type}")
        if part.entity_type not in (USER, CLIENT_ID, IP):
            raise _invalid(f"Unhandled client quota entity type: {part.entity_type}")
        if part.entity_name == "":
            raise _invalid(f"Empty {part.entity_type} not supported")
        found[part.entity_type] = part.entity_name
    if not found:
        raise _invalid("Invalid empty client quota entity")
    return tuple(sorted(found.items()))


def _known_quotas(
    entity: Mapping[str, str | None], is_host: Callable[[str], bool]
) -> Mapping[str, tuple[int, str] | None]:
    if IP not in entity:
        return _USER_QUOTAS
    if len(entity) > 1:
        raise _invalid("Invalid quota entity combination, IP entity should not be combined with User or ClientId")
    host = entity[IP]
    if host is not None and not is_host(host):
        raise _invalid(f"{host} is not a valid IP or resolvable host.")
    return _IP_QUOTAS


def _check_value(known: Mapping[str, tuple[int, str] | None], key: str, value: float) -> None:
    if key not in known:
        raise _invalid(f"Invalid configuration key {key}")
    # Written so that NaN, which no limit can be, is refused too.
    if not value > 0:
        raise _invalid(f"Quota {key} must be greater than 0")
    limit = known[key]
    if limit is None:
        return
    if value > limit[0]:
        raise _invalid(f"Proposed value for {key} is too large for {limit[1]}.")
    if value % 1 > 1e-6:
        raise _invalid(f"{key} cannot be a fractional value.")


def _readable(entity: QuotaEntity) -> str:
    return "ClientQuotaEntity(entries={" + ", ".join(f"{kind}={name}" for kind, name in entity) + "})"


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, message)


def describe_client_quotas(
    image: ClusterImage, request: m.DescribeClientQuotasRequest
) -> m.DescribeClientQuotasResponse:
    response = m.DescribeClientQuotasResponse(entries=[])
    try:
        wanted = _filter(request)
    except ApiError as error:
        response.error_code, response.error_message, response.entries = error.code, error.message, None
        return response
    found = []
    for entity, limits in image.quotas.items():
        if request.strict and len(entity) != len(wanted):
            continue
        parts = dict(entity)
        if all(kind in parts and (name is _ANY_NAME or parts[kind] == name) for kind, name in wanted.items()):
            found.append(
                m.DescribeClientQuotasResponse.EntryData(
                    [m.DescribeClientQuotasResponse.EntityData(kind, name) for kind, name in entity],
                    [m.DescribeClientQuotasResponse.ValueData(key, value) for key, value in limits.items()],
                )
            )
    response.entries = found
    return response


class _AnyName:
    """Stands for every name, in a filter."""


_ANY_NAME = _AnyName()


def _filter(request: m.DescribeClientQuotasRequest) -> dict[str, str | _AnyName | None]:
    wanted: dict[str, str | _AnyName | None] = {}
    for component in request.components:
        kind, match = component.entity_type, component.match
        if not kind:
            raise _invalid("Invalid empty entity type.")
        if kind in wanted:
            raise _invalid(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in (USER, CLIENT_ID, IP):
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        if component.match_type == _EXACT:
            if match is None:
                raise _invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
            wanted[kind] = match
        elif component.match_type in (_DEFAULT, _SPECIFIED):
            name = "DEFAULT" if component.match_type == _DEFAULT else "SPECIFIED"
            if match is not None:
                raise _invalid(f"Request specified MATCH_TYPE_{name}, but also specified a match string.")
            wanted[kind] = None if component.match_type == _DEFAULT else _ANY_NAME
        else:
            raise _invalid(f"Unknown match type {component.match_type}")
    if IP in wanted and len(wanted) > 1:
        raise _invalid(
            "Invalid entity filter component combination. IP filter component should not be used with user or clientId "
            "filter component."
        )
    return wanted
