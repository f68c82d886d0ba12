"""What the scenarios do not show: versions of requests, bounds, and what the broker must not do."""

import pytest

from moldau.transactions import (
    Effects,
    TransactionConfig,
    TransactionMetadata,
    TransactionState,
    TxnMarker,
    add_partitions_response,
    add_partitions_transactions,
    merge_lists,
)
from moldau.transactions.records import encode, encode_key
from moldau.wire import messages as m
from moldau.wire.codec import decode as decode_message
from moldau.wire.codec import encode as encode_message
from moldau.wire.errors import ErrorCode
from moldau.wire.message import Struct
from tests.transactions.harness import (
    NEW_CLIENT,
    OLD_CLIENT,
    WALL_START_MS,
    Broker,
    add,
    allocator,
    end,
    error_of,
    init,
    partitions,
)


@pytest.mark.parametrize(
    ("request_", "first_version_that_knows"),
    [
        (init(producer_id=0, epoch=0), 4),
        (add(0, 0, "t-0"), 2),
        (end(0, 0, committed=True), 2),
        (m.AddOffsetsToTxnRequest(transactional_id="a", producer_id=0, producer_epoch=0, group_id="g"), 2),
    ],
    ids=["init", "add", "end", "offsets"],
)
def test_old_versions_know_no_fenced_producer(
    request_: m.InitProducerIdRequest
    | m.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
    | m.EndTxnRequest
    | m.AddOffsetsToTxnRequest,
    first_version_that_knows: int,
) -> None:
    broker = Broker()
    broker.call(init(), 5)
    broker.call(init(), 5)
    before = broker.call(request_, first_version_that_knows - 1, 0)
    assert error_of(before) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert error_of(broker.call(request_, first_version_that_knows, 0)) is ErrorCode.PRODUCER_FENCED


def test_add_partitions_of_a_client_and_of_a_broker() -> None:
    topic = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="t", partitions=[0, 1])
    from_client = m.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="a",
        v3_and_below_producer_id=0,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=[topic],
    )
    from_broker = m.AddPartitionsToTxnRequest(transactions=[add(0, 0, "t-0"), add(1, 0, "t-1", transactional_id="b")])
    broker = Broker()
    broker.call(init("a"), 5)
    for version, request in ((3, from_client), (5, from_broker)):
        decoded = decode_message(m.AddPartitionsToTxnRequest, version, encode_message(request, version))
        transactions = add_partitions_transactions(decoded, version)
        results: list[Struct] = [broker.call(transaction, version) for transaction in transactions]
        response = add_partitions_response(
            [r for r in results if isinstance(r, m.AddPartitionsToTxnResponse.AddPartitionsToTxnResult)], version
        )
        again = decode_message(m.AddPartitionsToTxnResponse, version, encode_message(response, version))
        assert again == response
        if version == 3:
            (topic_result,) = again.results_by_topic_v3_and_below
            assert [(p.partition_index, p.partition_error_code) for p in topic_result.results_by_partition] == [
                (0, 0),
                (1, 0),
            ]
        else:
            assert [(r.transactional_id, error_of(r)) for r in again.results_by_transaction] == [
                ("a", ErrorCode.NONE),
                ("b", ErrorCode.INVALID_PRODUCER_ID_MAPPING),
            ]


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (init(""), ErrorCode.INVALID_REQUEST),
        (init(None), ErrorCode.INVALID_REQUEST),
        (init(producer_id=4), ErrorCode.INVALID_REQUEST),
        (init(epoch=4), ErrorCode.INVALID_REQUEST),
        (init(timeout_ms=-1), ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (init(timeout_ms=900_001), ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (
            m.InitProducerIdRequest(transactional_id="a", transaction_timeout_ms=1, keep_prepared_txn=True),
            ErrorCode.UNSUPPORTED_VERSION,
        ),
        (add(0, 0, "t-0", transactional_id=""), ErrorCode.INVALID_REQUEST),
        (add(0, 0, "t-0", transactional_id="", verify_only=True), ErrorCode.INVALID_REQUEST),
        (end(0, 0, committed=True, transactional_id=""), ErrorCode.INVALID_REQUEST),
        (m.AddOffsetsToTxnRequest(transactional_id=""), ErrorCode.INVALID_REQUEST),
    ],
)
def test_requests_that_make_no_sense(
    request_: m.InitProducerIdRequest
    | m.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
    | m.EndTxnRequest
    | m.AddOffsetsToTxnRequest,
    error: ErrorCode,
) -> None:
    broker = Broker()
    assert error_of(broker.call(request_, 4, 0)) is error
    assert not broker.shard.transactional_ids


@pytest.mark.parametrize("new_client", [False, True])
def test_markers_carry_what_the_partition_leaders_check(new_client: bool) -> None:
    versions = NEW_CLIENT if new_client else OLD_CLIENT
    broker = Broker()
    broker.call(init(), versions["init"])
    broker.call(add(0, 0, "t-1", "t-0", "s-4"), versions["add"])
    broker.call(end(0, 0, committed=False), versions["end"])
    (marker,) = broker.markers
    assert marker == TxnMarker(
        token=marker.token,
        transactional_id="a",
        producer_id=0,
        producer_epoch=1 if new_client else 0,
        coordinator_epoch=0,
        committed=False,
        transaction_version=2 if new_client else 0,
        partitions=tuple(sorted(partitions("s-4", "t-0", "t-1"))),
    )


def test_an_append_is_reported_once() -> None:
    broker = Broker()
    broker.send(init(), 5)
    (token,) = broker.appends
    broker.settle_append(token)
    with pytest.raises(AssertionError, match="reported twice"):
        broker.shard.on_append(token, ErrorCode.NONE, broker.now)


def test_a_resigned_shard_is_silent() -> None:
    broker = Broker()
    broker.call(init(), 5)
    broker.call(add(0, 0, "t-0"), 5)
    broker.call(end(0, 0, committed=True), 5)
    (marker,) = broker.markers
    request_id = broker.send(init("b"), 5)
    (token,) = broker.appends
    broker.take(broker.shard.resign())
    assert error_of(broker.response(request_id)) is ErrorCode.NOT_COORDINATOR
    assert broker.shard.next_deadline_ms is None
    for effects in (
        broker.shard.on_append(token, ErrorCode.NONE, broker.now),
        broker.shard.on_marker_results("a", marker.token, dict.fromkeys(marker.partitions, ErrorCode.NONE), broker.now),
        broker.shard.tick(broker.now),
    ):
        assert effects == Effects()
    assert error_of(broker.call(end(0, 0, committed=True), 5)) is ErrorCode.NOT_COORDINATOR
    listed = broker.shard.list_transactions(m.ListTransactionsRequest(), broker.now)
    assert listed.error_code == ErrorCode.NOT_COORDINATOR


def test_many_idle_ids_expire_in_bounded_steps() -> None:
    broker = Broker(TransactionConfig(transactional_id_expiration_ms=1_000, remove_expired_interval_ms=5_000))
    long_name = "x" * 200
    for number in range(12_000):
        metadata = TransactionMetadata(
            f"{long_name}-{number}", number, 0, 1_000, TransactionState.EMPTY, last_update_ms=WALL_START_MS
        )
        broker.log.append(encode(metadata, 2))
    broker.fail_over()
    broker.wait(4_999)
    assert not broker.appends
    broker.wait(1)
    assert sum(len(append.records) for append in broker.appends.values()) == 12_000
    assert all(sum(len(record.key) for record in a.records) <= 500_000 for a in broker.appends.values())
    per_tick = [sum(len(a.records) for a in effects.appends) for effects in broker.effects[-3:]]
    assert per_tick == [5_000, 5_000, 2_000]
    broker.append_all()
    assert not broker.shard.transactional_ids
    broker.fail_over()
    assert not broker.shard.transactional_ids


def test_ids_in_use_do_not_expire() -> None:
    broker = Broker(TransactionConfig(transactional_id_expiration_ms=1_000, remove_expired_interval_ms=500))
    broker.call(init("open", timeout_ms=900_000), 5)
    broker.call(add(0, 0, "t-0", transactional_id="open"), 5)
    broker.call(init("ending", timeout_ms=900_000), 5)
    broker.call(add(1, 0, "t-0", transactional_id="ending"), 5)
    broker.call(end(1, 0, committed=True, transactional_id="ending"), 5)
    broker.call(init("busy"), 5)
    broker.wait(999)
    broker.append_all()
    assert set(broker.shard.transactional_ids) == {"open", "ending", "busy"}
    broker.wait(10_000)
    broker.append_all()
    assert set(broker.shard.transactional_ids) == {"open", "ending"}


def test_lists_of_several_shards_become_one() -> None:
    state = m.ListTransactionsResponse.TransactionState
    first = m.ListTransactionsResponse(unknown_state_filters=["X"], transaction_states=[state(transactional_id="a")])
    second = m.ListTransactionsResponse(unknown_state_filters=["X"], transaction_states=[state(transactional_id="b")])
    asked = m.ListTransactionsRequest(state_filters=["X", "Ongoing"])
    merged = merge_lists(asked, [first, second])
    assert [listed.transactional_id for listed in merged.transaction_states] == ["a", "b"]
    assert merged.unknown_state_filters == ["X"]
    loading = m.ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert merge_lists(asked, [first, loading]) == loading
    assert merge_lists(asked, []) == m.ListTransactionsResponse(unknown_state_filters=["X"])


def test_a_feature_upgrade_changes_the_next_record() -> None:
    broker = Broker(transaction_version=0)
    broker.call(init(), 4)
    broker.shard.transaction_version = 2
    broker.call(init(), 4)
    assert [record.value[1] for record in broker.log if record.value is not None] == [0, 1]
    broker.fail_over()
    assert broker.shard.metadata("a") == TransactionMetadata(
        "a", 0, 1, 60_000, TransactionState.EMPTY, last_update_ms=WALL_START_MS, previous_producer_id=0
    )


def test_replay_skips_what_a_later_release_wrote() -> None:
    broker = Broker(producer_ids=allocator())
    broker.call(init(), 5)
    (record,) = broker.log
    broker.fail_over(is_load_finished=False)
    assert record.value is not None
    broker.shard.replay(b"\x00\x07" + record.key[2:], record.value)
    broker.shard.replay(encode_key("b"), b"\x00\x07" + record.value[2:])
    broker.shard.finish_load(broker.now)
    assert set(broker.shard.transactional_ids) == {"a"}
    assert len(broker.shard.unreadable) == 2


def test_one_record_that_makes_no_sense_is_skipped() -> None:
    broker = Broker()
    broker.call(init("b"), 5)
    broker.fail_over(is_load_finished=False)
    broker.shard.replay(encode_key("a"), b"\x00\x01nonsense")
    broker.shard.finish_load(broker.now)
    assert set(broker.shard.transactional_ids) == {"b"}
    (message,) = broker.shard.unreadable
    assert encode_key("a").hex() in message


def test_an_answer_that_comes_late_does_not_count_for_the_next_transaction() -> None:
    broker = Broker()
    broker.call(init(), 4)
    for _ in range(2):
        broker.call(add(0, 0, "t-0"), 3)
        broker.call(end(0, 0, committed=True), 4)
        if len(broker.markers) == 1:
            (first,) = broker.markers
            broker.mark(first)
            broker.append_all()
    second = broker.markers[1]
    assert (first.producer_id, first.producer_epoch) == (second.producer_id, second.producer_epoch)
    broker.mark(first)
    assert not broker.appends
    assert set(broker.shard.ending) == {"a"}
    broker.mark(second)
    broker.append_all()
    assert not broker.shard.ending
