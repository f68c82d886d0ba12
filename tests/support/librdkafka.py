"""librdkafka's own mock cluster: real Kafka frames from code we did not write, without a broker."""

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka.admin import AdminClient


@contextmanager
def mock_cluster() -> Iterator[tuple[str, int]]:
    """The address of a one-node mock cluster that lives as long as the context."""
    admin = AdminClient({"bootstrap.servers": "127.0.0.1:1", "test.mock.num.brokers": "1", "log_level": 0})
    brokers = admin.list_topics(timeout=20).brokers
    (broker,) = brokers.values()
    yield "127.0.0.1", broker.port
    del admin
