"""A client that speaks the wire format and nothing else: one connection, one request at a time, decoded answers."""

import itertools
import socket
import struct
from collections.abc import Sequence
from typing import Any, Self, TypeVar

from moldau.records import build_batch
from moldau.wire import Message, apis, decode, encode
from moldau.wire import messages as m
from moldau.wire.headers import decode_response_header, encode_request_header

T = TypeVar("T", bound=Message)
_names = itertools.count()
FIRST_TIMESTAMP_MS = 1_700_000_000_000


class WireClient:
    def __init__(self, bootstrap: str, client_id: str = "wire-client", *, host: str | None = None) -> None:
        """`host` is an address of this machine to come from."""
        broker_host, _, port = bootstrap.rpartition(":")
        self._socket = socket.create_connection(
            (broker_host, int(port)), 20, source_address=None if host is None else (host, 0)
        )
        self._client_id = client_id
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def ask(self, request: Message, version: int | None = None) -> Any:
        """In the given version, or the newest stable one."""
        api = apis()[type(request).number]
        if version is None:
            version = api.versions.last
        self._correlation_id += 1
        frame = encode_request_header(api, version, self._correlation_id, self._client_id) + encode(request, version)
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)
        (size,) = struct.unpack(">i", self._receive(4))
        answer = self._receive(size)
        correlation_id, position = decode_response_header(answer, header_version=api.response_header_version(version))
        assert correlation_id == self._correlation_id
        return decode(api.response, version, answer[position:])

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            if not part:
                raise ConnectionError("the broker closed the connection")
            data += part
        return data

    def new_topic(self, partitions: int = 1, name: str | None = None, **configs: str) -> str:
        """Created under a name nobody else uses, with settings like `retention_ms="1"`."""
        kind = m.CreateTopicsRequest
        name = name or f"topic-{next(_names)}"
        settings = [kind.CreatableTopicConfig(key.replace("_", "."), value) for key, value in configs.items()]
        topic = kind.CreatableTopic(name, partitions, 1, configs=settings)
        answer = self.ask(kind(topics=[topic], timeout_ms=10_000))
        assert answer.topics[0].error_code == 0, answer
        return name

    def produce(
        self, topic: str, values: Sequence[bytes], *, partition: int = 0, first_timestamp_ms: int = FIRST_TIMESTAMP_MS
    ) -> Any:
        """One batch, records a millisecond apart. The partition's answer."""
        records = [(number, first_timestamp_ms + number, None, value, ()) for number, value in enumerate(values)]
        return self.produce_batch(topic, bytes(build_batch(records)), partition=partition)

    def produce_batch(
        self, topic: str, batch: bytes, *, partition: int = 0, transactional_id: str | None = None
    ) -> Any:
        kind = m.ProduceRequest
        data = kind.TopicProduceData(
            name=topic, partition_data=[kind.PartitionProduceData(index=partition, records=batch)]
        )
        request = kind(transactional_id=transactional_id, acks=-1, timeout_ms=5_000, topic_data=[data])
        return self.ask(request, 12).responses[0].partition_responses[0]

    def describe(self, resource_type: int, name: str, *keys: str) -> dict[str, Any]:
        """The configs of one resource, by name."""
        kind = m.DescribeConfigsRequest
        resource = kind.DescribeConfigsResource(resource_type, name, list(keys) or None)
        result = self.ask(kind(resources=[resource], include_synonyms=True)).results[0]
        assert result.error_code == 0, result
        return {config.name: config for config in result.configs}

    def alter(
        self, resource_type: int, name: str, *changes: tuple[str, int, str | None], validate_only: bool = False
    ) -> Any:
        """IncrementalAlterConfigs with (key, operation, value); the resource's answer."""
        kind = m.IncrementalAlterConfigsRequest
        configs = [kind.AlterableConfig(key, operation, value) for key, operation, value in changes]
        resource = kind.AlterConfigsResource(resource_type, name, configs)
        return self.ask(kind([resource], validate_only)).responses[0]

    def latest(self, topic: str, partition: int = 0, timestamp: int = -1) -> Any:
        """ListOffsets of one partition; its answer."""
        kind = m.ListOffsetsRequest
        wanted = kind.ListOffsetsPartition(partition, -1, timestamp)
        request = kind(replica_id=-1, topics=[kind.ListOffsetsTopic(topic, [wanted])])
        return self.ask(request).topics[0].partitions[0]
