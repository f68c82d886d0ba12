"""Kafka's error codes: the number on the wire, its name, whether trying again can help, and what it means."""

from enum import IntEnum
from typing import Self

_FINAL, _RETRIABLE = False, True


class ErrorCode(IntEnum):
    """A member equals its number; `retriable` and `meaning` say the rest."""

    retriable: bool
    meaning: str

    def __new__(cls, code: int, retriable: bool = False, meaning: str = "") -> Self:
        member = int.__new__(cls, code)
        member._value_ = code
        member.retriable = retriable
        member.meaning = meaning
        return member

    @classmethod
    def _missing_(cls, value: object) -> "ErrorCode | None":
        """A peer may be newer than this table: as in Kafka, a code nobody knows is an unknown error, no exception."""
        return cls.UNKNOWN_SERVER_ERROR if isinstance(value, int) else None

    UNKNOWN_SERVER_ERROR = -1, _FINAL, "The server failed in a way it did not expect; its log says more."
    NONE = 0, _FINAL, "No error."
    OFFSET_OUT_OF_RANGE = 1, _FINAL, "The offset lies before the log start or past the log end."
    CORRUPT_MESSAGE = 2, _RETRIABLE, "The batch has a wrong checksum or size, or lacks the key a compacted topic needs."
    UNKNOWN_TOPIC_OR_PARTITION = 3, _RETRIABLE, "This broker does not know the topic or partition."
    INVALID_FETCH_SIZE = 4, _FINAL, "The fetch size is not valid."
    LEADER_NOT_AVAILABLE = 5, _RETRIABLE, "The partition has no leader right now."
    NOT_LEADER_OR_FOLLOWER = (
        6,
        _RETRIABLE,
        "This broker is not the leader (or not a replica) of the partition; refresh the metadata.",
    )
    REQUEST_TIMED_OUT = 7, _RETRIABLE, "The request did not finish within its timeout."
    BROKER_NOT_AVAILABLE = 8, _FINAL, "The broker is not available."
    REPLICA_NOT_AVAILABLE = 9, _RETRIABLE, "The replica is not available on this broker."
    MESSAGE_TOO_LARGE = 10, _FINAL, "The batch is larger than max.message.bytes of the topic."
    STALE_CONTROLLER_EPOCH = 11, _FINAL, "The controller has moved to another node."
    OFFSET_METADATA_TOO_LARGE = (
        12,
        _FINAL,
        "The metadata string of the commit is longer than offset.metadata.max.bytes.",
    )
    NETWORK_EXCEPTION = 13, _RETRIABLE, "The connection broke before the answer came."
    COORDINATOR_LOAD_IN_PROGRESS = 14, _RETRIABLE, "The coordinator is still reading its state; try again shortly."
    COORDINATOR_NOT_AVAILABLE = 15, _RETRIABLE, "No coordinator is available yet; try again shortly."
    NOT_COORDINATOR = 16, _RETRIABLE, "This broker is not the coordinator; look it up again."
    INVALID_TOPIC_EXCEPTION = 17, _FINAL, "The topic name is not valid, or the operation is not allowed on this topic."
    RECORD_LIST_TOO_LARGE = 18, _FINAL, "The batch is larger than a whole segment."
    NOT_ENOUGH_REPLICAS = (
        19,
        _RETRIABLE,
        "Fewer replicas are in sync than min.insync.replicas asks for; nothing was written.",
    )
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = (
        20,
        _RETRIABLE,
        "The batch was written, but to fewer in-sync replicas than min.insync.replicas.",
    )
    INVALID_REQUIRED_ACKS = 21, _FINAL, "acks must be 0, 1 or -1."
    ILLEGAL_GENERATION = 22, _FINAL, "The group has moved on to another generation."
    INCONSISTENT_GROUP_PROTOCOL = 23, _FINAL, "The member shares no assignor with the group, or offers none at all."
    INVALID_GROUP_ID = 24, _FINAL, "The group id is not valid."
    UNKNOWN_MEMBER_ID = 25, _FINAL, "The coordinator does not know this member."
    INVALID_SESSION_TIMEOUT = (
        26,
        _FINAL,
        "The session timeout is outside group.min.session.timeout.ms and group.max.session.timeout.ms.",
    )
    REBALANCE_IN_PROGRESS = 27, _FINAL, "The group is rebalancing; the member must join again."
    INVALID_COMMIT_OFFSET_SIZE = 28, _FINAL, "The committed data is too large to be stored."
    TOPIC_AUTHORIZATION_FAILED = 29, _FINAL, "Not allowed on this topic."
    GROUP_AUTHORIZATION_FAILED = 30, _FINAL, "Not allowed on this group."
    CLUSTER_AUTHORIZATION_FAILED = 31, _FINAL, "Not allowed on the cluster."
    INVALID_TIMESTAMP = 32, _FINAL, "A record's timestamp is too far from the broker's clock."
    UNSUPPORTED_SASL_MECHANISM = 33, _FINAL, "The broker does not offer this SASL mechanism."
    ILLEGAL_SASL_STATE = 34, _FINAL, "The request does not fit the state of the SASL exchange."
    UNSUPPORTED_VERSION = 35, _FINAL, "The broker does not speak this version of the API."
    TOPIC_ALREADY_EXISTS = 36, _FINAL, "A topic of this name exists already."
    INVALID_PARTITIONS = 37, _FINAL, "The number of partitions is not valid."
    INVALID_REPLICATION_FACTOR = (
        38,
        _FINAL,
        "The replication factor is below 1 or above the number of available brokers.",
    )
    INVALID_REPLICA_ASSIGNMENT = 39, _FINAL, "The replica assignment is not valid."
    INVALID_CONFIG = 40, _FINAL, "A configuration value is not valid."
    NOT_CONTROLLER = 41, _RETRIABLE, "This node is not the active controller."
    INVALID_REQUEST = 42, _FINAL, "The request makes no sense as it stands."
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, _FINAL, "The record format does not support the request."
    POLICY_VIOLATION = 44, _FINAL, "The request breaks a configured policy."
    OUT_OF_ORDER_SEQUENCE_NUMBER = (
        45,
        _FINAL,
        "The batch does not follow the last one of its producer: something in between is missing.",
    )
    DUPLICATE_SEQUENCE_NUMBER = 46, _FINAL, "The batch was written before, too long ago to say where."
    INVALID_PRODUCER_EPOCH = 47, _FINAL, "The producer uses an epoch older than the current one."
    INVALID_TXN_STATE = 48, _FINAL, "The transaction is in a state that does not allow this."
    INVALID_PRODUCER_ID_MAPPING = 49, _FINAL, "The producer id does not belong to this transactional id."
    INVALID_TRANSACTION_TIMEOUT = 50, _FINAL, "The transaction timeout is larger than transaction.max.timeout.ms."
    CONCURRENT_TRANSACTIONS = 51, _RETRIABLE, "Another operation on the same transaction is still under way."
    TRANSACTION_COORDINATOR_FENCED = 52, _FINAL, "The marker comes from a coordinator that is no longer in charge."
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, _FINAL, "Not allowed for this transactional id."
    SECURITY_DISABLED = 54, _FINAL, "Security features are switched off."
    OPERATION_NOT_ATTEMPTED = 55, _FINAL, "Another part of the request failed, so this one was not tried."
    KAFKA_STORAGE_ERROR = 56, _RETRIABLE, "The disk of this partition failed."
    LOG_DIR_NOT_FOUND = 57, _FINAL, "The broker has no such log directory."
    SASL_AUTHENTICATION_FAILED = 58, _FINAL, "Authentication failed."
    UNKNOWN_PRODUCER_ID = 59, _FINAL, "Nothing is known of this producer any more."
    REASSIGNMENT_IN_PROGRESS = 60, _FINAL, "The partition is being reassigned."
    DELEGATION_TOKEN_AUTH_DISABLED = 61, _FINAL, "Delegation tokens are not enabled."
    DELEGATION_TOKEN_NOT_FOUND = 62, _FINAL, "No such delegation token."
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, _FINAL, "The principal neither owns nor may renew the token."
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = (
        64,
        _FINAL,
        "Token requests need a mutually authenticated connection that does not itself use a token.",
    )
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, _FINAL, "Not allowed for this delegation token."
    DELEGATION_TOKEN_EXPIRED = 66, _FINAL, "The delegation token has expired."
    INVALID_PRINCIPAL_TYPE = 67, _FINAL, "This type of principal is not supported."
    NON_EMPTY_GROUP = 68, _FINAL, "The group still has members."
    GROUP_ID_NOT_FOUND = 69, _FINAL, "No such group."
    FETCH_SESSION_ID_NOT_FOUND = 70, _RETRIABLE, "The fetch session is gone; start a new one."
    INVALID_FETCH_SESSION_EPOCH = 71, _RETRIABLE, "The fetch session is at another epoch."
    LISTENER_NOT_FOUND = 72, _RETRIABLE, "The leader has no listener of the name this request came in on."
    TOPIC_DELETION_DISABLED = 73, _FINAL, "delete.topic.enable is false."
    FENCED_LEADER_EPOCH = 74, _RETRIABLE, "The client knows an older leader epoch; refresh the metadata."
    UNKNOWN_LEADER_EPOCH = 75, _RETRIABLE, "The client knows a newer leader epoch than this broker does."
    UNSUPPORTED_COMPRESSION_TYPE = 76, _FINAL, "The client cannot read the compression of this partition."
    STALE_BROKER_EPOCH = 77, _FINAL, "The broker has registered anew since."
    OFFSET_NOT_AVAILABLE = 78, _RETRIABLE, "The new leader has not yet caught up with the high watermark."
    MEMBER_ID_REQUIRED = 79, _FINAL, "Join again with the member id given in this answer."
    PREFERRED_LEADER_NOT_AVAILABLE = 80, _RETRIABLE, "The preferred leader is not available."
    GROUP_MAX_SIZE_REACHED = 81, _FINAL, "The group has group.max.size members already."
    FENCED_INSTANCE_ID = 82, _FINAL, "Another consumer has taken over this group.instance.id."
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, _RETRIABLE, "None of the eligible leaders is available."
    ELECTION_NOT_NEEDED = 84, _RETRIABLE, "The partition has the right leader already."
    NO_REASSIGNMENT_IN_PROGRESS = 85, _FINAL, "The partition is not being reassigned."
    GROUP_SUBSCRIBED_TO_TOPIC = 86, _FINAL, "The group reads this topic right now, so its offsets cannot be deleted."
    INVALID_RECORD = 87, _FINAL, "The broker found the record invalid."
    UNSTABLE_OFFSET_COMMIT = 88, _RETRIABLE, "A transaction that commits these offsets is still open."
    THROTTLING_QUOTA_EXCEEDED = 89, _RETRIABLE, "The quota is used up; try again later."
    PRODUCER_FENCED = 90, _FINAL, "A newer producer with the same transactional id has taken over."
    RESOURCE_NOT_FOUND = 91, _FINAL, "The resource does not exist."
    DUPLICATE_RESOURCE = 92, _FINAL, "The request names a resource twice."
    UNACCEPTABLE_CREDENTIAL = 93, _FINAL, "The credential does not meet the requirements."
    INCONSISTENT_VOTER_SET = 94, _FINAL, "Sender or receiver is not one of the voters."
    INVALID_UPDATE_VERSION = 95, _FINAL, "The version of the update is not valid."
    FEATURE_UPDATE_FAILED = 96, _FINAL, "The features could not be updated."
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, _FINAL, "The forwarded principal cannot be read."
    SNAPSHOT_NOT_FOUND = 98, _FINAL, "No such snapshot."
    POSITION_OUT_OF_RANGE = 99, _FINAL, "The position lies outside the snapshot."
    UNKNOWN_TOPIC_ID = 100, _RETRIABLE, "This broker does not know the topic id."
    DUPLICATE_BROKER_REGISTRATION = 101, _FINAL, "Another live broker has this id."
    BROKER_ID_NOT_REGISTERED = 102, _FINAL, "No broker is registered with this id."
    INCONSISTENT_TOPIC_ID = 103, _RETRIABLE, "The partition on disk belongs to another topic id."
    INCONSISTENT_CLUSTER_ID = 104, _FINAL, "The request is meant for another cluster."
    TRANSACTIONAL_ID_NOT_FOUND = 105, _FINAL, "No such transactional id."
    FETCH_SESSION_TOPIC_ID_ERROR = 106, _RETRIABLE, "The fetch session mixes topics with and without ids."
    INELIGIBLE_REPLICA = 107, _FINAL, "The new ISR names a replica that may not be in it."
    NEW_LEADER_ELECTED = 108, _FINAL, "The partition was changed, and has another leader now."
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, _FINAL, "The offset lies in tiered storage."
    FENCED_MEMBER_EPOCH = 110, _FINAL, "The member was fenced: it must give up its partitions and join again."
    UNRELEASED_INSTANCE_ID = 111, _FINAL, "Another member still uses this instance id."
    UNSUPPORTED_ASSIGNOR = 112, _FINAL, "The group does not support this assignor."
    STALE_MEMBER_EPOCH = 113, _FINAL, "The member must heartbeat for its current epoch and then try again."
    MISMATCHED_ENDPOINT_TYPE = (
        114,
        _FINAL,
        "The request went to a broker instead of a controller, or the other way round.",
    )
    UNSUPPORTED_ENDPOINT_TYPE = 115, _FINAL, "This type of endpoint is not supported."
    UNKNOWN_CONTROLLER_ID = 116, _FINAL, "No such controller."
    UNKNOWN_SUBSCRIPTION_ID = 117, _FINAL, "The telemetry subscription is unknown or out of date."
    TELEMETRY_TOO_LARGE = 118, _FINAL, "The telemetry is larger than telemetry.max.bytes."
    INVALID_REGISTRATION = 119, _FINAL, "The controller did not accept the broker's registration."
    TRANSACTION_ABORTABLE = 120, _FINAL, "The transaction cannot be committed; abort it and go on."
    INVALID_RECORD_STATE = 121, _FINAL, "The record is not in a state in which it can be acknowledged."
    SHARE_SESSION_NOT_FOUND = 122, _RETRIABLE, "The share session is gone."
    INVALID_SHARE_SESSION_EPOCH = 123, _RETRIABLE, "The share session is at another epoch."
    FENCED_STATE_EPOCH = 124, _FINAL, "The share group's state is at another epoch."
    INVALID_VOTER_KEY = 125, _FINAL, "The voter key is not the receiver's."
    DUPLICATE_VOTER = 126, _FINAL, "The voter is in the set already."
    VOTER_NOT_FOUND = 127, _FINAL, "The voter is not in the set."
    INVALID_REGULAR_EXPRESSION = 128, _FINAL, "The regular expression is not valid."
    REBOOTSTRAP_REQUIRED = 129, _FINAL, "The client's metadata is too old: it must bootstrap again."
    STREAMS_INVALID_TOPOLOGY = 130, _FINAL, "The topology is not valid."
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, _FINAL, "The topology epoch is not valid."
    STREAMS_TOPOLOGY_FENCED = 132, _FINAL, "The topology epoch is out of date."
    SHARE_SESSION_LIMIT_REACHED = 133, _RETRIABLE, "No more share sessions are allowed."
