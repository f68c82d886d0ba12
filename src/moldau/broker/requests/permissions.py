"""What each API asks of the authorizer, as Kafka's KafkaApis and ControllerApis do: one table, to be read beside them.

In the second column: what the request as a whole needs, with the field that names the resource; the cluster has but one
name. All of it, in that order; "or" where one of two is enough. Refused, the whole request is answered with the error
of the resource (`ERRORS`), by `access.answer`.

In the third column: which operations the handler asks about, on which kinds of resource, for each
thing the request names or the answer would tell. What is refused is answered in its place, or left out where Kafka
hides it. A handler can ask nothing that is not here.

An API without a row is open to everybody who may connect; `-` says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from moldau.controller.acls import CLUSTER_NAME, AclResource, Operation
from moldau.wire import ErrorCode

ERRORS: Mapping[int, ErrorCode] = {
    AclResource.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    AclResource.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    AclResource.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    AclResource.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    AclResource.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    AclResource.USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}

_TABLE = """
# records
Produce                      | -                        | WRITE TRANSACTIONAL_ID TOPIC
Fetch                        | -                        | READ TOPIC, CLUSTER_ACTION CLUSTER
ListOffsets                  | -                        | DESCRIBE TOPIC
OffsetForLeaderEpoch         | -                        | CLUSTER_ACTION CLUSTER, DESCRIBE TOPIC
DeleteRecords                | -                        | DELETE TOPIC
DescribeProducers            | -                        | READ TOPIC

# groups
FindCoordinator              | -                        | DESCRIBE GROUP TRANSACTIONAL_ID
JoinGroup                    | READ GROUP group_id      |
SyncGroup                    | -                        | READ GROUP
Heartbeat                    | READ GROUP group_id      |
LeaveGroup                   | READ GROUP group_id      |
ConsumerGroupHeartbeat       | READ GROUP group_id      | DESCRIBE TOPIC
OffsetCommit                 | READ GROUP group_id      | READ TOPIC
OffsetFetch                  | -                        | DESCRIBE GROUP TOPIC
OffsetDelete                 | DELETE GROUP group_id    | READ TOPIC
DescribeGroups               | -                        | DESCRIBE GROUP
ConsumerGroupDescribe        | -                        | DESCRIBE GROUP TOPIC
ListGroups                   | -                        | DESCRIBE CLUSTER GROUP
DeleteGroups                 | -                        | DELETE GROUP

# transactions
InitProducerId               | -                        | WRITE TRANSACTIONAL_ID TOPIC, IDEMPOTENT_WRITE CLUSTER
AddPartitionsToTxn           | -                        | CLUSTER_ACTION CLUSTER, WRITE TRANSACTIONAL_ID TOPIC
AddOffsetsToTxn              | WRITE TRANSACTIONAL_ID transactional_id, READ GROUP group_id |
EndTxn                       | WRITE TRANSACTIONAL_ID transactional_id |
TxnOffsetCommit              | WRITE TRANSACTIONAL_ID transactional_id, READ GROUP group_id | READ TOPIC
WriteTxnMarkers              | ALTER or CLUSTER_ACTION CLUSTER |
DescribeTransactions         | -                        | DESCRIBE TRANSACTIONAL_ID TOPIC
ListTransactions             | -                        | DESCRIBE TRANSACTIONAL_ID

# topics and their settings
Metadata                     | -                        | DESCRIBE TOPIC CLUSTER, CREATE CLUSTER TOPIC
DescribeTopicPartitions      | -                        | DESCRIBE TOPIC
CreateTopics                 | -                        | CREATE CLUSTER TOPIC, DESCRIBE_CONFIGS TOPIC
DeleteTopics                 | -                        | DELETE CLUSTER TOPIC, DESCRIBE TOPIC
CreatePartitions             | -                        | ALTER TOPIC
DescribeConfigs              | -                        | DESCRIBE_CONFIGS TOPIC GROUP CLUSTER
AlterConfigs                 | -                        | ALTER_CONFIGS TOPIC GROUP CLUSTER
IncrementalAlterConfigs      | -                        | ALTER_CONFIGS TOPIC GROUP CLUSTER
ListConfigResources          | DESCRIBE_CONFIGS CLUSTER |

# the cluster
DescribeCluster              | -                        | DESCRIBE CLUSTER, ALTER CLUSTER
DescribeLogDirs              | DESCRIBE CLUSTER         |
AlterReplicaLogDirs          | ALTER CLUSTER            |
AlterPartitionReassignments  | ALTER CLUSTER            |
ListPartitionReassignments   | DESCRIBE CLUSTER         |
ElectLeaders                 | ALTER CLUSTER            |
DescribeQuorum               | DESCRIBE CLUSTER         |
UpdateFeatures               | ALTER CLUSTER            |
UnregisterBroker             | ALTER CLUSTER            |
AddRaftVoter                 | ALTER CLUSTER            |
RemoveRaftVoter              | ALTER CLUSTER            |
DescribeClientQuotas         | DESCRIBE_CONFIGS CLUSTER |
AlterClientQuotas            | ALTER_CONFIGS CLUSTER    |
GetTelemetrySubscriptions    | -                        |
PushTelemetry                | -                        |

# who may do what
DescribeAcls                 | DESCRIBE CLUSTER         |
CreateAcls                   | ALTER CLUSTER            |
DeleteAcls                   | ALTER CLUSTER            |
DescribeUserScramCredentials | DESCRIBE CLUSTER         |
AlterUserScramCredentials    | ALTER CLUSTER            |
CreateDelegationToken        | -                        | CREATE_TOKENS USER
RenewDelegationToken         | -                        |
ExpireDelegationToken        | -                        |
DescribeDelegationToken      | -                        | DESCRIBE DELEGATION_TOKEN, DESCRIBE_TOKENS USER
ApiVersions                  | -                        |
SaslHandshake                | -                        |
SaslAuthenticate             | -                        |

# among nodes
Envelope                     | CLUSTER_ACTION CLUSTER   |
FetchSnapshot                | CLUSTER_ACTION CLUSTER   |
Vote                         | CLUSTER_ACTION CLUSTER   |
BeginQuorumEpoch             | CLUSTER_ACTION CLUSTER   |
EndQuorumEpoch               | CLUSTER_ACTION CLUSTER   |
UpdateRaftVoter              | CLUSTER_ACTION CLUSTER   |
BrokerRegistration           | CLUSTER_ACTION CLUSTER   |
BrokerHeartbeat              | CLUSTER_ACTION CLUSTER   |
ControllerRegistration       | CLUSTER_ACTION CLUSTER   |
AlterPartition               | CLUSTER_ACTION CLUSTER   |
AssignReplicasToDirs         | CLUSTER_ACTION CLUSTER   |
AllocateProducerIds          | CLUSTER_ACTION CLUSTER   |
"""


class Permission(NamedTuple):
    operation: int
    kind: int


@dataclass(slots=True, frozen=True)
class Whole:
    """One of these operations, on the resource that a field of the request names, or on the cluster."""

    operations: tuple[int, ...]
    kind: int
    field: str | None

    def name_in(self, request: object) -> str:
        return CLUSTER_NAME if self.field is None else getattr(request, self.field)


@dataclass(slots=True, frozen=True)
class Permissions:
    """Of one API."""

    whole: tuple[Whole, ...]
    each: frozenset[Permission]


@cache
def permissions() -> Mapping[str, Permissions]:
    """By API name."""
    return dict(_read(line) for line in _TABLE.splitlines() if line and not line.startswith("#"))


def _read(line: str) -> tuple[str, Permissions]:
    name, whole, each = (column.strip() for column in line.split("|"))
    needed = () if whole == "-" else tuple(_whole(part.split()) for part in whole.split(","))
    asked = (permission for part in each.split(",") if part for permission in _each(part.split()))
    return name, Permissions(needed, frozenset(asked))


def _whole(words: list[str]) -> Whole:
    operations = [words.pop(0)]
    while words[0] == "or":
        operations.append(words[1])
        del words[:2]
    kind = getattr(AclResource, words[0])
    return Whole(tuple(getattr(Operation, each) for each in operations), kind, words[1] if len(words) > 1 else None)


def _each(words: list[str]) -> list[Permission]:
    operation, *kinds = words
    return [Permission(getattr(Operation, operation), getattr(AclResource, kind)) for kind in kinds]
