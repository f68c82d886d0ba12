"""Moldau inside a test: an in-process broker and its pytest fixture.

`Broker` runs on a thread of its own, `AsyncBroker` in your event loop; the `moldau_broker` fixture comes with the
package and needs no import.
"""

from moldau.testing.broker import AsyncBroker, Broker

__all__ = ["AsyncBroker", "Broker"]
