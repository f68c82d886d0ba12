"""A2, with a real process: a topic is deleted and made again, the node is killed, and the new one is all there."""

from pathlib import Path

from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewTopic

from tests.support.broker_process import BrokerProcess
from tests.support.clients import Sent, admin, read_all, send_confluent, wait_for


def test_a_topic_made_again_does_not_inherit_what_was_deleted(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        servers = broker.bootstrap_servers
        client = admin(servers)
        client.create_topics([NewTopic("again", 1)])["again"].result(20)
        send_confluent(servers, "again", [Sent(b"old %d" % number) for number in range(30)])
        (deleted,) = client.delete_records([TopicPartition("again", 0, 20)]).values()
        assert deleted.result(20).low_watermark == 20
        broker.stop()  # which writes the checkpoints
        broker.start()
        client = admin(servers)
        client.delete_topics(["again"])["again"].result(20)
        wait_for(lambda: "again" not in client.list_topics(timeout=20).topics, "the deletion")
        client.create_topics([NewTopic("again", 1)])["again"].result(20)
        send_confluent(servers, "again", [Sent(b"new %d" % number) for number in range(10)])
        broker.kill()
        broker.start()
        found = [message.value() for message in read_all(servers, "again", 1)]
        assert found == [b"new %d" % number for number in range(10)]
