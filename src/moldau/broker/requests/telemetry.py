"""Metrics that clients push (KIP-714): who subscribes to what, who may push when, and where it goes.

Subscriptions are the `client-metrics` configs of the cluster's image. A client is known by its instance id, which the
broker gives it on its first request; it gets the union of all subscriptions that match it, with the shortest interval.

Invariants
- At most `INSTANCES_MAX` clients are remembered; the one longest unseen goes first, and a closed connection takes its
  client with it.
- A client is asked to wait when it comes before its interval is over; a changed subscription starts a new interval.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from moldau.broker.config import client_metrics_values, parse_match
from moldau.controller.image import ClusterImage, ConfigResource, ResourceType, is_reserved_dir
from moldau.controller.persistent import PersistentMap, changed_keys
from moldau.groups.regex import Regex
from moldau.log.checkpoints import uuid_text
from moldau.records import Codec
from moldau.records.checksum import crc32c
from moldau.seams import Random
from moldau.seams.network import Connection
from moldau.timers.turns import Slices
from moldau.wire import ZERO_UUID, ErrorCode

_log = logging.getLogger(__name__)

INSTANCES_MAX = 16_384
INTERVAL_MS_DEFAULT = 300_000
ALL_METRICS = "*"
_FORGET_AFTER_MS = 60_000
_FORGET_AFTER_INTERVALS = 3
_COME_AGAIN_AFTER = (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)


class Client(NamedTuple):
    """Who pushes; `match` of a subscription looks at these."""

    instance_id: bytes
    client_id: str | None
    software_name: str
    software_version: str
    address: str
    port: int

    def attributes(self) -> dict[str, str | None]:
        """By the selectors of `match`."""
        return {
            "client_instance_id": uuid_text(self.instance_id),
            "client_id": self.client_id,
            "client_software_name": self.software_name,
            "client_software_version": self.software_version,
            "client_source_address": self.address,
            "client_source_port": str(self.port),
        }


class Push(NamedTuple):
    client: Client
    metrics: bytes  # OpenTelemetry's MetricsData, as protobuf, decompressed
    is_terminating: bool  # the client says goodbye


class Receiver(Protocol):
    """Where pushed metrics go. Called on the loop: be quick, or hand over."""

    def receive(self, push: Push) -> None:
        """Any exception is answered INVALID_RECORD."""


@dataclass(slots=True)
class CountingReceiver:
    """The built-in receiver: counts what comes, and says so in the log at DEBUG."""

    pushes: int = 0
    received_bytes: int = 0

    def receive(self, push: Push) -> None:
        self.pushes += 1
        self.received_bytes += len(push.metrics)
        _log.debug("%d bytes of metrics from %s", len(push.metrics), push.client)


class _Subscription(NamedTuple):
    metrics: frozenset[str]
    interval_ms: int
    match: Mapping[str, str]


@dataclass(slots=True)
class Instance:
    """What is remembered about a client."""

    client: Client
    subscription_id: int
    version: int
    metrics: tuple[str, ...]
    interval_ms: int
    last_get_ms: float = -math.inf
    last_push_ms: float = -math.inf
    forget_at_ms: float = math.inf
    is_terminating: bool = False
    last_error: ErrorCode = ErrorCode.NONE


@dataclass(slots=True)
class Telemetry:
    """Belongs to the event loop."""

    random: Random
    receiver: Receiver = field(default_factory=CountingReceiver)
    _configs: PersistentMap[ConfigResource, Mapping[str, str]] = field(default_factory=PersistentMap)
    _subscriptions: dict[str, _Subscription] = field(default_factory=dict)
    _version: int = 0
    _instances: OrderedDict[bytes, Instance] = field(default_factory=OrderedDict)
    _by_connection: dict[int, bytes] = field(default_factory=dict)

    def __len__(self) -> int:
        """Clients remembered."""
        return len(self._instances)

    def is_wanted(self, image: ClusterImage) -> bool:
        """Whether anybody subscribed to metrics. Only then are the two APIs offered (ApiVersions): clients that find
        them ask at once, and again and again. (Kafka offers them if a plug-in is there that receives metrics.)"""
        self._update(image)
        return bool(self._subscriptions)

    def new_instance_id(self) -> bytes:
        instance_id = self.random.uuid()
        while instance_id in self._instances:
            instance_id = self.random.uuid()
        return instance_id

    def instance(self, image: ClusterImage, connection: Connection, client: Client, now_ms: float) -> Slices[Instance]:
        """The client, with the subscription it has as of now."""
        self._update(image)
        known = self._instances.get(client.instance_id)
        if known is None or known.version != self._version or now_ms >= known.forget_at_ms:
            is_new = known is None
            known = yield from self._subscribe(known.client if known else client)
            if is_new and not connection.is_closed:
                self._make_room()
                self._by_connection[connection.id] = client.instance_id
            self._instances[client.instance_id] = known
        self._instances.move_to_end(client.instance_id)
        known.forget_at_ms = now_ms + max(_FORGET_AFTER_MS, known.interval_ms * _FORGET_AFTER_INTERVALS)
        return known

    def _make_room(self) -> None:
        if len(self._instances) >= INSTANCES_MAX:
            self._instances.popitem(last=False)

    def on_disconnect(self, connection: Connection) -> None:
        instance_id = self._by_connection.pop(connection.id, None)
        if instance_id is not None:
            self._instances.pop(instance_id, None)

    def _update(self, image: ClusterImage) -> None:
        """Take over what changed in the configs since the last look."""
        before, self._configs = self._configs, image.configs
        if before is image.configs:
            return
        for resource in changed_keys(before, image.configs):
            if resource.type != ResourceType.CLIENT_METRICS:
                continue
            self._version += 1
            settings = image.config(*resource)
            if settings:
                self._subscriptions[resource.name] = _parse(settings)
            else:
                self._subscriptions.pop(resource.name, None)

    def _subscribe(self, client: Client) -> Slices[Instance]:
        metrics: set[str] = set()
        interval_ms = INTERVAL_MS_DEFAULT
        version = self._version
        attributes = client.attributes()
        for subscription in tuple(self._subscriptions.values()):
            is_meant = True
            for name, pattern in subscription.match.items():
                yield
                is_meant = is_meant and (yield from _matches(pattern, attributes[name]))
            if is_meant:
                metrics |= subscription.metrics
                interval_ms = min(interval_ms, subscription.interval_ms)
        wanted = (ALL_METRICS,) if ALL_METRICS in metrics else tuple(sorted(metrics))
        subscription_id = _subscription_id(wanted, interval_ms, client.instance_id)
        return Instance(client, subscription_id, version, wanted, interval_ms)


def _parse(settings: Mapping[str, str]) -> _Subscription:
    values = client_metrics_values(settings)
    metrics, interval_ms, match = values["metrics"], values["interval.ms"], values["match"]
    assert isinstance(metrics, tuple)
    assert isinstance(interval_ms, int)
    assert isinstance(match, tuple)
    return _Subscription(frozenset(metrics), interval_ms, parse_match(match))


def _matches(pattern: str, attribute: str | None) -> Slices[bool]:
    if attribute is None:
        return False
    return (yield from Regex(pattern, frozenset(attribute)).slices(attribute))


def _subscription_id(metrics: tuple[str, ...], interval_ms: int, instance_id: bytes) -> int:
    """Changes whenever what the client shall push changes, and differs between clients."""
    number = crc32c(f"{metrics}{interval_ms}".encode()) ^ crc32c(instance_id)
    return number - (1 << 32) if number >= 1 << 31 else number


def check_get(instance: Instance, now_ms: float) -> ErrorCode:
    """Whether the client may ask for its subscription now; an error in between is a reason to."""
    if now_ms - max(instance.last_get_ms, instance.last_push_ms) >= instance.interval_ms:
        instance.last_get_ms = now_ms
    elif instance.last_error not in _COME_AGAIN_AFTER:
        return ErrorCode.THROTTLING_QUOTA_EXCEEDED
    instance.last_error = ErrorCode.NONE
    return ErrorCode.NONE


def check_push(
    instance: Instance,
    *,
    subscription_id: int,
    compression_type: int,
    size_bytes: int,
    is_terminating: bool,
    now_ms: float,
    max_bytes: int,
) -> ErrorCode:
    """Whether this push is taken. The first one after a Get is, whenever it comes; so is the last one of a client."""
    error = ErrorCode.NONE
    in_time = instance.last_get_ms > instance.last_push_ms or now_ms - instance.last_push_ms >= instance.interval_ms
    if instance.is_terminating:
        error = ErrorCode.INVALID_REQUEST
    elif not in_time and not is_terminating:
        error = ErrorCode.THROTTLING_QUOTA_EXCEEDED
    else:
        if in_time:
            instance.last_push_ms = now_ms
        if subscription_id != instance.subscription_id:
            error = ErrorCode.UNKNOWN_SUBSCRIPTION_ID
        elif compression_type not in Codec._value2member_map_:
            error = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        elif size_bytes > max_bytes:
            error = ErrorCode.TELEMETRY_TOO_LARGE
    instance.is_terminating = is_terminating
    instance.last_error = error
    return error


def is_usable_instance_id(instance_id: bytes) -> bool:
    return instance_id != ZERO_UUID and not is_reserved_dir(instance_id)
