"""KIP-714: subscriptions, who may push when, and what becomes of it. The answers are those of Apache Kafka 4.3.1."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import Producer

from moldau.broker.requests import telemetry
from moldau.broker.requests.telemetry import Client, Instance, Push, Telemetry, check_get, check_push
from moldau.controller.image import ClusterImage, ConfigResource, ResourceType
from moldau.controller.persistent import PersistentMap
from moldau.records import Codec, compress
from moldau.seams.randomness import SeededRandom
from moldau.testing import Broker
from moldau.wire import ErrorCode
from moldau.wire import messages as m
from tests.broker.requests.handlers.conftest import on_loop
from tests.broker.requests.handlers.wire_client import WireClient

METRICS = 16
SET, DELETE = 0, 1


def image_with(**subscriptions: dict[str, str]) -> ClusterImage:
    configs: PersistentMap[ConfigResource, Any] = PersistentMap()
    for name, settings in subscriptions.items():
        configs = configs.with_entry(ConfigResource(ResourceType.CLIENT_METRICS, name), settings)
    return ClusterImage(configs=configs)


@dataclass
class FakeConnection:
    id: int = 1
    is_closed: bool = False


def client(number: int = 1, client_id: str | None = "app-1") -> Client:
    return Client(number.to_bytes(16, "big"), client_id, "librdkafka", "2.10.0", "10.0.0.7", 40_000)


def instance_of(
    manager: Telemetry, image: ClusterImage, who: Client, now_ms: float = 0, connection: int = 1
) -> Instance:
    # Of the connection only this much is looked at.
    work = manager.instance(image, FakeConnection(connection), who, now_ms)  # type: ignore[arg-type]
    while True:
        try:
            next(work)
        except StopIteration as done:
            found: Instance = done.value
            return found


@pytest.fixture
def manager() -> Telemetry:
    return Telemetry(SeededRandom(1))


def push(instance: Instance, now_ms: float, **changes: Any) -> ErrorCode:
    fields = {
        "subscription_id": instance.subscription_id,
        "compression_type": 0,
        "size_bytes": 10,
        "is_terminating": False,
        "max_bytes": 100,
    }
    return check_push(instance, now_ms=now_ms, **(fields | changes))


class TestSubscriptions:
    def test_without_one_nothing_is_wanted(self, manager: Telemetry) -> None:
        found = instance_of(manager, ClusterImage(), client())
        assert (found.metrics, found.interval_ms) == ((), 300_000)

    def test_all_that_match_are_joined_at_the_shortest_interval(self, manager: Telemetry) -> None:
        image = image_with(
            a={"metrics": "x.,y.", "interval.ms": "1000"},
            b={"metrics": "y.,z.", "interval.ms": "500", "match": "client_id=app-.*,client_software_name=librdkafka"},
            c={"metrics": "other.", "interval.ms": "100", "match": "client_id=app"},
            d={"metrics": "other.", "interval.ms": "100", "match": "client_source_port=1"},
        )
        found = instance_of(manager, image, client())
        assert (found.metrics, found.interval_ms) == (("x.", "y.", "z."), 500)
        nameless = instance_of(manager, image, client(2, client_id=None))
        assert (nameless.metrics, nameless.interval_ms) == (("x.", "y."), 1000)

    def test_one_that_wants_everything_is_enough(self, manager: Telemetry) -> None:
        image = image_with(a={"metrics": "x."}, b={"metrics": "*"})
        assert instance_of(manager, image, client()).metrics == ("*",)

    def test_a_change_gives_a_new_id_and_a_new_interval(self, manager: Telemetry) -> None:
        before = instance_of(manager, image_with(a={"metrics": "x."}), client())
        assert check_get(before, 0) == ErrorCode.NONE
        assert check_get(before, 1) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        after = instance_of(manager, image_with(a={"metrics": "y."}), client(), 2)
        assert after.subscription_id != before.subscription_id
        assert check_get(after, 2) == ErrorCode.NONE
        gone = instance_of(manager, image_with(a={}), client(), 3)
        assert gone.metrics == ()

    def test_other_configs_change_nothing(self, manager: Telemetry) -> None:
        image = image_with(a={"metrics": "x."})
        before = instance_of(manager, image, client())
        topic = ConfigResource(ResourceType.TOPIC, "t")
        changed = ClusterImage(configs=image.configs.with_entry(topic, {"retention.ms": "1"}))
        assert instance_of(manager, changed, client(), 1) is before

    def test_ids_differ_between_clients(self, manager: Telemetry) -> None:
        image = image_with(a={"metrics": "x."})
        ids = {instance_of(manager, image, client(number)).subscription_id for number in range(1, 100)}
        assert len(ids) == 99
        assert all(-(1 << 31) <= each < 1 << 31 for each in ids)


class TestTiming:
    @pytest.fixture
    def known(self, manager: Telemetry) -> Instance:
        return instance_of(manager, image_with(a={"metrics": "x.", "interval.ms": "1000"}), client())

    def test_the_first_push_after_a_get_may_come_any_time(self, known: Instance) -> None:
        assert check_get(known, 0) == ErrorCode.NONE
        assert push(known, 1) == ErrorCode.NONE
        assert push(known, 500) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert push(known, 1001) == ErrorCode.NONE

    def test_a_get_waits_for_the_interval_after_a_push_too(self, known: Instance) -> None:
        assert check_get(known, 0) == ErrorCode.NONE
        assert push(known, 500) == ErrorCode.NONE
        assert check_get(known, 1400) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert check_get(known, 1500) == ErrorCode.NONE

    @pytest.mark.parametrize(
        ("change", "error"),
        [
            ({"subscription_id": 0}, ErrorCode.UNKNOWN_SUBSCRIPTION_ID),
            ({"compression_type": 9}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ],
    )
    def test_a_push_that_shows_the_client_is_out_of_date_lets_it_ask(
        self, known: Instance, change: dict[str, int], error: ErrorCode
    ) -> None:
        assert check_get(known, 0) == ErrorCode.NONE
        assert push(known, 1, **change) == error
        assert check_get(known, 2) == ErrorCode.NONE
        assert check_get(known, 3) == ErrorCode.THROTTLING_QUOTA_EXCEEDED

    def test_the_last_push_is_never_early_and_really_the_last(self, known: Instance) -> None:
        assert push(known, 0) == ErrorCode.NONE
        assert push(known, 1, is_terminating=True) == ErrorCode.NONE
        assert push(known, 2, is_terminating=True) == ErrorCode.INVALID_REQUEST

    def test_too_large_is_refused(self, known: Instance) -> None:
        assert push(known, 0, size_bytes=101) == ErrorCode.TELEMETRY_TOO_LARGE
        assert push(known, 1000, size_bytes=100) == ErrorCode.NONE


class TestMemory:
    def test_clients_are_bounded_and_the_longest_unseen_goes(
        self, manager: Telemetry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(telemetry, "INSTANCES_MAX", 3)
        image = ClusterImage()
        first = instance_of(manager, image, client(1), connection=1)
        second = instance_of(manager, image, client(2), connection=2)
        instance_of(manager, image, client(3), connection=3)
        assert instance_of(manager, image, client(1)) is first
        instance_of(manager, image, client(4), connection=4)
        assert len(manager) == 3
        assert instance_of(manager, image, client(1)) is first
        assert instance_of(manager, image, client(2)) is not second

    def test_a_closed_connection_takes_its_client_along(self, manager: Telemetry) -> None:
        instance_of(manager, ClusterImage(), client(1), connection=7)
        manager.on_disconnect(FakeConnection(8))  # type: ignore[arg-type]  # only its id is looked at
        assert len(manager) == 1
        manager.on_disconnect(FakeConnection(7))  # type: ignore[arg-type]  # as above
        assert len(manager) == 0

    def test_the_silent_are_forgotten_after_three_intervals(self, manager: Telemetry) -> None:
        image = image_with(a={"metrics": "x.", "interval.ms": "30000"})
        known = instance_of(manager, image, client(), 0)
        assert instance_of(manager, image, client(), 89_999) is known
        assert instance_of(manager, image, client(), 89_999 + 90_000) is not known


@dataclass
class Keeper:
    pushes: list[Push] = field(default_factory=list)

    def receive(self, push: Push) -> None:
        if push.metrics == b"poison":
            raise ValueError("cannot read this")
        self.pushes.append(push)


class TestOverTheWire:
    @pytest.fixture
    def keeper(self, broker: Broker, client: WireClient) -> Iterator[Keeper]:
        keeper = Keeper()
        manager = on_loop(broker, lambda: broker.node.broker.telemetry)
        former = manager.receiver
        on_loop(broker, lambda: setattr(manager, "receiver", keeper))
        assert client.alter(METRICS, "all", ("metrics", SET, "*"), ("interval.ms", SET, "100")).error_code == 0
        yield keeper
        assert client.alter(METRICS, "all", ("metrics", DELETE, None), ("interval.ms", DELETE, None)).error_code == 0
        on_loop(broker, lambda: setattr(manager, "receiver", former))

    @pytest.mark.parametrize("codec", list(Codec))
    def test_metrics_reach_the_receiver(self, client: WireClient, keeper: Keeper, codec: Codec) -> None:
        begun = client.ask(m.GetTelemetrySubscriptionsRequest())
        assert begun.error_code == 0
        assert (begun.push_interval_ms, begun.requested_metrics, begun.delta_temporality) == (100, ["*"], True)
        assert begun.accepted_compression_types == [4, 3, 1, 2]
        assert begun.telemetry_max_bytes == 1_048_576
        body = compress(codec, b"metrics" * 1000)
        answer = client.ask(m.PushTelemetryRequest(begun.client_instance_id, begun.subscription_id, False, codec, body))
        assert answer.error_code == 0
        (push,) = keeper.pushes
        assert (push.metrics, push.is_terminating) == (b"metrics" * 1000, False)
        assert push.client.instance_id == begun.client_instance_id
        assert (push.client.client_id, push.client.address) == ("wire-client", "127.0.0.1")

    @pytest.mark.parametrize("metrics", [b"poison", b""])
    def test_a_receiver_that_fails_is_not_the_client_s_end(
        self, client: WireClient, keeper: Keeper, metrics: bytes
    ) -> None:
        begun = client.ask(m.GetTelemetrySubscriptionsRequest())
        answer = client.ask(m.PushTelemetryRequest(begun.client_instance_id, begun.subscription_id, metrics=metrics))
        assert answer.error_code == (ErrorCode.INVALID_RECORD if metrics else 0)
        assert keeper.pushes == []

    @pytest.mark.parametrize("metrics", [b"not gzip", compress(Codec.GZIP, bytes(70 << 20))])
    def test_what_cannot_be_unpacked_is_refused(self, client: WireClient, keeper: Keeper, metrics: bytes) -> None:
        begun = client.ask(m.GetTelemetrySubscriptionsRequest())
        request = m.PushTelemetryRequest(begun.client_instance_id, begun.subscription_id, False, Codec.GZIP, metrics)
        assert client.ask(request).error_code == ErrorCode.INVALID_RECORD
        assert keeper.pushes == []

    @pytest.mark.parametrize("instance_id", [bytes(16), bytes(15) + b"\x01"])
    def test_reserved_ids_push_nothing(self, client: WireClient, instance_id: bytes) -> None:
        request = m.PushTelemetryRequest(instance_id, 1, metrics=b"x")
        assert client.ask(request).error_code == ErrorCode.INVALID_REQUEST

    def test_a_client_nobody_knows_yet_has_no_such_subscription(self, client: WireClient, keeper: Keeper) -> None:
        request = m.PushTelemetryRequest(b"\x42" * 16, 1, metrics=b"x")
        assert client.ask(request).error_code == ErrorCode.UNKNOWN_SUBSCRIPTION_ID

    def test_the_built_in_receiver_counts(self, own_broker: Broker, own_client: WireClient) -> None:
        begun = own_client.ask(m.GetTelemetrySubscriptionsRequest())
        request = m.PushTelemetryRequest(begun.client_instance_id, begun.subscription_id, metrics=b"12345")
        assert own_client.ask(request).error_code == 0
        assert own_broker.node.broker.telemetry.receiver == telemetry.CountingReceiver(1, 5)


def test_a_pattern_that_backtracking_never_finishes_is_soon_matched(manager: Telemetry) -> None:
    image = image_with(greedy={"metrics": "*", "match": "client_id=(a+)+$"})
    assert instance_of(manager, image, client(1, "a" * 60 + "!")).metrics == ()
    assert instance_of(manager, image, client(2, "a" * 60)).metrics == ("*",)


def test_a_long_match_lets_others_have_their_turn(manager: Telemetry) -> None:
    image = image_with(greedy={"metrics": "*", "match": "client_id=(a|b)*a(a|b){300}"})
    work = manager.instance(image, FakeConnection(), client(1, "ab" * 10_000), 0)  # type: ignore[arg-type]  # as above
    assert sum(1 for _ in work) > 50


def test_the_apis_are_offered_only_if_somebody_subscribed(own_client: WireClient) -> None:
    """As with Kafka, which offers them only with a plug-in: clients that find them ask at once, and again and again."""
    asked = m.ApiVersionsRequest(client_software_name="test", client_software_version="1")

    def offered() -> set[int]:
        return {each.api_key for each in own_client.ask(asked).api_keys} & {71, 72}

    assert offered() == set()
    assert own_client.ask(m.GetTelemetrySubscriptionsRequest(bytes(16))).error_code == ErrorCode.NONE, "but served"
    own_client.alter(METRICS, "mine", ("metrics", SET, "org."))
    assert offered() == {71, 72}
    own_client.alter(METRICS, "mine", ("metrics", DELETE, None))
    assert offered() == set()


def test_a_stock_client_has_nothing_to_say(own_broker: Broker) -> None:
    said: list[str] = []
    logger = logging.getLogger("test.telemetry.stock")
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]  # shorter than a class
    logger.addHandler(handler)
    producer = Producer({"bootstrap.servers": own_broker.bootstrap_servers}, logger=logger)
    producer.list_topics(timeout=20)
    # librdkafka looks for a broker with telemetry a second after it began; that it found none it does not say.
    for _ in range(15):
        producer.poll(0.1)
    assert said == []
