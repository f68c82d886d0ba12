"""A node from start to stop: dirs, metadata, registration, listeners; and the same backwards.

The order of a start is the order of trust: the dirs are ours, the metadata is read, the sockets are bound (their ports
go into the registration), this node takes part in its quorum and has caught up with it, the logs are opened and
recovered, this broker is registered and unfenced, and only then are requests of clients taken. Those of the quorum's
other members are taken before: without them there would be no quorum to catch up with. They are answered, too, while
the logs are opened, which happens off the loop: a long recovery costs the quorum no vote.

A node of its own is a quorum of one and goes the same way, without waiting for anybody.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from moldau.broker.broker import Broker
from moldau.broker.config import BrokerConfig, Endpoint, topic_settings_for
from moldau.broker.config.rules import TableRules
from moldau.broker.config.running import updated_config
from moldau.broker.controller.channel import ControllerChannel
from moldau.broker.controller.local import LocalController
from moldau.broker.node.addresses import needs_own_name, own_name, told_to_clients, told_to_nodes
from moldau.broker.node.housekeeping import Housekeeping
from moldau.broker.node.identity import adopt, find_cluster_id, known_cluster_id, refuse_other_cluster
from moldau.broker.node.registration import BrokerLifecycle, clean_shutdown_epoch, register_controller
from moldau.broker.node.security import NodeSecurity
from moldau.broker.quorum.quorum import MetadataQuorum
from moldau.broker.quorum.settings import founds_quorum, metadata_directory_id
from moldau.broker.quotas.addresses import AddressQuotas
from moldau.broker.quotas.clients import ClientQuotas
from moldau.broker.quotas.rates import Windows
from moldau.broker.replicas.dir_moves import LogDirMoves
from moldau.broker.replicas.fetch_sessions import FetchSessions
from moldau.broker.replicas.flusher import Flusher
from moldau.broker.replicas.manager import ReplicaManager
from moldau.broker.requests.dispatch import Dispatcher
from moldau.broker.requests.registry import ListenerKind
from moldau.broker.supervision import keep_going
from moldau.controller import BrokerSessions, ClusterImage, ControllerContext, ImageDelta, ResourceType, diff
from moldau.controller.features import CORDONED_LOG_DIRS_FROM
from moldau.log.checkpoints import TopicPartition, uuid_text
from moldau.log.config import LogConfig
from moldau.log.dirs.log_manager import LogManager
from moldau.log.dirs.settings import ManagerSettings
from moldau.log.errors import StorageError
from moldau.log.open_segments import default_capacity, sockets_max
from moldau.net import UNLIMITED, ConnectionLimits, ListenerLimits, LoopTimers, NetSettings, RealNetwork
from moldau.seams import Clock, Disk, Random, RealDisk, SystemClock, SystemRandom
from moldau.seams.network import Listener, Network
from moldau.security.authorizer import Authorizer

if TYPE_CHECKING:
    from moldau.broker.metrics.watching import Watching

_log = logging.getLogger(__name__)
_DRAIN_MS = 2_000
_STALL_MS = 600_000
_WORKERS = 4  # beside those of the cleaner
_METADATA_WORKERS = 2  # a flush, and a snapshot beside it


class Node:
    """Lives on one running event loop.

    Whatever it needs of the world can be given: clock, randomness, disk, network, and the `executor` that runs what
    would block the loop (an own pool of threads otherwise). With all five, a run depends on nothing else.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock | None = None,
        random: Random | None = None,
        disk: Disk | None = None,
        network: Network | None = None,
        executor: Executor | None = None,
        wrap_network: Callable[[Network], Network] | None = None,
    ) -> None:
        """`wrap_network` is what stands between this node and its network, for those who disturb it in tests."""
        self.config = config
        self.clock = clock or SystemClock()
        self.random = random or SystemRandom()
        self.disk = disk or RealDisk()
        self.broker: Broker
        self._network = network
        self._wrap_network = wrap_network
        self._executor = executor
        self._limits = ConnectionLimits()
        _set_limits(self._limits, config)
        self._address_quotas = AddressQuotas(
            Windows(config.get_int("quota.window.num"), config.get_int("quota.window.size.seconds") * 1_000.0)
        )
        self._limits.connected = self._address_quotas.connected
        self._listeners: dict[str, Listener] = {}
        self._security: NodeSecurity
        self._dispatchers: dict[ListenerKind, Dispatcher] = {}
        self._lifecycle: BrokerLifecycle | None = None
        self._registering: asyncio.Task[None] | None = None
        self._housekeeping: Housekeeping | None = None
        self._logs: LogManager | None = None
        self._timers: LoopTimers | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._metadata_threads: ThreadPoolExecutor | None = None
        self._is_publishing = False
        self._has_failed = False
        self._watching: Watching | None = None
        # Where a start or a stop is, in words: `serving` in between.
        self.phase = "new"
        # Called when this node cannot go on, because the disk of its metadata failed, or the last of its log dirs: stop
        # the process at once, as Kafka does. Nothing it would answer from then on could be relied upon.
        self.on_failure: Callable[[Exception], None] | None = None

    @property
    def addresses(self) -> dict[str, tuple[str, int]]:
        """Where each listener is bound."""
        return {name: (listener.host, listener.port) for name, listener in self._listeners.items()}

    @property
    def client_addresses(self) -> list[tuple[str, int]]:
        """Where clients connect: to a broker; or to a controller, if this node is nothing else."""
        listeners = self.config.broker_listeners or self.config.controller_listeners
        return [self.addresses[each.listener] for each in listeners]

    async def start(self) -> None:
        """Return when clients may connect. If it fails, everything is closed again."""
        try:
            await self._begin_watching()
            await self._start()
            self._enter("serving")
        except BaseException:
            await self._close()
            raise

    @property
    def http_address(self) -> tuple[str, int] | None:
        """Where metrics and health are served, if they are."""
        return None if self._watching is None else self._watching.address

    async def _begin_watching(self) -> None:
        from moldau.broker.config.http import http_address

        address = http_address(self.config.get_str("moldau.http.listener"))
        if address is not None:
            from moldau.broker.metrics.watching import Watching

            self._watching = Watching(asyncio.get_running_loop(), self.clock.monotonic_ms)
            await self._watching.start(*address)

    def _enter(self, phase: str) -> None:
        self.phase = phase
        _log.info("node %d: %s", self.config.node_id, phase)
        if self._watching is not None:
            self._watching.phase, self._watching.explain = phase, None

    async def _start(self) -> None:
        config = self.config
        self._enter("opening log dirs")
        network = self._begin()
        self._logs = logs = self._log_manager()
        self._open_dirs(logs)
        self.broker = broker = self._new_broker(logs, network)
        self._security = NodeSecurity(broker)
        broker.to_brokers, broker.to_controllers = self._security.to_brokers(), self._security.to_controllers()
        self._enter("looking for the cluster")
        await self._identify()
        metadata = broker.metadata_log = self._quorum()
        metadata.open()
        broker.controller = self._controller(broker)
        broker.controller_channel = ControllerChannel(broker)
        endpoints, controllers = await self._listen(network)
        metadata.on_leader_change.append(broker.controller.on_leader_change)
        metadata.on_failure.append(self._fail)
        if metadata.is_leader:
            broker.controller.on_leader_change(config.node_id, metadata.epoch)
        if self._watching is not None:
            self._watching.watch(broker, self._dispatchers, self._listeners)
            self._watching.elections.on_leader_change(metadata.leader_id, metadata.epoch)
            metadata.on_leader_change.append(self._watching.elections.on_leader_change)
        self._enter("catching up with the quorum")
        metadata.start()
        self._dispatchers["controller"].open()
        if self._watching is not None:
            self._watching.explain = metadata.what_is_missing
        await metadata.wait_until_caught_up()
        self._enter("opening and recovering logs")
        await self._open_logs(logs)
        previous_epoch = clean_shutdown_epoch(logs, metadata.committed.brokers.get(config.node_id))
        broker.replicas = ReplicaManager(broker)
        broker.moves = LogDirMoves(broker, broker.replicas.check_dir)
        _set_strays_aside(logs, metadata.committed, config.node_id)
        self._is_publishing = True
        self._publish(broker.image, metadata.committed)
        if config.is_controller and not config.standalone:
            self._registering = keep_going(
                broker.loop,
                "registering the controller",
                lambda: register_controller(broker, controllers),
            )
        if config.is_broker:
            self._enter("registering with the controller")
            self._lifecycle = BrokerLifecycle(broker, endpoints, previous_epoch)
            self._lifecycle.on_failure = self._fail
            await self._lifecycle.start()
            broker.on_registered()
            await broker.in_turns(broker.replicas.start())
        self._housekeeping = Housekeeping(logs, broker.executor)
        self._housekeeping.start()
        self._dispatchers["broker"].open()

    def _begin(self) -> Network:
        """Timers, threads and network: what was not given is made."""
        self._timers = LoopTimers(asyncio.get_running_loop(), self.clock)
        if self._executor is None:
            # A cleaning may take hours, and its threads may be doubled while the node runs: requests, flushes and
            # checkpoints must not wait for one. Threads that are not needed are never started.
            workers = _WORKERS + 2 * self.config.get_int("log.cleaner.threads")
            self._executor = self._threads = ThreadPoolExecutor(workers, thread_name_prefix="moldau")
        if self._network is None:
            self._network = RealNetwork(
                clock=self.clock, settings=_net_settings(self.config), limits=self._limits, wheel=self._timers.wheel
            )
        if self._wrap_network is not None:
            self._network = self._wrap_network(self._network)
        return self._network

    def _log_manager(self) -> LogManager:
        return LogManager(
            self.config.log_dirs,
            disk=self.disk,
            clock=self.clock,
            random=self.random,
            settings=self._manager_settings(self.config),
            config_for=self._log_config_for,
            topic_id_of=self._topic_id_of,
            on_dir_offline=self._dir_offline,
        )

    def _open_dirs(self, logs: LogManager) -> None:
        is_new = not any(each.is_formatted for each in logs.dirs.values())
        logs.open_dirs()
        for path, log_dir in logs.dirs.items():
            if log_dir.error is not None and path == self.config.metadata_log_dir:
                raise StorageError(f"{path}, which holds the metadata, cannot be used: {_explain(log_dir.error)}")
        if not logs.online_dirs:
            raise StorageError(f"none of log.dirs can be used: {', '.join(map(_explain, _errors(logs)))}")
        path = self.config.metadata_log_dir
        if path not in logs.dirs:  # a dir of its own
            if is_new:
                self.disk.make_dirs(path)
            elif not self.disk.exists(path):
                raise StorageError(f"{path}, which holds the metadata (metadata.log.dir), is gone: mount its disk")

    def _dir_offline(self, path: str, partitions: list[TopicPartition], error: OSError) -> None:
        logs = self._logs
        assert logs is not None
        _log.error("log dir %s is offline, and with it %d replicas: %s", path, len(partitions), _explain(error))
        if path == self.config.metadata_log_dir:
            self._fail(StorageError(f"{path}, which holds the metadata, failed: {_explain(error)}"))
        elif not logs.online_dirs:
            self._fail(StorageError(f"all log dirs failed, the last was {path}: {_explain(error)}"))
        elif self._lifecycle is not None:
            self._lifecycle.tell_soon()

    async def _open_logs(self, logs: LogManager) -> None:
        """Off the loop: a recovery may take minutes, and the quorum needs this node's votes and fetches meanwhile."""
        job = logs.begin_open()
        opening = self.broker.loop.run_in_executor(self.broker.executor, job.run)
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            await asyncio.wait([opening])  # it writes into the dirs: they are let go of afterwards
            raise
        finally:
            if opening.done() and opening.exception() is None:
                job.finish()

    def _new_broker(self, logs: LogManager, network: Network) -> Broker:
        assert self._executor is not None
        assert self._timers is not None
        slots = self.config.get_int("max.incremental.fetch.session.cache.slots")
        broker = Broker(
            config=self.config,
            cluster_id="",
            loop=asyncio.get_running_loop(),
            clock=self.clock,
            random=self.random,
            wheel=self._timers.wheel,
            logs=logs,
            fetch_sessions=FetchSessions(self.random, slots),
            network=network,
            executor=self._executor,
            quotas=_client_quotas(self.config),
            has_own_threads=self._threads is not None,
        )
        broker.authorizer = _authorizer(self.config)
        broker.flusher = Flusher(self._executor, lambda partition: broker.replicas.flushed(partition))  # noqa: PLW0108 - there are none yet
        return broker

    async def _identify(self) -> None:
        config, broker = self.config, self.broker
        dirs = broker.logs.online_dirs
        cluster_id = known_cluster_id(dirs, config.node_id)
        if cluster_id is None:
            alone = founds_quorum(config)
            cluster_id = (
                uuid_text(self.random.uuid()) if alone else await find_cluster_id(config, broker.controller_channels)
            )
        else:
            for each in dirs:
                if each.properties is None:
                    _log.warning(
                        "log dir %s is empty and taken for a new disk; if its disk is not mounted, stop, mount it, and "
                        "start again",
                        each.path,
                    )
            if not config.standalone:
                await refuse_other_cluster(config, broker.controller_channels, cluster_id)
        adopt(dirs, cluster_id, config.node_id, self.disk, self.random)
        broker.cluster_id = cluster_id

    def _quorum(self) -> MetadataQuorum:
        broker = self.broker
        executor = broker.executor
        if self._threads is not None:
            # Whoever waits for a flush neither fetches nor commits: behind cleaning and the flushes of records, a
            # follower would look silent, and a leader lose its quorum.
            executor = self._metadata_threads = ThreadPoolExecutor(_METADATA_WORKERS, "moldau-metadata")
        return MetadataQuorum(
            broker.logs.context,
            self.config,
            self._publish,
            executor,
            cluster_id=broker.cluster_id,
            directory_id=metadata_directory_id(broker.logs, self.config),
            channels=lambda: broker.controller_channels,
        )

    def _log_config_for(self, topic: str) -> LogConfig:
        overrides = self.broker.metadata_log.latest.config(ResourceType.TOPIC, topic)
        return topic_settings_for(overrides, self.broker.config).log

    def _topic_id_of(self, topic: str) -> bytes | None:
        found = self.broker.metadata_log.latest.topics.get(topic)
        return None if found is None else found.topic_id

    def _controller(self, broker: Broker) -> LocalController:
        sessions = BrokerSessions(self.config.get_int("broker.session.timeout.ms"))
        context = ControllerContext(
            rules=TableRules(lambda: broker.config),
            random=self.random,
            node_id=broker.node_id,
            cluster_id=broker.cluster_id,
        )
        return LocalController(broker, context, sessions)

    async def _listen(self, network: Network) -> tuple[list[Endpoint], list[Endpoint]]:
        """Bind, and say what is to be told: to clients, and to other nodes about the controller."""
        config, broker = self.config, self.broker
        bound: dict[ListenerKind, tuple[Endpoint, ...]] = {
            "controller": config.controller_listeners,
            "broker": config.broker_listeners,
        }
        for kind, listeners in bound.items():
            dispatcher = self._dispatchers[kind] = Dispatcher(broker, kind)
            for each in listeners:
                host = each.host or "0.0.0.0"  # noqa: S104 - an empty host means all interfaces, as in Kafka
                handler = self._security.handler(each, dispatcher)
                tls = self._security.tls(each)
                listener = await network.listen(host, each.port, handler, name=each.listener, tls=tls)
                self._listeners[each.listener] = listener
        self._security.watch(self._listeners)
        name = await broker.loop.run_in_executor(self._executor, own_name) if needs_own_name(config) else "localhost"
        ports = {each: listener.port for each, listener in self._listeners.items()}
        if controllers := told_to_nodes(config, ports, name):
            broker.metadata_log.set_endpoints([(each.listener, each.host or "", each.port) for each in controllers])
        return told_to_clients(config, ports, name), controllers

    def _publish(self, before: ClusterImage, after: ClusterImage, delta: ImageDelta | None = None) -> None:
        """The cluster changed: act on it before anybody is told that it did."""
        if not self._is_publishing:
            return  # the first image is published when there are logs it can be applied to
        broker = self.broker
        broker.image = after
        if broker.authorizer is not None:
            broker.authorizer.follow(after.acls)
        broker.quotas.follow(after.quotas)
        self._address_quotas.follow(after.quotas)
        delta = diff(before, after) if delta is None else delta
        self._reconfigure(updated_config(broker.config, after, delta))
        self._cordon(after)
        broker.replicas.apply(after, delta, broker.config)
        broker.tell_coordinators(after, delta)
        for topic in delta.topics_deleted:
            for index in topic.partitions:
                _wake(broker, (topic.topic_id, index))
        if self._watching is not None and broker.controller.is_active:
            self._watching.partition_elections.on_published(delta)
        broker.on_image_published()

    def _cordon(self, image: ClusterImage) -> None:
        """`cordoned.log.dirs` has effect once the cluster's metadata.version knows of it."""
        logs = self.broker.logs
        is_known = image.metadata_version >= CORDONED_LOG_DIRS_FROM
        cordoned = frozenset(self.broker.config.cordoned_log_dirs) if is_known else frozenset()
        if cordoned != logs.cordoned:
            logs.cordoned = cordoned
            if self._lifecycle is not None:
                self._lifecycle.tell_soon()

    def _fail(self, error: Exception) -> None:
        """This node cannot go on; said once."""
        if not self._has_failed:
            self._has_failed = True
            if self._watching is not None:
                self._watching.failure = str(error)
            if self.on_failure is not None:
                self.on_failure(error)

    def _reconfigure(self, config: BrokerConfig) -> None:
        """Settings changed while running. What is read at each use needs nothing; these were copied at the start."""
        if config is self.broker.config:
            return
        self.broker.config = config
        self.broker.logs.settings = self._manager_settings(config)
        _set_limits(self._limits, config)
        self._security.reload()

    async def stop(self) -> None:
        """Shut down cleanly: leaderships move away first, and the next start needs no recovery."""
        self._enter("stopping")
        if self._lifecycle is not None:
            await self._lifecycle.shut_down()
        await self._close(is_clean=True)

    async def abort(self) -> None:
        """End as after a crash, but without leaving sockets and threads behind: nobody is told, nothing is flushed."""
        await self._close()

    async def _close(self, *, is_clean: bool = False) -> None:
        """Backwards through whatever was begun."""
        broker: Broker | None = getattr(self, "broker", None)
        if broker is not None:
            await self._close_broker(broker, is_clean)
        elif self._network is not None:
            await self._network.stop(0)
        if self._logs is not None:
            if is_clean and broker is not None:
                self._logs.close(broker.broker_epoch)
            else:
                self._logs.abandon()
        if self._timers is not None:
            self._timers.close()
        for threads in (self._threads, self._metadata_threads):
            if threads is not None:
                threads.shutdown()
        if self._watching is not None:
            await self._watching.stop()

    async def _close_broker(self, broker: Broker, is_clean: bool) -> None:
        if self._registering is not None:
            self._registering.cancel()
        if self._lifecycle is not None:
            self._lifecycle.stop()
        if is_clean:
            broker.controller.stop()
            await broker.metadata_log.resign()
        broker.stop_coordinators()
        broker.fetch_purgatory.force_complete_everything()
        broker.produce_purgatory.force_complete_everything()
        if self._is_publishing:
            self._is_publishing = False
            await broker.replicas.stop()
        await broker.close_channels()
        await broker.network.stop(_DRAIN_MS if is_clean else 0)
        for each in self._dispatchers.values():
            await each.stop()
        if self._housekeeping is not None:
            await broker.moves.stop()
            await self._housekeeping.stop()
        await broker.flusher.stop()
        if hasattr(broker, "metadata_log"):
            await broker.metadata_log.close(is_clean=is_clean)

    def _manager_settings(self, config: BrokerConfig) -> ManagerSettings:
        settings = _manager_settings(config)
        # Whoever brings an executor wants no other threads.
        return settings if self._threads is not None else replace(settings, recovery_threads_per_data_dir=1)


def _authorizer(config: BrokerConfig) -> Authorizer | None:
    if not config.get_str("authorizer.class.name"):
        return None
    allow_if_no_acl = config.get_bool("allow.everyone.if.no.acl.found")
    return Authorizer(config.super_users, allow_if_no_acl=allow_if_no_acl)


def _client_quotas(config: BrokerConfig) -> ClientQuotas:
    seconds, mutation_seconds = "quota.window.size.seconds", "controller.quota.window.size.seconds"
    return ClientQuotas(
        Windows(config.get_int("quota.window.num"), config.get_int(seconds) * 1_000.0),
        Windows(config.get_int("controller.quota.window.num"), config.get_int(mutation_seconds) * 1_000.0),
    )


def _errors(logs: LogManager) -> list[OSError]:
    return [each.error for each in logs.dirs.values() if each.error is not None]


def _explain(error: OSError) -> str:
    """What happened to a disk, and what to do about it."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{error}. Free space on it, then restart"
    if error.errno == errno.ENOENT:
        return f"{error}. Mount its disk again, or make the folder if the disk is a new one, then restart"
    return f"{error}. Repair or replace the disk, then restart"


def _wake(broker: Broker, key: tuple[bytes, int]) -> None:
    broker.produce_purgatory.check_and_complete(key)
    broker.fetch_purgatory.check_and_complete(key)


def _set_strays_aside(logs: LogManager, image: ClusterImage, node_id: int) -> None:
    """Replicas that were deleted or moved away while this node was down must not be taken for those of today."""
    for (name, index), log in list(logs.logs.items()):
        topic = image.topics.get(name)
        partition = None if topic is None else topic.partitions.get(index)
        is_same = topic is not None and log.topic_id in (None, topic.topic_id)
        if not is_same or partition is None or node_id not in partition.replicas:
            _log.warning("%s-%d is not, or no longer, a replica of this node: it is set aside", name, index)
            logs.set_aside(name, index)


def _net_settings(config: BrokerConfig) -> NetSettings:
    idle_ms = config.get_int("connections.max.idle.ms")
    if idle_ms < 0:  # as in Kafka: never
        idle_ms = 2**53
    return NetSettings(
        max_frame_bytes=config.get_int("socket.request.max.bytes"),
        max_idle_ms=idle_ms,
        # Half a request followed by silence is idle too.
        max_stall_ms=min(idle_ms, _STALL_MS),
        queued_max_bytes=config.get_int("queued.max.request.bytes"),
        send_buffer_bytes=config.get_int("socket.send.buffer.bytes"),
        receive_buffer_bytes=config.get_int("socket.receive.buffer.bytes"),
        backlog=config.get_int("socket.listen.backlog.size"),
    )


def _set_limits(limits: ConnectionLimits, config: BrokerConfig) -> None:
    limits.max_sockets = sockets_max(default_capacity())
    limits.max_connections = config.get_int("max.connections")
    limits.max_per_address = config.get_int("max.connections.per.ip")
    limits.per_address_overrides = config.max_connections_per_ip_overrides
    limits.max_creation_rate = config.get_int("max.connection.creation.rate")
    limits.per_listener = {each.listener: _listener_limits(config, each.listener) for each in config.listeners}
    # With one listener for everybody, nobody can be told apart.
    limits.protected_listener = config.inter_broker_listener_name if len(config.broker_listeners) > 1 else None


def _listener_limits(config: BrokerConfig, listener: str) -> ListenerLimits:
    def of(key: str) -> int:
        """Only what it was given for itself: what is set for all counts for all together."""
        own = config.texts.get(f"listener.name.{listener.lower()}.{key}")
        return UNLIMITED if own is None else int(own)

    return ListenerLimits(of("max.connections"), of("max.connection.creation.rate"))


def _manager_settings(config: BrokerConfig) -> ManagerSettings:
    return ManagerSettings(
        flush_scheduler_interval_ms=config.get_int("log.flush.scheduler.interval.ms"),
        flush_offset_checkpoint_interval_ms=config.get_int("log.flush.offset.checkpoint.interval.ms"),
        flush_start_offset_checkpoint_interval_ms=config.get_int("log.flush.start.offset.checkpoint.interval.ms"),
        high_watermark_checkpoint_interval_ms=config.get_int("replica.high.watermark.checkpoint.interval.ms"),
        retention_check_interval_ms=config.get_int("log.retention.check.interval.ms"),
        producer_id_expiration_check_interval_ms=config.get_int("producer.id.expiration.check.interval.ms"),
        cleaner_enable=config.get_bool("log.cleaner.enable"),
        cleaner_backoff_ms=config.get_int("log.cleaner.backoff.ms"),
        cleaner_threads=config.get_int("log.cleaner.threads"),
        cleaner_dedupe_buffer_bytes=config.get_int("log.cleaner.dedupe.buffer.size"),
        cleaner_io_max_bytes_per_second=config.get_float("log.cleaner.io.max.bytes.per.second"),
        recovery_threads_per_data_dir=config.get_int("num.recovery.threads.per.data.dir"),
    )
