"""This broker's life as the controller sees it: registered, unfenced once it has caught up, alive while it calls, and
shut down in an orderly way. All with the RPCs Kafka's brokers use, also where the controller is in the same process.

Invariant: clients are served only after the image itself shows this incarnation of the broker, unfenced.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from moldau.broker.config import Endpoint
from moldau.broker.supervision import keep_going
from moldau.controller.features import CORDONED_LOG_DIRS_FROM, SUPPORTED
from moldau.controller.image import BrokerRegistration, ClusterImage
from moldau.log.errors import StorageError
from moldau.seams.network import RequestTimedOut
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.controller.parts import HasControllerChannel
    from moldau.broker.parts import HasConfig, HasImage, HasLogs, HasLoop, HasRandom, HasTime
    from moldau.log.dirs.log_manager import LogManager

    class Needs(HasConfig, HasControllerChannel, HasImage, HasLogs, HasLoop, HasRandom, HasTime, Protocol):
        """What this file may touch. The epoch of this incarnation is learnt here."""

        broker_epoch: int

        @property
        def node_id(self) -> int: ...

        @property
        def cluster_id(self) -> str: ...


_log = logging.getLogger(__name__)

_SECURITY_PROTOCOLS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}
_RETRY_SECONDS = 0.2
_FENCED_INTERVAL_MS = 100
_SHUTDOWN_MS_MAX = 30_000
_SHUTDOWN_ATTEMPT_MS = 3_000  # if no controller answers for so long, there is nobody to take over anyway


class RegistrationRefused(Exception):
    """The controller does not want this broker; the message says why, and what to do."""


def clean_shutdown_epoch(logs: LogManager, registered: BrokerRegistration | None) -> int:
    """The broker epoch of the last shutdown, if that was clean, or -1. Clean means that everything this broker had is
    there: all its dirs, left by the same incarnation, and none that it was registered with is missing."""
    epochs = {each.broker_epoch if each.is_online else None for each in logs.dirs.values()}
    epoch = epochs.pop() if len(epochs) == 1 else None
    known = set() if registered is None else set(registered.directories)
    if epoch is None or not known <= {each.directory_id for each in logs.online_dirs}:
        return -1
    return epoch


class BrokerLifecycle:
    """Belongs to the event loop."""

    def __init__(self, broker: Needs, endpoints: list[Endpoint], previous_epoch: int) -> None:
        """`previous_epoch` is that of the last clean shutdown, or -1."""
        self._broker = broker
        self._incarnation_id = broker.random.uuid()
        self._endpoints = endpoints
        self._previous_epoch = previous_epoch
        self._beating: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._reported_dirs: set[bytes] = set()
        self._dir_failed_ms: float | None = None
        # Called when the controller could not be told of a failed dir for too long: stop, so that it notices.
        self.on_failure: Callable[[Exception], None] | None = None

    async def start(self) -> None:
        """Return when this broker is registered, has caught up, and is unfenced."""
        await self._register()
        while not self._is_active(self._broker.image):
            if self._is_registered(self._broker.image):
                await self._heartbeat()
            if not self._is_active(self._broker.image):
                await self._broker.next_image(_RETRY_SECONDS)
        self._beating = keep_going(self._broker.loop, "sending heartbeats", self._beat)

    def tell_soon(self) -> None:
        """A log dir failed or was cordoned: the controller hears of it now, not with the next heartbeat."""
        if self._dir_failed_ms is None and not self._offline_dirs() <= self._reported_dirs:
            self._dir_failed_ms = self._broker.clock.monotonic_ms()
        self._news.set()

    def _offline_dirs(self) -> set[bytes]:
        dirs = self._broker.logs.dirs.values()
        return {each.directory_id for each in dirs if not each.is_online and each.directory_id is not None}

    def stop(self) -> None:
        """No more heartbeats."""
        if self._beating is not None:
            self._beating.cancel()

    async def shut_down(self) -> None:
        """Leaderships move away first, where there is anybody to take them."""
        self.stop()
        broker = self._broker
        deadline_ms = broker.clock.monotonic_ms() + _SHUTDOWN_MS_MAX
        try:
            while broker.clock.monotonic_ms() < deadline_ms:
                response = await self._heartbeat(want_shut_down=True, timeout_ms=_SHUTDOWN_ATTEMPT_MS)
                if response.should_shut_down or broker.config.standalone:
                    return
                if response.error_code != ErrorCode.NONE:
                    break
                await asyncio.sleep(_RETRY_SECONDS / 4)
        except RequestTimedOut:
            pass
        _log.warning("shutting down without the controller's consent: leaderships move when it notices")

    def _is_registered(self, image: ClusterImage) -> bool:
        own = image.brokers.get(self._broker.node_id)
        return own is not None and own.epoch == self._broker.broker_epoch

    def _is_active(self, image: ClusterImage) -> bool:
        return self._is_registered(image) and not image.brokers[self._broker.node_id].fenced

    async def _register(self) -> None:
        broker = self._broker
        request = self._registration()
        timeout_ms = broker.config.get_int("initial.broker.registration.timeout.ms")
        deadline_ms = broker.clock.monotonic_ms() + timeout_ms
        has_warned = False
        while True:
            left_ms = max(1.0, deadline_ms - broker.clock.monotonic_ms())
            response = await broker.controller_channel.call(request, timeout_ms=left_ms)
            code = ErrorCode(response.error_code)
            if code is ErrorCode.NONE:
                broker.broker_epoch = response.broker_epoch
                return
            is_taken = code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
            if not is_taken or broker.clock.monotonic_ms() >= deadline_ms:
                raise RegistrationRefused(_explain(code, broker.node_id))
            if not has_warned:
                has_warned = True
                _log.warning(
                    "the controller takes the last incarnation of broker %d for alive: waiting for its session to end",
                    broker.node_id,
                )
            await asyncio.sleep(_RETRY_SECONDS)

    def _registration(self) -> m.BrokerRegistrationRequest:
        broker = self._broker
        kind = m.BrokerRegistrationRequest
        return kind(
            broker_id=broker.node_id,
            cluster_id=broker.cluster_id,
            incarnation_id=self._incarnation_id,
            listeners=[
                kind.Listener(each.listener, each.host or "", each.port, _SECURITY_PROTOCOLS[each.security_protocol])
                for each in self._endpoints
            ],
            features=[kind.Feature(name, levels.first, levels.last) for name, levels in SUPPORTED.items()],
            rack=broker.config.get_str_or_none("broker.rack"),
            log_dirs=sorted(each.directory_id for each in broker.logs.online_dirs if each.directory_id is not None),
            previous_broker_epoch=self._previous_epoch,
        )

    async def _beat(self) -> None:
        config = self._broker.config
        interval_ms = config.get_int("broker.heartbeat.interval.ms")
        is_fenced = False
        while True:
            # A node of its own has nobody who would miss its heartbeat: it calls only when there is something to say.
            if config.standalone and not is_fenced:
                await self._news.wait()
            else:
                pause_ms = min(interval_ms, _FENCED_INTERVAL_MS) if is_fenced else interval_ms
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_ms / 1000):
                        await self._news.wait()
            try:
                response = await self._heartbeat(timeout_ms=config.get_int("broker.session.timeout.ms"))
            except RequestTimedOut as error:
                _log.warning("no heartbeat: %s", error)
                self._news.set()  # at once
                self._give_up_unreported()
                continue
            if response.error_code != ErrorCode.NONE:
                _log.error("the controller refused a heartbeat: %s", ErrorCode(response.error_code).name)
                self._give_up_unreported()
            is_fenced = response.is_fenced

    def _give_up_unreported(self) -> None:
        """The controller elects on what it knows. If it cannot be told of a failed dir, it must miss the broker."""
        broker = self._broker
        timeout_ms = broker.config.get_int("log.dir.failure.timeout.ms")
        if self._dir_failed_ms is None or broker.clock.monotonic_ms() - self._dir_failed_ms < timeout_ms:
            return
        if self.on_failure is not None:
            self.on_failure(
                StorageError(
                    f"a log dir failed, and no controller could be told within {timeout_ms} ms "
                    "(log.dir.failure.timeout.ms): check the controllers, and the disk, then restart"
                )
            )

    async def _heartbeat(
        self, *, want_shut_down: bool = False, timeout_ms: float | None = None
    ) -> m.BrokerHeartbeatResponse:
        broker = self._broker
        self._news.clear()
        offline_dirs = self._offline_dirs()
        request = m.BrokerHeartbeatRequest(
            broker_id=broker.node_id,
            broker_epoch=broker.broker_epoch,
            current_metadata_offset=broker.image.offset,
            want_fence=False,
            want_shut_down=want_shut_down,
            offline_log_dirs=sorted(offline_dirs),
            cordoned_log_dirs=self._cordoned_dirs(),
        )
        response: m.BrokerHeartbeatResponse = await broker.controller_channel.call(request, timeout_ms=timeout_ms)
        if response.error_code == ErrorCode.NONE:
            self._reported_dirs |= offline_dirs
            if self._offline_dirs() <= self._reported_dirs:
                self._dir_failed_ms = None
        return response

    def _cordoned_dirs(self) -> list[bytes] | None:
        """None where the cluster's metadata.version does not know of cordoned dirs."""
        broker = self._broker
        if broker.image.metadata_version < CORDONED_LOG_DIRS_FROM:
            return None
        dirs = (broker.logs.dirs[path].directory_id for path in broker.logs.cordoned)
        return sorted(each for each in dirs if each is not None)


async def register_controller(broker: Needs, endpoints: list[Endpoint]) -> None:
    """Say to the active controller, whoever it is, where this node's controller listens and what it supports."""
    kind = m.ControllerRegistrationRequest
    request = kind(
        controller_id=broker.node_id,
        incarnation_id=broker.random.uuid(),
        listeners=[
            kind.Listener(each.listener, each.host or "", each.port, _SECURITY_PROTOCOLS[each.security_protocol])
            for each in endpoints
        ],
        features=[kind.Feature(name, levels.first, levels.last) for name, levels in SUPPORTED.items()],
    )
    refused = ErrorCode.NONE
    while True:
        with contextlib.suppress(RequestTimedOut):
            code = ErrorCode((await broker.controller_channel.call(request)).error_code)
            if code is ErrorCode.NONE:
                return
            if code != refused:
                refused = code
                _log.error("this controller was not registered: %s", code.name)
            await asyncio.sleep(_RETRY_SECONDS * 5)


def _explain(code: ErrorCode, node_id: int) -> str:
    what_to_do = {
        ErrorCode.DUPLICATE_BROKER_REGISTRATION: f"another broker with node.id={node_id} is running: give each its own",
        ErrorCode.INCONSISTENT_CLUSTER_ID: (
            "its log.dirs belong to another cluster: use those of this cluster, or empty ones"
        ),
        ErrorCode.UNSUPPORTED_VERSION: "the cluster's features need another release of this broker",
        ErrorCode.INVALID_REGISTRATION: "its log dirs are not distinct from those of the other brokers",
    }
    return f"the controller refused this broker ({code.name}): {what_to_do.get(code, code.meaning)}"
