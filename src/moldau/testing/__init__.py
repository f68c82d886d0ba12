"""Moldau inside a test: an in-process broker or cluster, and the broker's pytest fixture.

`Broker` runs on a thread of its own, `AsyncBroker` in your event loop; the `moldau_broker` fixture comes with the
package and needs no import.
"""

from moldau.testing.broker import AsyncBroker, Broker
from moldau.testing.cluster import AsyncCluster, Cluster
from moldau.testing.security import Security

__all__ = ["AsyncBroker", "AsyncCluster", "Broker", "Cluster", "Security"]
