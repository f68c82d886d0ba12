"""A node from start to stop: dirs, metadata, registration, listeners; and the same backwards.

The order of a start is the order of trust: the dirs are ours, the metadata is read and a new epoch begun, the logs are
opened and recovered, the sockets are bound (their ports go into the registration), this broker is registered and
unfenced, and only then are requests taken.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace

from moldau.broker.broker import Broker
from moldau.broker.config import BrokerConfig, Endpoint, topic_settings_for
from moldau.broker.config_rules import TableRules
from moldau.broker.controller import LocalController
from moldau.broker.controller_channel import ControllerChannel
from moldau.broker.dispatch import Dispatcher
from moldau.broker.dynamic_config import updated_config
from moldau.broker.fetch_sessions import FetchSessions
from moldau.broker.flusher import Flusher
from moldau.broker.housekeeping import Housekeeping
from moldau.broker.identity import identify
from moldau.broker.log_dir_moves import LogDirMoves
from moldau.broker.protection import refuse_missing_protection
from moldau.broker.quorum import MetadataQuorum, metadata_directory_id
from moldau.broker.registration import BrokerLifecycle
from moldau.broker.replicas import ReplicaManager
from moldau.controller import BrokerSessions, ClusterImage, ControllerContext, ResourceType, diff
from moldau.log.config import LogConfig
from moldau.log.log_manager import LogManager
from moldau.log.settings import ManagerSettings
from moldau.net import ConnectionLimits, LoopTimers, NetSettings, RealNetwork
from moldau.seams import Clock, Disk, Random, RealDisk, SystemClock, SystemRandom
from moldau.seams.network import Listener, Network

_log = logging.getLogger(__name__)
_DRAIN_MS = 2_000
_STALL_MS = 600_000
_WORKERS = 4


class Node:
    """Lives on one running event loop, which it may block while it starts.

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
    ) -> None:
        self.config = config
        self.clock = clock or SystemClock()
        self.random = random or SystemRandom()
        self.disk = disk or RealDisk()
        self.broker: Broker
        self._network = network
        self._executor = executor
        self._limits = ConnectionLimits()
        _set_limits(self._limits, config)
        self._listeners: dict[str, Listener] = {}
        self._lifecycle: BrokerLifecycle | None = None

    @property
    def addresses(self) -> dict[str, tuple[str, int]]:
        """Where each listener is bound."""
        return {name: (listener.host, listener.port) for name, listener in self._listeners.items()}

    async def start(self) -> None:
        """Return when clients may connect."""
        config = self.config
        refuse_missing_protection(config)
        loop = asyncio.get_running_loop()
        self._timers = LoopTimers(loop, self.clock)
        threads = None
        if self._executor is None:
            self._executor = threads = ThreadPoolExecutor(_WORKERS, thread_name_prefix="moldau")
        self._threads = threads
        if self._network is None:
            self._network = RealNetwork(
                clock=self.clock, settings=_net_settings(config), limits=self._limits, wheel=self._timers.wheel
            )
        logs = LogManager(
            config.log_dirs,
            disk=self.disk,
            clock=self.clock,
            random=self.random,
            settings=self._manager_settings(config),
            config_for=self._log_config_for,
        )
        logs.open_dirs()
        cluster_id = identify(logs.online_dirs, config.node_id, self.disk, self.random)
        self.broker = broker = Broker(
            config=config,
            cluster_id=cluster_id,
            loop=loop,
            clock=self.clock,
            random=self.random,
            wheel=self._timers.wheel,
            logs=logs,
            fetch_sessions=FetchSessions(
                self.random,
                config.get_int("max.incremental.fetch.session.cache.slots"),
            ),
            network=self._network,
            executor=self._executor,
            has_own_threads=threads is not None,
        )
        broker.flusher = Flusher(self._executor, lambda partition: _wake(broker, partition.key))
        broker.metadata_log = metadata = MetadataQuorum(
            logs.context,
            config,
            self._publish,
            self._executor,
            cluster_id=cluster_id,
            directory_id=metadata_directory_id(logs, config),
            channels=lambda: broker.channels,
        )
        metadata.open()
        logs.open()
        previous_epoch = max((each.broker_epoch or -1 for each in logs.online_dirs), default=-1)
        broker.replicas = ReplicaManager(broker)
        broker.moves = LogDirMoves(broker)
        broker.controller = self._controller(broker)
        broker.controller_channel = ControllerChannel(broker)
        self._publish(broker.image, metadata.committed)
        metadata.on_leader_change.append(broker.controller.on_leader_change)
        broker.controller.on_leader_change(metadata.leader_id, metadata.epoch)
        self._dispatcher = Dispatcher(broker)
        endpoints = await self._listen(self._network)
        metadata.start()
        self._lifecycle = BrokerLifecycle(broker, endpoints, previous_epoch)
        await self._lifecycle.start()
        broker.replicas.start()
        self._housekeeping = Housekeeping(logs, self._executor)
        self._housekeeping.start()
        self._dispatcher.open()

    def _log_config_for(self, topic: str) -> LogConfig:
        overrides = self.broker.metadata_log.latest.config(ResourceType.TOPIC, topic)
        return topic_settings_for(overrides, self.broker.config).log

    def _controller(self, broker: Broker) -> LocalController:
        sessions = BrokerSessions(self.config.get_int("broker.session.timeout.ms"))
        context = ControllerContext(
            rules=TableRules(lambda: broker.config),
            random=self.random,
            node_id=broker.node_id,
            cluster_id=broker.cluster_id,
            quorum_ids=(broker.node_id,),
        )
        return LocalController(broker, context, sessions)

    async def _listen(self, network: Network) -> list[Endpoint]:
        """Bind, and say what clients are to be told: the advertised listeners, with the ports that were bound."""
        config = self.config
        for each in config.broker_listeners:
            host = each.host or "0.0.0.0"  # noqa: S104 - an empty host means all interfaces, as in Kafka
            self._listeners[each.listener] = await network.listen(host, each.port, self._dispatcher, name=each.listener)
        return [
            each._replace(port=each.port or self._listeners[each.listener].port, host=each.host or "localhost")
            for each in config.advertised_listeners
        ]

    def _publish(self, before: ClusterImage, after: ClusterImage) -> None:
        """The cluster changed: act on it before anybody is told that it did."""
        broker = self.broker
        broker.image = after
        delta = diff(before, after)
        self._reconfigure(updated_config(broker.config, after, delta))
        for topic in delta.topics_deleted:
            for index in topic.partitions:
                partition = broker.replicas.get(topic.topic_id, index)
                if partition is not None:
                    partition.is_leader = False
        broker.replicas.apply(after, delta, broker.config)
        broker.tell_coordinators(after, delta)
        for topic in delta.topics_deleted:
            for index in topic.partitions:
                _wake(broker, (topic.topic_id, index))
        broker.on_image_published()

    def _reconfigure(self, config: BrokerConfig) -> None:
        """Settings changed while running. What is read at each use needs nothing; these were copied at the start."""
        if config is self.broker.config:
            return
        self.broker.config = config
        self.broker.logs.settings = self._manager_settings(config)
        _set_limits(self._limits, config)

    async def stop(self) -> None:
        """Shut down cleanly: the next start needs no recovery."""
        broker = self.broker
        if self._lifecycle is not None:
            await self._lifecycle.shut_down()
        broker.controller.stop()
        broker.stop_coordinators()
        broker.fetch_purgatory.force_complete_everything()
        broker.produce_purgatory.force_complete_everything()
        await broker.replicas.stop()
        await broker.close_channels()
        await broker.network.stop(_DRAIN_MS)
        await self._dispatcher.stop()
        await broker.moves.stop()
        await self._housekeeping.stop()
        await broker.flusher.stop()
        await broker.metadata_log.close()
        broker.logs.close(broker.broker_epoch)
        self._timers.close()
        if self._threads is not None:
            self._threads.shutdown()

    def _manager_settings(self, config: BrokerConfig) -> ManagerSettings:
        settings = _manager_settings(config)
        # Whoever brings an executor wants no other threads.
        return settings if self._threads is not None else replace(settings, recovery_threads_per_data_dir=1)


def _wake(broker: Broker, key: tuple[bytes, int]) -> None:
    broker.produce_purgatory.check_and_complete(key)
    broker.fetch_purgatory.check_and_complete(key)


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
    limits.max_connections = config.get_int("max.connections")
    limits.max_per_address = config.get_int("max.connections.per.ip")
    limits.per_address_overrides = config.max_connections_per_ip_overrides
    limits.max_creation_rate = config.get_int("max.connection.creation.rate")


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
