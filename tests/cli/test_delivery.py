"""What `moldau produce` says about records whose fate is not known: never more than is known, never less."""

from unittest.mock import patch

from moldau.cli.delivery import Delivery
from moldau.cli.outage import Outage
from moldau.cli.output import Output
from moldau.testing import Broker
from tests.cli.running import Command


def test_a_record_without_an_answer_is_not_called_undelivered(moldau: Command, broker: Broker) -> None:
    """It was written; only the answer was lost. Who sends it again has it twice."""
    moldau.ok("topic", "create", "doubtful", "-p", "1")
    moldau.ok("produce", "doubtful", stdin="first\n")
    hasty = ["-X", "message.timeout.ms=1500", "-X", "socket.timeout.ms=1000", "-X", "retries=0"]
    hasty += ["-X", "enable.idempotence=false"]
    broker.faults.disconnect("Produce", after=True)
    try:
        said = moldau.refused(1, "produce", "doubtful", *hasty, stdin="second\n")
    finally:
        broker.faults.clear()
    assert "0 records to doubtful\n" in said
    assert "1 of 1 records was not confirmed (" in said
    assert "sent, but it is not known what arrived" in said
    assert "not delivered" not in said
    assert moldau.ok("consume", "doubtful", "-a", "-e").lines == ["first", "second"]


def test_a_record_that_was_never_sent_is_called_so(moldau: Command, broker: Broker) -> None:
    moldau.ok("topic", "create", "leaderless", "-p", "1")
    broker.faults.fail("Metadata", "LEADER_NOT_AVAILABLE")
    try:
        said = moldau.refused(1, "produce", "leaderless", "-X", "message.timeout.ms=1000", stdin="a\nb\n")
    finally:
        broker.faults.clear()
    assert "2 of 2 records were not confirmed (Message timed out): never sent, so not delivered\n" in said
    assert moldau.ok("consume", "leaderless", "-a", "-e").lines == []


def test_of_some_records_it_is_known_that_they_were_never_sent() -> None:
    delivery = Delivery(Outage("here"), Output())
    delivery.sent, delivery.refused, delivery.unconfirmed = 10, 1, 5
    delivery.reason, delivery.doubt = "Message too large", "Message timed out"
    assert delivery.trouble().endswith("(Message timed out): some may have arrived all the same")
    delivery._on_statistics('{"txmsgs": 13}')
    assert delivery.trouble() == (
        "1 of 16 records were not delivered: Message too large; "
        "5 of 16 records were not confirmed (Message timed out): 3 never sent, so not delivered; "
        "2 sent, but it is not known what arrived; look before sending them again"
    )
    delivery._on_statistics('{"txmsgs": 40}')
    assert "(Message timed out): sent, but" in delivery.trouble()


def test_without_acknowledgements_nothing_is_promised(moldau: Command) -> None:
    moldau.ok("topic", "create", "unacknowledged", "-p", "1")
    said = moldau.ok("produce", "unacknowledged", "--acks", "0", stdin="a\n").err
    assert said == "1 record to unacknowledged (sent; with --acks 0 no broker confirms any)\n"


def test_a_commit_without_an_answer_is_not_called_aborted(moldau: Command, broker: Broker) -> None:
    moldau.ok("topic", "create", "committed", "-p", "1")
    with patch("moldau.cli.produce._COMMIT_SECONDS", 1.0):
        broker.faults.disconnect("EndTxn", after=True)
        try:
            said = moldau.refused(1, "produce", "committed", "--transactional-id", "doubt", stdin="a\n")
        finally:
            broker.faults.clear()
    assert "0 records to committed in 0 transactions\n" in said
    assert "whether it was, is not known" in said
    assert "aborted" not in said
