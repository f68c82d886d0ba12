"""Which operations each kind of resource has, and the bit field in which answers tell those that are allowed."""

from collections.abc import Iterable, Mapping

from moldau.controller.acls import AclResource, Operation

SUPPORTED: Mapping[int, tuple[int, ...]] = {
    AclResource.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DESCRIBE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    AclResource.GROUP: (
        Operation.READ,
        Operation.DESCRIBE,
        Operation.DELETE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    AclResource.CLUSTER: (
        Operation.CREATE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
        Operation.ALTER,
        Operation.DESCRIBE,
    ),
    AclResource.TRANSACTIONAL_ID: (Operation.DESCRIBE, Operation.WRITE, Operation.TWO_PHASE_COMMIT),
    AclResource.DELEGATION_TOKEN: (Operation.DESCRIBE,),
    AclResource.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}


def operation_bits(operations: Iterable[int]) -> int:
    """One bit per operation, at the place of its number."""
    bits = 0
    for operation in operations:
        bits |= 1 << operation
    return bits


ALL_OPERATIONS: Mapping[int, int] = {kind: operation_bits(operations) for kind, operations in SUPPORTED.items()}
"""By kind of resource, what everybody may do where there is no authorizer."""
