"""Moldau inside a test: an in-process broker or cluster, what can go wrong with them, and pytest fixtures.

`Broker` and `Cluster` run on a thread of their own, `AsyncBroker` and `AsyncCluster` in your event loop; the fixtures
(`moldau_broker` and more, see `pytest_plugin`) come with the package and need no import.
"""

from moldau.testing.broker import AsyncBroker, Broker
from moldau.testing.cluster import AsyncCluster, Cluster
from moldau.testing.faults import Faults
from moldau.testing.records import Received
from moldau.testing.security import Security
from moldau.testing.topics import Topic

__all__ = ["AsyncBroker", "AsyncCluster", "Broker", "Cluster", "Faults", "Received", "Security", "Topic"]
