"""A broker that says what the test tells it to: one partition, t-0, and a list of answers to Fetch.

Everything else (versions, metadata, offsets, settings) is answered as a broker with one node would.
"""

import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from moldau.records import BatchOptions, build_batch
from moldau.seams.disk import FileRegion
from moldau.wire import ErrorCode, apis, encode
from moldau.wire.fetch import FetchedPartition, FetchFrame, decode_fetch_request, encode_fetch_response
from moldau.wire.headers import decode_request_header, encode_response_header, peek_api
from moldau.wire.messages import (
    ApiVersionsResponse,
    DescribeConfigsResponse,
    ListOffsetsResponse,
    MetadataResponse,
)

FETCH, LIST_OFFSETS, METADATA, API_VERSIONS, DESCRIBE_CONFIGS = 1, 2, 3, 18, 32
_VERSIONS = {FETCH: (4, 12), LIST_OFFSETS: (1, 7), METADATA: (0, 12), API_VERSIONS: (0, 3), DESCRIBE_CONFIGS: (1, 4)}
# What to say of the partition; an int throttles for as many milliseconds, saying nothing else, as Apache Kafka does.
Said = FetchedPartition | int


def records(first: int, last: int) -> bytes:
    rows = [(offset, 1_700_000_000_000, None, b"%d" % offset, ()) for offset in range(first, last + 1)]
    return bytes(build_batch(rows, BatchOptions(base_offset=first, leader_epoch=0)))


def said(*batches: bytes, reached: int, stable: int | None = None) -> FetchedPartition:
    return FetchedPartition(
        0,
        0,
        high_watermark=reached,
        last_stable_offset=reached if stable is None else stable,
        log_start_offset=0,
        records=[b"".join(batches)],
    )


class ScriptedPeer:
    """Answers in the order given; the last one, or the one that `otherwise` makes, for ever."""

    def __init__(
        self,
        *script: Said,
        otherwise: Callable[[FetchFrame], Said] | None = None,
        policy: str | ErrorCode = "delete",
        earliest: int = 0,
    ) -> None:
        self._script = list(script)
        self._otherwise = otherwise
        self._policy = policy
        self._earliest = earliest
        self.offsets: list[int] = []  # that were fetched
        self.bytes_max: list[int] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._connections: list[socket.socket] = []

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for each in (self._listener, *self._connections):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
            finally:
                each.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            thread = threading.Thread(target=self._serve, args=[connection], daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        stream = connection.makefile("rb")
        try:
            while size := stream.read(4):
                frame = stream.read(int.from_bytes(size, "big"))
                answer = self._answer(frame)
                connection.sendall(len(answer).to_bytes(4, "big") + answer)
        except OSError:
            return
        finally:
            stream.close()
            connection.close()

    def _answer(self, frame: bytes) -> bytes:
        key, version, correlation_id = peek_api(frame)
        api = apis()[key]
        _, position = decode_request_header(frame, flexible=api.request_header_version(version) == 2)
        head = encode_response_header(correlation_id, header_version=api.response_header_version(version))
        if key == FETCH:
            return head + self._fetched(decode_fetch_request(frame, position, version), version)
        return head + encode(self._other(key), version)

    def _fetched(self, request: FetchFrame, version: int) -> bytes:
        partition = request.topics[0][1][0]
        self.offsets.append(partition[2])
        self.bytes_max.append(partition[5])
        answer: Said
        if self._otherwise is not None and not self._script:
            answer = self._otherwise(request)
        else:
            answer = self._script.pop(0) if len(self._script) > 1 or self._otherwise else self._script[0]
        if isinstance(answer, int):
            parts = encode_fetch_response(version, [], throttle_time_ms=answer)
        else:
            parts = encode_fetch_response(version, [("t", [answer])])
        return b"".join(bytes(part) for part in parts if not isinstance(part, FileRegion))

    def _other(
        self, key: int
    ) -> ApiVersionsResponse | MetadataResponse | ListOffsetsResponse | DescribeConfigsResponse:
        if key == API_VERSIONS:
            return ApiVersionsResponse(
                api_keys=[
                    ApiVersionsResponse.ApiVersion(api_key=each, min_version=least, max_version=most)
                    for each, (least, most) in _VERSIONS.items()
                ]
            )
        if key == METADATA:
            partition = MetadataResponse.MetadataResponsePartition(partition_index=0, leader_id=1)
            return MetadataResponse(
                brokers=[MetadataResponse.MetadataResponseBroker(node_id=1, host="127.0.0.1", port=self.port)],
                topics=[MetadataResponse.MetadataResponseTopic(name="t", partitions=[partition])],
            )
        if key == LIST_OFFSETS:
            row = ListOffsetsResponse.ListOffsetsPartitionResponse(partition_index=0, offset=self._earliest)
            return ListOffsetsResponse(
                topics=[ListOffsetsResponse.ListOffsetsTopicResponse(name="t", partitions=[row])]
            )
        result = DescribeConfigsResponse.DescribeConfigsResult(resource_type=2, resource_name="t")
        if isinstance(self._policy, ErrorCode):
            result.error_code = self._policy
        else:
            config = DescribeConfigsResponse.DescribeConfigsResourceResult(name="cleanup.policy", value=self._policy)
            result.configs = [config]
        return DescribeConfigsResponse(results=[result])
