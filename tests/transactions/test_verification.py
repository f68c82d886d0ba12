"""The partition leader's questions to the coordinator: gathered, superseded, and told in the client's
words."""

import pytest

from moldau.transactions.verification import (
    Operation,
    Question,
    TransactionVerifier,
    VerifierEffects,
    produce_error,
    produce_operation,
    txn_offset_commit_error,
    txn_offset_commit_operation,
)
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode
from tests.transactions.harness import partitions

_RESPONSE = m.AddPartitionsToTxnResponse
ADD, VERIFY, OLD = Operation.ADD_PARTITION, Operation.GENERIC_ERROR_SUPPORTED, Operation.DEFAULT_ERROR


def question(number: int, *names: str, tid: str = "a", epoch: int = 0, operation: Operation = ADD) -> Question:
    return Question(number, tid, 7, epoch, partitions(*names), operation)


def response(tid: str = "a", **codes: ErrorCode) -> m.AddPartitionsToTxnResponse:
    """t0=NONE stands for partition 0 of topic t."""
    topic = _RESPONSE.AddPartitionsToTxnTopicResult(
        name="t",
        results_by_partition=[
            _RESPONSE.AddPartitionsToTxnPartitionResult(partition_index=int(name[1:]), partition_error_code=code)
            for name, code in codes.items()
        ],
    )
    result = _RESPONSE.AddPartitionsToTxnResult(transactional_id=tid, topic_results=[topic])
    return m.AddPartitionsToTxnResponse(results_by_transaction=[result])


def verifier() -> TransactionVerifier:
    return TransactionVerifier()


def answers(effects: VerifierEffects) -> dict[int, dict[str, ErrorCode]]:
    return {
        answer.question_id: {f"{topic}-{number}": error for (topic, number), error in answer.errors.items()}
        for answer in effects.answers
    }


def test_asks_at_once_and_tells_the_answer() -> None:
    asking = verifier()
    effects = asking.ask(question(1, "t-0", "t-1", "u-3"), 4)
    (send,) = effects.sends
    assert send.node_id == 4
    (transaction,) = send.request.transactions
    assert (transaction.transactional_id, transaction.producer_id, transaction.producer_epoch) == ("a", 7, 0)
    assert not transaction.verify_only
    assert [(topic.name, topic.partitions) for topic in transaction.topics] == [("t", [0, 1]), ("u", [3])]
    effects = asking.on_response(4, response(t0=ErrorCode.NONE, t1=ErrorCode.INVALID_TXN_STATE))
    # The coordinator said nothing about u-3: that is not a yes.
    assert answers(effects) == {
        1: {"t-0": ErrorCode.NONE, "t-1": ErrorCode.INVALID_TXN_STATE, "u-3": ErrorCode.NETWORK_EXCEPTION}
    }
    assert not effects.sends


def test_questions_gather_while_one_request_is_under_way() -> None:
    asking = verifier()
    asking.ask(question(1, "t-0"), 4)
    assert not asking.ask(question(2, "t-1"), 4).sends
    assert not asking.ask(question(3, "t-2"), 4).sends
    assert not asking.ask(question(4, "t-0", tid="b", operation=VERIFY), 4).sends
    assert asking.ask(question(5, "t-0", tid="c"), 5).sends, "another coordinator has its own turn"
    effects = asking.on_response(4, response(t0=ErrorCode.NONE))
    (send,) = effects.sends
    assert [(t.transactional_id, t.verify_only) for t in send.request.transactions] == [("a", False), ("b", True)]
    assert send.request.transactions[0].topics[0].partitions == [1, 2]
    effects = asking.on_response(4, response(t1=ErrorCode.NONE, t2=ErrorCode.NONE))
    assert answers(effects) == {
        2: {"t-1": ErrorCode.NONE},
        3: {"t-2": ErrorCode.NONE},
        4: {"t-0": ErrorCode.NETWORK_EXCEPTION},
    }


def test_a_newer_epoch_supersedes_an_older_one() -> None:
    asking = verifier()
    asking.ask(question(1, "t-0", tid="x"), 4)
    asking.ask(question(2, "t-0", epoch=1), 4)
    assert answers(asking.ask(question(3, "t-0", epoch=2), 4)) == {2: {"t-0": ErrorCode.INVALID_PRODUCER_EPOCH}}
    assert answers(asking.ask(question(4, "t-0", epoch=1), 4)) == {4: {"t-0": ErrorCode.INVALID_PRODUCER_EPOCH}}
    superseded = asking.ask(question(5, "t-0", epoch=2, operation=VERIFY), 4)
    assert answers(superseded) == {3: {"t-0": ErrorCode.NETWORK_EXCEPTION}}
    (send,) = asking.on_failure(4).sends
    (transaction,) = send.request.transactions
    assert (transaction.producer_epoch, transaction.verify_only) == (2, True)


def test_nobody_is_left_without_an_answer_when_the_coordinator_is_gone() -> None:
    asking = verifier()
    assert answers(asking.ask(question(1, "t-0"), None)) == {1: {"t-0": ErrorCode.COORDINATOR_NOT_AVAILABLE}}
    asking.ask(question(2, "t-0"), 4)
    assert answers(asking.on_failure(4)) == {2: {"t-0": ErrorCode.NETWORK_EXCEPTION}}
    asking.ask(question(3, "t-0"), 4)
    refused = asking.on_response(4, m.AddPartitionsToTxnResponse(error_code=ErrorCode.NOT_COORDINATOR))
    assert answers(refused) == {3: {"t-0": ErrorCode.NOT_COORDINATOR}}
    asking.ask(question(4, "t-0"), 4)
    forbidden = m.AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    assert answers(asking.on_response(4, forbidden)) == {4: {"t-0": ErrorCode.INVALID_TXN_STATE}}
    asking.ask(question(5, "t-0"), 4)
    strange = m.AddPartitionsToTxnResponse(error_code=9_999)
    assert answers(asking.on_response(4, strange)) == {5: {"t-0": ErrorCode.UNKNOWN_SERVER_ERROR}}


@pytest.mark.parametrize(
    ("error", "operation", "told"),
    [
        (ErrorCode.PRODUCER_FENCED, ADD, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.PRODUCER_FENCED, OLD, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.TRANSACTION_ABORTABLE, ADD, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.TRANSACTION_ABORTABLE, VERIFY, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.TRANSACTION_ABORTABLE, OLD, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ADD, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_errors_in_the_words_of_the_client(error: ErrorCode, operation: Operation, told: ErrorCode) -> None:
    asking = verifier()
    asking.ask(question(1, "t-0", operation=operation), 4)
    assert answers(asking.on_response(4, response(t0=error))) == {1: {"t-0": told}}


@pytest.mark.parametrize(
    ("error", "operation", "told"),
    [
        (ErrorCode.NETWORK_EXCEPTION, ADD, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, VERIFY, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, OLD, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.NOT_COORDINATOR, ADD, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, VERIFY, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, OLD, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, ADD, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.INVALID_TXN_STATE, OLD, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.NONE, ADD, ErrorCode.NONE),
    ],
)
def test_errors_of_produce(error: ErrorCode, operation: Operation, told: ErrorCode) -> None:
    assert produce_error(error, operation) is told


def test_errors_of_txn_offset_commit() -> None:
    assert txn_offset_commit_error(ErrorCode.NETWORK_EXCEPTION) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert txn_offset_commit_error(ErrorCode.INVALID_TXN_STATE) is ErrorCode.INVALID_TXN_STATE


def test_versions() -> None:
    assert [produce_operation(version) for version in (3, 10, 11, 12, 13)] == [OLD, OLD, VERIFY, ADD, ADD]
    assert [txn_offset_commit_operation(version) for version in (0, 3, 4, 5)] == [OLD, OLD, VERIFY, ADD]
