"""The transaction of a producer over the protocol: lost answers, coordinators that are busy, and other owners."""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from moldau.client.cluster import Cluster, Committed
from moldau.client.connection import BrokerError, ClientError, Connection, Disconnected
from moldau.client.settings import parse_client_settings
from moldau.client.transactions import Transaction, TransactionOver
from moldau.spark import sink
from moldau.spark.sink import write_exactly_once
from moldau.spark.sink_options import sink_options
from moldau.wire import ErrorCode, Message
from moldau.wire.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from tests.support.clients import create_topic, fresh, read_all

STEPS: tuple[type[Message], ...] = (
    FindCoordinatorRequest,
    InitProducerIdRequest,
    AddPartitionsToTxnRequest,
    ProduceRequest,
    AddOffsetsToTxnRequest,
    TxnOffsetCommitRequest,
    EndTxnRequest,
)


class Patience:
    """Of so many failures."""

    def __init__(self, failures: int = 1_000) -> None:
        self._left = failures
        self.said: list[ClientError] = []

    def is_over(self) -> bool:
        self._left -= 1
        return self._left < 0

    def say(self, error: ClientError) -> None:
        self.said.append(error)


@pytest.fixture
def cluster(bootstrap: str) -> Iterator[Cluster]:
    with Cluster(parse_client_settings({"bootstrap.servers": bootstrap})) as found:
        yield found


def rows(*values: str) -> Iterator[Any]:
    return iter([pa.record_batch({"key": pa.array([value]), "value": pa.array([value])}) for value in values])


@pytest.mark.parametrize("step", STEPS)
def test_a_lost_answer_of_any_step_is_asked_for_again_and_doubles_nothing(
    bootstrap: str, step: type[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, query = create_topic(bootstrap, partitions=1), fresh("query")
    monkeypatch.delattr(sink, "RowWriting")  # librdkafka has no part in it
    receive = Connection.receive
    lost: list[Any] = []

    def loses_two(self: Connection, api: Any, version: int) -> Any:
        answer = receive(self, api, version)
        if api.key == step.number and len(lost) < 2:
            lost.append(answer)
            self.close()
            raise Disconnected("lost")
        return answer

    options = sink_options({"kafka.bootstrap.servers": bootstrap, "delivery": "exactly-once", "topic": topic})
    with monkeypatch.context() as patch:
        patch.setattr(Connection, "receive", loses_two)
        assert write_exactly_once(options, query, 0, 0, rows("a", "b")).rows == 2
    assert len(lost) == 2
    assert write_exactly_once(options, query, 0, 0, rows("a", "b")).repeated
    assert write_exactly_once(options, query, 1, 0, rows("c")).rows == 1
    assert [message.value() for message in read_all(bootstrap, topic)] == [b"a", b"b", b"c"]


def answering(answers: dict[type[Message], Callable[[], Message]], patch: pytest.MonkeyPatch, times: int = 1) -> None:
    """The next answers to these requests are made up."""
    call, left = Connection.call, dict.fromkeys(answers, times)

    def made_up(self: Connection, request: Message, answer: type[Message], most: int | None = None) -> Message:
        kind = type(request)
        if left.get(kind, 0) > 0:
            left[kind] -= 1
            return answers[kind]()
        return call(self, request, answer, most)

    patch.setattr(Connection, "call", made_up)


def test_a_coordinator_that_moves_or_is_busy_is_asked_again(
    cluster: Cluster, bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, group, patience = create_topic(bootstrap, partitions=1), fresh("group"), Patience()
    busy = AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(
        partition_index=0, partition_error_code=ErrorCode.CONCURRENT_TRANSACTIONS
    )
    loading = TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(
        partition_index=0, error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    )
    answers: dict[type[Message], Callable[[], Message]] = {
        FindCoordinatorRequest: lambda: FindCoordinatorResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE),
        InitProducerIdRequest: lambda: InitProducerIdResponse(error_code=ErrorCode.NOT_COORDINATOR),
        AddPartitionsToTxnRequest: lambda: AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=[
                AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(name=topic, results_by_partition=[busy])
            ]
        ),
        TxnOffsetCommitRequest: lambda: TxnOffsetCommitResponse(
            topics=[TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(name=topic, partitions=[loading])]
        ),
        EndTxnRequest: lambda: EndTxnResponse(error_code=ErrorCode.CONCURRENT_TRANSACTIONS),
    }
    answering(answers, monkeypatch, times=2)
    transaction = Transaction(cluster, fresh("id"), lambda: patience)
    transaction.fence(60_000)
    transaction.add([(topic, 0)])
    transaction.note(group, {(topic, 0): Committed(7, "told")})
    assert cluster.committed(group, stable=False) == {}
    transaction.end(commit=True)
    assert cluster.committed(group) == {(topic, 0): Committed(7, "told")}
    assert not patience.said, "that is no outage"


def test_an_abort_leaves_nothing(cluster: Cluster, bootstrap: str) -> None:
    topic, group = create_topic(bootstrap, partitions=1), fresh("group")
    transaction = Transaction(cluster, fresh("id"), Patience)
    transaction.fence(60_000)
    transaction.note(group, {(topic, 0): Committed(7, "")})
    transaction.end(commit=False)
    assert cluster.committed(group) == {}


def test_the_former_producer_of_an_id_can_do_nothing_more(cluster: Cluster, bootstrap: str) -> None:
    topic, name = create_topic(bootstrap, partitions=2), fresh("id")
    former, present = (Transaction(cluster, name, Patience) for _ in range(2))
    former.fence(60_000)
    former.add([(topic, 0)])
    present.fence(60_000)
    with pytest.raises(TransactionOver, match=name):
        former.add([(topic, 1)])
    with pytest.raises(TransactionOver, match=name):
        former.note("group", {(topic, 0): Committed(1, "")})
    with pytest.raises(TransactionOver, match=name):
        former.end(commit=True)


def test_what_no_time_cures_is_told_at_once_and_the_rest_when_patience_ends(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BrokerError, match="INVALID_TRANSACTION_TIMEOUT"):
        Transaction(cluster, fresh("id"), Patience).fence(90_000_000)
    patience = Patience(12)
    monkeypatch.setattr("moldau.client.transactions._PAUSE_MAX_SECONDS", 0.001)
    answering(
        {InitProducerIdRequest: lambda: InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)},
        monkeypatch,
        times=100,
    )
    with pytest.raises(BrokerError, match="COORDINATOR_LOAD_IN_PROGRESS"):
        Transaction(cluster, fresh("id"), lambda: patience).fence(60_000)
    assert patience.said, "people hear what is waited for"
