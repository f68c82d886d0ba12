"""What is not known after a change is not called undone, errors are one line, and the toolkit's end as documented."""

import pytest
from confluent_kafka import KafkaError

from moldau.cli.failure import ExitCode, explain, explain_code, in_doubt
from moldau.testing import Broker
from moldau.toolkit import dead_letters
from moldau.toolkit.errors import ClusterAway, SendFailed
from tests.cli.running import Command
from tests.support.clients import fresh

QUICK = ("-X", "request.timeout.ms=1000")
LOOK = "it may have been done all the same; look before trying again\n"


def test_a_change_whose_answer_is_lost_may_have_been_made(broker: Broker, moldau: Command) -> None:
    topic = fresh("lost")
    broker.faults.disconnect("CreateTopics", after=True)
    try:
        said = moldau.refused(3, "topic", "create", topic, *QUICK)
    finally:
        broker.faults.clear()
    assert said == f"moldau: no answer from {moldau.bootstrap_servers} any more: {LOOK}"
    assert topic in moldau.ok("topic", "list", "--format", "{name}").lines, "it was"
    broker.faults.disconnect("AlterClientQuotas", after=True)
    try:
        assert LOOK in moldau.refused(3, "quota", "set", "--user", "u", "--fetch", "1000")
        broker.faults.disconnect("DescribeClientQuotas")
        said = moldau.refused(3, "quota", "list")
    finally:
        broker.faults.clear()
    assert "no broker answers" in said, "who only asks has changed nothing"


def test_a_broker_that_is_still_at_it() -> None:
    late = explain_code(KafkaError(KafkaError.REQUEST_TIMED_OUT), "h:1")
    assert (late.code, in_doubt(late, "h:1").message.endswith(LOOK.strip())) == (ExitCode.FAILED, True)
    refused = explain_code(KafkaError(KafkaError.TOPIC_ALREADY_EXISTS), "h:1")
    assert in_doubt(refused, "h:1") == refused


@pytest.mark.parametrize("address", ["a\nb", "a\nb:1", "127.0.0.1:1,x\r\ny:2"])
def test_an_address_of_two_lines_is_told_in_one(moldau: Command, address: str) -> None:
    ended = moldau("topic", "list", "-b", address)
    assert (int(ended.code), ended.err.count("\n")) == (3, 1)


def test_an_argument_of_two_lines_is_told_in_one(moldau: Command) -> None:
    for arguments in (["topic", "li\nst"], ["--a\nb"], ["topic", "describe", "a\nb"], ["log", "verify", "a\nb"]):
        ended = moldau(*arguments)
        assert ended.code
        assert ended.err.count("\n") == 1, ended


def test_what_the_toolkit_says_ends_as_documented(moldau: Command) -> None:
    assert "there is no topic nothing-dlt" in moldau.refused(4, "dlq", "list", "nothing")
    assert "there is no topic nothing-dlt" in moldau.refused(4, "dlq", "redrive", "nothing", "--all")
    topic = fresh("dead")
    moldau.ok("topic", "create", f"{topic}-dlt")
    assert "has no letter 0:7" in moldau.refused(4, "dlq", "show", topic, "0:7")
    assert "no topic" in moldau.refused(4, "trace", "x", "--topic", "nothing")
    assert "names no database" in moldau.refused(2, "relay", "--outbox", "nonsense")
    moldau.refused(2, "relay", "--http", "127.0.0.1:99999")
    away = explain(ClusterAway("nobody"), "h:1")
    assert away is not None
    assert away.code == ExitCode.UNREACHABLE
    refused = SendFailed("no", is_retriable=False)
    explained = explain(refused, "h:1")
    assert explained is not None
    assert explained.code == ExitCode.FAILED


def test_nothing_is_sent_back_while_it_is_not_known_what_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise ClusterAway("nobody answers")

    monkeypatch.setattr(dead_letters, "read_topic", away)
    with pytest.raises(ClusterAway):
        dead_letters.redriven_ids({}, "t-dlt")
