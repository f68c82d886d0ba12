"""What the active controller does unasked: fences brokers that fell silent, gives leaderships back.

- A broker that was not heard of for `broker.session.timeout.ms` is fenced, and its partitions get other leaders.
- Every `leader.imbalance.check.interval.seconds` leaderships return to preferred replicas that are in sync again.
- Leaderless partitions of topics that would rather lose records than wait get a leader.
- When nothing was written for `metadata.max.idle.interval.ms`, a record that says nothing shows that all is well.

The broker in this very process needs no heartbeat to be alive: while this runs, it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from moldau.broker.wake_up import WakeUp
from moldau.controller.brokers import fence_brokers
from moldau.controller.elections import ELECTIONS_PER_TICK_MAX, balance_leaders, elect_unclean_leaders
from moldau.wire import Message
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.parts import HasConfig, HasIdentity, HasTime
    from moldau.broker.quorum.parts import HasQuorum
    from moldau.controller.context import ControllerContext
    from moldau.controller.image import ClusterImage
    from moldau.controller.sessions import BrokerSessions

    class Needs(HasConfig, HasIdentity, HasTime, HasQuorum, Protocol):
        """What this file may touch."""

    class ActiveController(Protocol):
        """What of the `LocalController` its duties use."""

        sessions: BrokerSessions

        @property
        def is_active(self) -> bool: ...

        def decide(self, decide: Callable[[ClusterImage, ControllerContext], Sequence[Message]]) -> int: ...

        def append_unasked(self, records: Sequence[Message]) -> None: ...


_UNCLEAN_INTERVAL_MS = 300_000
_SOON_MS = 100  # when one round did not do all there is to do


class Duties:
    """Belongs to the event loop. Runs from `start` to `stop`, any number of times."""

    def __init__(self, broker: Needs, controller: ActiveController) -> None:
        self._broker = broker
        self._controller = controller
        self._expiry = WakeUp(broker.wheel, self._fence)
        self._balance = WakeUp(broker.wheel, self._balance_leaders)
        self._unclean = WakeUp(broker.wheel, self._elect_unclean)
        self._idle = WakeUp(broker.wheel, self._write_no_op)
        self._last_offset = -1

    def start(self) -> None:
        self._arm_expiry()
        self._balance.at(self._after(self._balance_interval_ms))
        self._unclean.at(self._after(_UNCLEAN_INTERVAL_MS))
        self._arm_idle()

    def stop(self) -> None:
        for each in (self._expiry, self._balance, self._unclean, self._idle):
            each.at(None)

    def on_command(self) -> None:
        """Something was committed: a broker may have come that must be watched."""
        if self._controller.is_active and not self._expiry.is_set:
            self._arm_expiry()

    def _after(self, delay_ms: float) -> float:
        return self._broker.clock.monotonic_ms() + delay_ms

    @property
    def _balance_interval_ms(self) -> float:
        return self._broker.config.get_int("leader.imbalance.check.interval.seconds") * 1000

    def _arm_expiry(self) -> None:
        check_ms = self._controller.sessions.next_check_ms()
        # Just after: a session is over when more than its time has passed.
        self._expiry.at(None if check_ms is None else check_ms + 1)

    def _fence(self) -> None:
        controller, broker = self._controller, self._broker
        if not controller.is_active:
            return
        sessions, now_ms = controller.sessions, broker.clock.monotonic_ms()
        sessions.touch(broker.node_id, broker.broker_epoch, now_ms)
        expired = sessions.expired(now_ms)
        controller.decide(partial(fence_brokers, broker_ids=expired))
        sessions.update(dict.fromkeys(expired))
        self._arm_expiry()

    def _balance_leaders(self) -> None:
        if not self._controller.is_active:
            return
        moved = 0
        if self._broker.config.get_bool("auto.leader.rebalance.enable"):
            moved = self._controller.decide(balance_leaders)
        self._balance.at(self._after(_SOON_MS if moved >= ELECTIONS_PER_TICK_MAX else self._balance_interval_ms))

    def _elect_unclean(self) -> None:
        if not self._controller.is_active:
            return
        elected = self._controller.decide(elect_unclean_leaders)
        self._unclean.at(self._after(_SOON_MS if elected >= ELECTIONS_PER_TICK_MAX else _UNCLEAN_INTERVAL_MS))

    def _arm_idle(self) -> None:
        interval_ms = self._broker.config.get_int("metadata.max.idle.interval.ms")
        self._idle.at(self._after(interval_ms) if interval_ms > 0 else None)

    def _write_no_op(self) -> None:
        if not self._controller.is_active:
            return
        next_offset = self._broker.metadata_log.next_offset
        if next_offset == self._last_offset:
            self._controller.append_unasked([m.NoOpRecord()])
            next_offset += 1
        self._last_offset = next_offset
        self._arm_idle()
