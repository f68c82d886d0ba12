"""Group and transaction coordinators on this node: state machines with a log, timers and peers."""
