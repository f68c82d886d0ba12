"""What a handler can reach: one object that knows everything this node has, and does nothing by itself.

Coordinators and telemetry are made, and their code is loaded, when they are first needed: a broker that only moves
records starts sooner and stays smaller.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from moldau.broker.config import BrokerConfig
from moldau.broker.quotas.clients import ClientQuotas
from moldau.broker.quotas.rates import Windows
from moldau.broker.supervision import begin
from moldau.controller.acls import operation_name, resource_name
from moldau.controller.delta import ImageDelta
from moldau.controller.image import EMPTY_IMAGE, ClusterImage
from moldau.log.dirs.log_manager import LogManager
from moldau.seams import Clock, Random
from moldau.seams.network import Connection, Network
from moldau.security.audit import Audit
from moldau.timers.purgatory import Purgatory
from moldau.timers.turns import Slices, Turns
from moldau.timers.wheel import TimingWheel

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.channels import Channels, PeerSecurity
    from moldau.broker.controller.channel import ControllerChannel
    from moldau.broker.controller.local import LocalController
    from moldau.broker.coordinators.groups import GroupCoordinator
    from moldau.broker.coordinators.producer_ids import ProducerIds
    from moldau.broker.coordinators.transactions import TransactionCoordinator
    from moldau.broker.coordinators.txn_verifier import RemoteCoordinators
    from moldau.broker.quorum.quorum import MetadataQuorum
    from moldau.broker.replicas.dir_moves import LogDirMoves
    from moldau.broker.replicas.fetch_sessions import FetchSessions
    from moldau.broker.replicas.flusher import Flusher
    from moldau.broker.replicas.manager import ReplicaManager
    from moldau.broker.replicas.partition import Partition
    from moldau.broker.requests.telemetry import Telemetry
    from moldau.security.authorizer import Authorizer

T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Broker:
    """All that a handler may use. See the top of the file."""

    config: BrokerConfig
    cluster_id: str
    loop: asyncio.AbstractEventLoop
    clock: Clock
    random: Random
    wheel: TimingWheel
    logs: LogManager
    fetch_sessions: FetchSessions
    network: Network
    # For whatever would block the loop. If it was given to us, it is the only one: no other threads then.
    executor: Executor
    has_own_threads: bool = True
    authorizer: Authorizer | None = None
    quotas: ClientQuotas = field(default_factory=lambda: ClientQuotas(Windows(), Windows()))
    image: ClusterImage = EMPTY_IMAGE
    broker_epoch: int = -1
    replicas: ReplicaManager = field(init=False)
    controller: LocalController = field(init=False)
    controller_channel: ControllerChannel = field(init=False)
    metadata_log: MetadataQuorum = field(init=False)
    flusher: Flusher = field(init=False)
    moves: LogDirMoves = field(init=False)
    _groups: GroupCoordinator | None = None
    _transactions: TransactionCoordinator | None = None
    _producer_ids: ProducerIds | None = None
    _remote_coordinators: RemoteCoordinators | None = None
    _telemetry: Telemetry | None = None
    # How the listeners of other nodes are to be talked to; None as it is.
    to_brokers: PeerSecurity | None = None
    to_controllers: PeerSecurity | None = None
    _channels: Channels | None = None
    _controller_channels: Channels | None = None
    _image_changed: asyncio.Future[None] | None = None
    # An acks=all Produce waits here for the high watermark, a Fetch for `fetch.min.bytes`.
    produce_purgatory: Purgatory = field(init=False)
    fetch_purgatory: Purgatory = field(init=False)
    # Whatever takes long on the loop takes it in turns.
    turns: Turns = field(init=False)
    # Work of threads in Python, one at a time.
    long_look: asyncio.Lock = field(default_factory=asyncio.Lock)
    # The same for reading long Fetches: followers, too, send some, and should not wait for whatever clients make of the
    # other.
    long_fetch: asyncio.Lock = field(default_factory=asyncio.Lock)
    # Requests that are carried out over several turns of the loop.
    under_way: set[asyncio.Task[None]] = field(default_factory=set)
    audit: Audit = field(init=False)
    # Called when a connection is gone, by whoever waits on its behalf.
    disconnect_listeners: list[Callable[[Connection], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.produce_purgatory = Purgatory("produce", self.wheel)
        self.fetch_purgatory = Purgatory("fetch", self.wheel)
        self.turns = Turns(self.loop, self.clock.monotonic_ms)
        self.audit = Audit(self.clock.monotonic_ms)

    def go_on(self, call: Call, work: Coroutine[Any, Any, None], kept_bytes: int = 0) -> None:
        """Carry a request out over several turns of the loop. Nothing of its connection may overtake it. What it keeps
        of its frame meanwhile counts against `queued.max.request.bytes`."""
        call.connection.pause_dispatch()
        call.connection.hold_memory(kept_bytes)
        call.waits_since(self.clock.monotonic_ms())
        task = begin(self.loop, "a request in turns", self._go_on(call, work, kept_bytes))
        self.under_way.add(task)
        task.add_done_callback(self.under_way.discard)

    async def _go_on(self, call: Call, work: Coroutine[Any, Any, None], kept_bytes: int) -> None:
        try:
            await work
        except asyncio.CancelledError:
            call.connection.close("the broker stops")
            raise
        except Exception as error:
            _log.error(f"{call.api.name} failed: %r", call, exc_info=error)  # one API must not hide another
            call.connection.close("a request failed")
        finally:
            call.connection.hold_memory(-kept_bytes)
            if not call.connection.is_closed:
                call.connection.resume_dispatch()

    async def in_turns(self, work: Slices[T]) -> T:
        """The result of work that lets others have their turn."""
        done = self.turns.run(work)
        return await done if isinstance(done, asyncio.Future) else done

    @property
    def channels(self) -> Channels:
        """To the other brokers."""
        if self._channels is None:
            from moldau.broker.channels import Channels

            self._channels = Channels(self.network, f"node-{self.node_id}", security=self.to_brokers)
        return self._channels

    @property
    def controller_channels(self) -> Channels:
        """To the controllers: the same, unless their listener is secured in another way."""
        if self.to_controllers is self.to_brokers:
            return self.channels
        if self._controller_channels is None:
            from moldau.broker.channels import Channels

            self._controller_channels = Channels(self.network, f"node-{self.node_id}", security=self.to_controllers)
        return self._controller_channels

    async def close_channels(self) -> None:
        for each in (self._channels, self._controller_channels):
            if each is not None:
                await each.close()

    @property
    def groups(self) -> GroupCoordinator:
        if self._groups is None:
            from moldau.broker.coordinators.groups import GroupCoordinator

            self._groups = GroupCoordinator(self)
            self._groups.load_all()
        return self._groups

    @property
    def transactions(self) -> TransactionCoordinator:
        if self._transactions is None:
            from moldau.broker.coordinators.transactions import TransactionCoordinator

            self._transactions = TransactionCoordinator(self)
            self._transactions.load_all()
            self.producer_ids.prefetch()
        return self._transactions

    @property
    def made_groups(self) -> GroupCoordinator | None:
        """The same for those who only look: None as long as nobody needed it."""
        return self._groups

    @property
    def made_transactions(self) -> TransactionCoordinator | None:
        return self._transactions

    @property
    def producer_ids(self) -> ProducerIds:
        if self._producer_ids is None:
            from moldau.broker.coordinators.producer_ids import ProducerIds

            self._producer_ids = ProducerIds(self)
        return self._producer_ids

    @property
    def telemetry(self) -> Telemetry:
        if self._telemetry is None:
            from moldau.broker.requests.telemetry import Telemetry

            self._telemetry = Telemetry(self.random)
            self.disconnect_listeners.append(self._telemetry.on_disconnect)
        return self._telemetry

    async def next_image(self, timeout_seconds: float) -> None:
        """Until the cluster changes, or for so long."""
        if self._image_changed is None:
            self._image_changed = self.loop.create_future()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await asyncio.shield(self._image_changed)

    def on_registered(self) -> None:
        """The controller knows this broker from now on."""
        if self._producer_ids is not None:
            self._producer_ids.prefetch()

    def on_image_published(self) -> None:
        changed, self._image_changed = self._image_changed, None
        if changed is not None:
            changed.set_result(None)

    def tell_coordinators(self, image: ClusterImage, delta: ImageDelta) -> None:
        """The cluster changed. Coordinators that nobody needed so far stay unmade, unless their topic has come."""
        self._drop_connections(delta)
        if self._groups is not None or "__consumer_offsets" in image.topics:
            self.groups.apply(image, delta)
        if self._transactions is not None or "__transaction_state" in image.topics:
            self.transactions.apply(delta)

    def _drop_connections(self, delta: ImageDelta) -> None:
        """Brokers that are fenced or gone may be frozen or cut off: whoever waits for them should look elsewhere."""
        if self._channels is None:
            return
        for change in delta.brokers:
            before, after = change.before, change.after
            if before is not None and not before.fenced and (after is None or after.fenced):
                for endpoint in before.endpoints:
                    self._channels.drop(endpoint.host, endpoint.port)

    @property
    def remote_coordinators(self) -> RemoteCoordinators:
        """Transaction coordinators on other brokers."""
        if self._remote_coordinators is None:
            from moldau.broker.coordinators.txn_verifier import RemoteCoordinators

            self._remote_coordinators = RemoteCoordinators(self)
        return self._remote_coordinators

    def stop_coordinators(self) -> None:
        if self._remote_coordinators is not None:
            self._remote_coordinators.stop()
        if self._groups is not None:
            self._groups.stop()
        if self._transactions is not None:
            self._transactions.stop()

    @property
    def node_id(self) -> int:
        return self.config.node_id

    def endpoint_of(self, node_id: int) -> tuple[str, int] | None:
        """Where brokers reach that broker; None if it is not registered."""
        registered = self.image.brokers.get(node_id)
        name = self.config.inter_broker_listener_name
        for each in registered.endpoints if registered is not None else ():
            if each.name == name:
                return each.host, each.port
        return None

    def is_controller_listener(self, name: str) -> bool:
        """Whether the quorum's members come there, and not clients of brokers."""
        return name in self.config.controller_listener_names

    def denied(self, call: Call, operation: int, kind: int, name: str) -> None:
        """Somebody was refused what it asked for."""
        session = call.session
        self.audit.denied(
            session.principal,
            address=session.client_address,
            operation=operation_name(operation),
            resource=f"{resource_name(kind)}:LITERAL:{name}",
            api=call.api.name,
        )

    def flush_soon(self, partition: Partition) -> None:
        """Make the partition durable off the loop; whoever waits for it is woken then."""
        self.flusher.add(partition)

    def on_disconnect(self, connection: Connection) -> None:
        for listener in self.disconnect_listeners:
            listener(connection)
