"""A controller with nobody around it: commands in, records committed at once, the image after each.

Every record goes through its bytes on the way, in the version the cluster's metadata.version asks for.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from moldau.controller.brokers import broker_heartbeat, fence_brokers, register_broker
from moldau.controller.context import ControllerContext, ControllerResult
from moldau.controller.errors import ApiError
from moldau.controller.feature_updates import activation_records
from moldau.controller.features import SUPPORTED, bootstrap_records, record_version
from moldau.controller.fold import apply
from moldau.controller.image import EMPTY_IMAGE, ClusterImage, ConfigResource, PartitionImage
from moldau.controller.sessions import BrokerSessions
from moldau.controller.topics import create_topics
from moldau.seams.randomness import SeededRandom
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode
from moldau.wire.internal import decode_metadata_record, encode_metadata_record
from moldau.wire.message import Message

R = TypeVar("R")
SESSION_TIMEOUT_MS = 9_000.0


class Rules:
    """Config rules simple enough for a test: one list, one number, one forbidden value."""

    def __init__(self, **static: str) -> None:
        self._static = {"min.insync.replicas": "1", "unclean.leader.election.enable": "false"}
        self._static |= {name.replace("_", "."): value for name, value in static.items()}

    def validate(self, resource: ConfigResource, proposed: Mapping[str, str], current: Mapping[str, str]) -> None:
        for name, value in proposed.items():
            if value == "impossible":
                raise ApiError(ErrorCode.INVALID_CONFIG, f"Invalid value impossible for configuration {name}")

    def is_list(self, resource_type: int, name: str) -> bool:
        return name == "cleanup.policy"

    def default(self, resource_type: int, name: str) -> str | None:
        return "delete" if name == "cleanup.policy" else None

    def static_topic_default(self, name: str) -> str:
        return self._static[name]

    def describe_topic(
        self, overrides: Mapping[str, str], image: ClusterImage
    ) -> list[m.CreateTopicsResponse.CreatableTopicConfigs]:
        return [m.CreateTopicsResponse.CreatableTopicConfigs(name, value) for name, value in overrides.items()]


class World:
    def __init__(self, *, seed: int = 1, features: Mapping[str, int] | None = None, **static: str) -> None:
        self.image = EMPTY_IMAGE
        self.offset = -1
        self.now_ms = 0.0
        self.sessions = BrokerSessions(SESSION_TIMEOUT_MS)
        self.base = ControllerContext(
            rules=Rules(**static), random=SeededRandom(seed), node_id=1000, cluster_id="a-cluster"
        )
        self.commit(activation_records(self.image, self.context, bootstrap_records(levels=features)))

    @property
    def context(self) -> ControllerContext:
        return replace(self.base, next_offset=self.offset + 1, now_ms=self.now_ms)

    def commit(self, records: Iterable[Message]) -> None:
        records = list(records)
        level = self.image.metadata_version
        written = [encode_metadata_record(record, record_version(record, level)) for record in records]
        read = [decode_metadata_record(value) for value in written]
        self.offset += len(records)
        after = apply(self.image, read, offset=self.offset, epoch=1)
        assert after == apply(self.image, records), "what is written must mean what was decided"
        self.image = after

    def run(self, result: ControllerResult[R]) -> R:
        self.commit(result.records)
        self.sessions.update(result.sessions)
        return result.response

    def registration(
        self, broker_id: int, *, rack: str | None = None, incarnation: int = 0, previous_epoch: int = -1
    ) -> m.BrokerRegistrationRequest:
        return m.BrokerRegistrationRequest(
            broker_id=broker_id,
            cluster_id="a-cluster",
            incarnation_id=bytes([broker_id % 256, incarnation]) + bytes(14),
            listeners=[m.BrokerRegistrationRequest.Listener("PLAINTEXT", "127.0.0.1", 9092 + broker_id, 0)],
            features=[m.BrokerRegistrationRequest.Feature(n, r.first, r.last) for n, r in SUPPORTED.items()],
            rack=rack,
            log_dirs=[b"d" * 14 + bytes([broker_id // 256, broker_id % 256])],
            previous_broker_epoch=previous_epoch,
        )

    def register(self, *broker_ids: int, rack: str | None = None) -> None:
        """Brokers that have registered and are unfenced."""
        for broker_id in broker_ids:
            request = self.registration(broker_id, rack=rack)
            answer = self.run(register_broker(self.image, request, self.context, self.sessions))
            assert answer.error_code == ErrorCode.NONE
            assert not self.heartbeat(broker_id).is_fenced

    def heartbeat(
        self,
        broker_id: int,
        *,
        offset: int | None = None,
        want_fence: bool = False,
        want_shut_down: bool = False,
        offline: list[bytes] | None = None,
        cordoned: list[bytes] | None = None,
    ) -> m.BrokerHeartbeatResponse:
        request = m.BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=self.image.brokers[broker_id].epoch,
            current_metadata_offset=self.offset if offset is None else offset,
            want_fence=want_fence,
            want_shut_down=want_shut_down,
            offline_log_dirs=offline or [],
            cordoned_log_dirs=cordoned,
        )
        return self.run(broker_heartbeat(self.image, request, self.context, self.sessions))

    def fence_stale(self) -> list[Message]:
        """What the active controller does about sessions that are over; not committed yet."""
        expired = self.sessions.expired(self.now_ms)
        records = fence_brokers(self.image, self.context, expired)
        self.sessions.update(dict.fromkeys(expired))
        return records

    def fence(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            assert self.heartbeat(broker_id, want_fence=True).is_fenced

    def create(
        self, name: str, partitions: int = 1, replicas: int = 1, **configs: str
    ) -> m.CreateTopicsResponse.CreatableTopicResult:
        topic = m.CreateTopicsRequest.CreatableTopic(
            name, partitions, replicas, configs=[_config(key, value) for key, value in configs.items()]
        )
        (result,) = self.run(create_topics(self.image, m.CreateTopicsRequest([topic]), self.context)).topics
        return result

    def create_assigned(self, name: str, *assignments: list[int], **configs: str) -> None:
        """A topic whose partitions have exactly these replicas."""
        topic = m.CreateTopicsRequest.CreatableTopic(
            name,
            -1,
            -1,
            [m.CreateTopicsRequest.CreatableReplicaAssignment(i, list(r)) for i, r in enumerate(assignments)],
            [_config(key, value) for key, value in configs.items()],
        )
        (result,) = self.run(create_topics(self.image, m.CreateTopicsRequest([topic]), self.context)).topics
        assert result.error_code == ErrorCode.NONE, result

    def partition(self, name: str, partition_id: int = 0) -> PartitionImage:
        partition = self.image.partition(name, partition_id)
        assert partition is not None
        return partition


def _config(key: str, value: str) -> m.CreateTopicsRequest.CreatableTopicConfig:
    return m.CreateTopicsRequest.CreatableTopicConfig(key.replace("_", "."), value)
