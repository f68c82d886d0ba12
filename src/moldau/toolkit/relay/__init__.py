"""One process for what happens behind the applications: delayed messages, outboxes. `moldau relay` runs it."""

from moldau.toolkit.relay.supervisor import Part, Supervisor

__all__ = ["Part", "Supervisor"]
