"""Dynamic configs and feature levels."""

from dataclasses import replace

import pytest

from moldau.controller.configs import alter_configs, incremental_alter_configs
from moldau.controller.feature_updates import activation_records, update_features
from moldau.controller.features import (
    ELR_VERSION,
    FEATURES,
    METADATA_VERSION,
    SUPPORTED,
    VersionRange,
    bootstrap_records,
    loses_metadata,
    record_version,
    release_name,
)
from moldau.controller.fold import apply
from moldau.controller.image import EMPTY_IMAGE, ResourceType
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode
from tests.controller.test_partition_changes import alter
from tests.controller.world import World

SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
Incremental = m.IncrementalAlterConfigsRequest
Legacy = m.AlterConfigsRequest


@pytest.fixture
def world() -> World:
    made = World()
    made.register(0, 1)
    made.create("orders", 1, 2)
    return made


def change(
    world: World,
    *ops: tuple[str, int, str | None],
    kind: int = ResourceType.TOPIC,
    name: str = "orders",
    validate_only: bool = False,
) -> tuple[ErrorCode, str | None]:
    configs = [Incremental.AlterableConfig(key, op, value) for key, op, value in ops]
    request = Incremental([Incremental.AlterConfigsResource(kind, name, configs)], validate_only)
    (answer,) = world.run(incremental_alter_configs(world.image, request, world.context)).responses
    assert (answer.resource_type, answer.resource_name) == (kind, name)
    return ErrorCode(answer.error_code), answer.error_message


def test_set_and_delete(world: World) -> None:
    assert change(world, ("retention.ms", SET, "1"), ("a", SET, "b")) == (ErrorCode.NONE, None)
    assert change(world, ("retention.ms", SET, "2"), ("a", DELETE, None)) == (ErrorCode.NONE, None)
    assert world.image.config(ResourceType.TOPIC, "orders") == {"retention.ms": "2"}
    written = world.offset
    assert change(world, ("retention.ms", SET, "2")) == (ErrorCode.NONE, None)
    assert world.offset == written


def test_lists_grow_and_shrink_from_their_default(world: World) -> None:
    change(world, ("cleanup.policy", APPEND, "compact,delete"))
    assert world.image.config(ResourceType.TOPIC, "orders") == {"cleanup.policy": "delete,compact"}
    change(world, ("cleanup.policy", SUBTRACT, "delete,unknown"))
    assert world.image.config(ResourceType.TOPIC, "orders") == {"cleanup.policy": "compact"}
    assert change(world, ("retention.ms", APPEND, "1")) == (
        ErrorCode.INVALID_CONFIG,
        "Can't APPEND to key retention.ms because its type is not LIST.",
    )


def test_a_resource_changes_altogether_or_not_at_all(world: World) -> None:
    code, _ = change(world, ("a", SET, "1"), ("b", SET, "impossible"))
    assert code == ErrorCode.INVALID_CONFIG
    assert world.image.config(ResourceType.TOPIC, "orders") == {}
    assert change(world, ("a", SET, "1"), validate_only=True) == (ErrorCode.NONE, None)
    assert world.image.config(ResourceType.TOPIC, "orders") == {}


def test_resources_that_do_not_exist(world: World) -> None:
    assert change(world, ("a", SET, "1"), name="unknown") == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "The topic 'unknown' does not exist.",
    )
    broker = ResourceType.BROKER
    assert change(world, ("a", SET, "1"), kind=broker, name="x") == (
        ErrorCode.INVALID_REQUEST,
        "Invalid broker name x",
    )
    assert change(world, ("a", SET, "1"), kind=broker, name="77") == (
        ErrorCode.BROKER_ID_NOT_REGISTERED,
        "No node with id 77 found.",
    )
    assert change(world, ("a", SET, "1"), kind=99) == (ErrorCode.INVALID_REQUEST, "Unknown resource type 99")
    for name in ("", "0"):
        assert change(world, ("a", SET, "1"), kind=broker, name=name) == (ErrorCode.NONE, None)
    world.base = replace(world.base, quorum_ids=(77,))
    assert change(world, ("a", SET, "1"), kind=broker, name="77") == (ErrorCode.NONE, None)
    assert change(world, ("a", SET, "1"), kind=ResourceType.GROUP, name="any") == (ErrorCode.NONE, None)


def test_malformed_changes(world: World) -> None:
    invalid = ErrorCode.INVALID_REQUEST
    nulls = [("a", SET, None), ("b", DELETE, None), ("c", APPEND, None)]
    assert change(world, *nulls) == (invalid, "Null value not supported for : a, c")
    assert change(world, ("a", 9, "1")) == (invalid, "Unknown operations type 9")
    assert change(world, ("a", SET, "1"), ("a", SET, "2")) == (invalid, "Error due to duplicate config keys")
    assert change(world, ("a", SET, "x" * 32768))[0] == ErrorCode.INVALID_CONFIG
    assert change(world, ("a", SET, "x" * 32767))[0] == ErrorCode.NONE
    twice = Incremental.AlterConfigsResource(ResourceType.TOPIC, "orders", [])
    (answer,) = incremental_alter_configs(world.image, Incremental([twice, twice]), world.context).response.responses
    assert (answer.error_code, answer.error_message) == (ErrorCode.INVALID_REQUEST, "Duplicate resource.")


def test_brokers_hear_of_a_setting_again(world: World) -> None:
    """A keystore may have changed although its path has not."""
    for _ in range(2):
        before = world.offset
        change(world, ("ssl.keystore.location", SET, "/k"), kind=ResourceType.BROKER, name="0")
        assert world.offset == before + 1


def test_the_old_way_removes_what_it_does_not_mention(world: World) -> None:
    change(world, ("a", SET, "1"), ("b", SET, "2"))
    request = Legacy([Legacy.AlterConfigsResource(ResourceType.TOPIC, "orders", [Legacy.AlterableConfig("b", "3")])])
    (answer,) = world.run(alter_configs(world.image, request, world.context)).responses
    assert answer.error_code == ErrorCode.NONE
    assert world.image.config(ResourceType.TOPIC, "orders") == {"b": "3"}
    assert alter_configs(world.image, request.replace(validate_only=True), world.context).records == []
    request.resources[0].configs[0].value = None
    (answer,) = world.run(alter_configs(world.image, request, world.context)).responses
    assert (answer.error_code, answer.error_message) == (
        ErrorCode.INVALID_REQUEST,
        "Null value not supported for : b",
    )


def test_min_insync_replicas_is_the_clusters_while_elr_is_on(world: World) -> None:
    broker = ResourceType.BROKER
    assert world.image.config(broker, "") == {"min.insync.replicas": "1"}, "written when the cluster was made"
    assert change(world, ("min.insync.replicas", SET, "2"), kind=broker, name="0") == (
        ErrorCode.INVALID_CONFIG,
        "Broker-level min.insync.replicas cannot be altered while ELR is enabled.",
    )
    assert change(world, ("min.insync.replicas", DELETE, None), kind=broker, name="") == (
        ErrorCode.INVALID_CONFIG,
        "Cluster-level min.insync.replicas cannot be removed while ELR is enabled.",
    )
    assert change(world, ("min.insync.replicas", SET, "2"), kind=broker, name="") == (ErrorCode.NONE, None)


@pytest.mark.parametrize("kind", [ResourceType.TOPIC, ResourceType.BROKER])
def test_another_min_insync_replicas_clears_the_elr(world: World, kind: int) -> None:
    change(world, ("min.insync.replicas", SET, "2"))
    alter(world, [world.partition("orders").leader])
    assert len(world.partition("orders").elr) == 1
    name = "orders" if kind == ResourceType.TOPIC else ""
    assert change(world, ("min.insync.replicas", SET, "1"), kind=kind, name=name) == (ErrorCode.NONE, None)
    assert world.partition("orders").elr == ()


def test_a_new_cluster_starts_at_the_levels_of_kafka_4_3() -> None:
    levels = {
        record.name: record.feature_level for record in bootstrap_records() if isinstance(record, m.FeatureLevelRecord)
    }
    assert levels == {
        "metadata.version": 30,
        "transaction.version": 2,
        "group.version": 1,
        "eligible.leader.replicas.version": 1,
        "share.version": 1,
        "streams.version": 1,
    }
    assert release_name(30) == "4.3-IV0"
    assert release_name(7) == "3.3-IV3"
    older = {record.name for record in bootstrap_records(21) if isinstance(record, m.FeatureLevelRecord)}
    assert older == {"metadata.version"}
    with pytest.raises(ValueError, match=r"unknown features no\.such"):
        bootstrap_records(levels={"no.such": 1})


def test_activation_writes_the_bootstrap_once_and_aborts_what_was_left_open() -> None:
    world = World()
    context = world.context
    first = activation_records(EMPTY_IMAGE, context)
    assert isinstance(first[0], m.BeginTransactionRecord)
    assert isinstance(first[-1], m.EndTransactionRecord)
    image = apply(EMPTY_IMAGE, first)
    assert image.is_elr_enabled
    assert activation_records(image, context) == []
    half = apply(EMPTY_IMAGE, first[:3])
    again = activation_records(half, context)
    assert isinstance(again[0], m.AbortTransactionRecord)
    assert apply(half, again) == image
    open_transaction = apply(image, [m.BeginTransactionRecord("x")])
    assert [type(record).__name__ for record in activation_records(open_transaction, context)] == [
        "AbortTransactionRecord"
    ]


@pytest.mark.parametrize(
    ("record", "level", "version"),
    [
        (m.RegisterBrokerRecord(), 7, 1),
        (m.RegisterBrokerRecord(), 16, 2),
        (m.RegisterBrokerRecord(), 17, 3),
        (m.RegisterBrokerRecord(), 30, 4),
        (m.PartitionRecord(), 16, 0),
        (m.PartitionRecord(), 22, 1),
        (m.PartitionChangeRecord(), 23, 2),
        (m.BrokerRegistrationChangeRecord(1, 1, fenced=1), 30, 0),
        (m.BrokerRegistrationChangeRecord(1, 1, in_controlled_shutdown=1), 30, 1),
        (m.BrokerRegistrationChangeRecord(1, 1, log_dirs=[b"x" * 16]), 30, 2),
        (m.BrokerRegistrationChangeRecord(1, 1, cordoned_log_dirs=[]), 30, 3),
        (m.TopicRecord(), 30, 0),
    ],
)
def test_records_are_written_for_the_oldest_reader(record: m.TopicRecord, level: int, version: int) -> None:
    assert record_version(record, level) == version


def update(
    world: World, name: str, level: int, kind: int = UPGRADE, *, validate_only: bool = False
) -> tuple[ErrorCode, str | None]:
    key = m.UpdateFeaturesRequest.FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind)
    request = m.UpdateFeaturesRequest(feature_updates=[key], validate_only=validate_only)
    response = world.run(update_features(world.image, request, world.context))
    return ErrorCode(response.error_code), response.error_message


_PREFIX = "The update failed for all features since the following feature had an error: "


def test_levels_go_up_and_down(world: World) -> None:
    assert update(world, "group.version", 0, SAFE_DOWNGRADE, validate_only=True) == (ErrorCode.NONE, None)
    assert world.image.features["group.version"] == 1
    assert update(world, "group.version", 0, SAFE_DOWNGRADE) == (ErrorCode.NONE, None)
    assert "group.version" not in world.image.features
    assert update(world, "group.version", 1) == (ErrorCode.NONE, None)
    assert world.image.features["group.version"] == 1


@pytest.mark.parametrize(
    ("name", "level", "kind", "message"),
    [
        (
            "group.version",
            0,
            UPGRADE,
            "Invalid update version 0 for feature group.version. Can't downgrade the version of this feature without "
            "setting the upgrade type to either safe or unsafe downgrade.",
        ),
        (
            "group.version",
            7,
            UPGRADE,
            "Invalid update version 7 for feature group.version. Local controller 1000 only supports versions 0-1",
        ),
        (
            "no.such",
            1,
            UPGRADE,
            "Invalid update version 1 for feature no.such. Local controller 1000 does not support this feature.",
        ),
        (
            "group.version",
            -1,
            SAFE_DOWNGRADE,
            "Invalid update version -1 for feature group.version. A feature version cannot be less than 0.",
        ),
        (
            "group.version",
            1,
            9,
            "Invalid update version 1 for feature group.version. The controller does not support the given upgrade "
            "type.",
        ),
        (
            METADATA_VERSION,
            29,
            SAFE_DOWNGRADE,
            "Unsupported metadata.version downgrade from 30 to 29. Refusing to perform the requested downgrade because "
            "it might delete metadata information.",
        ),
        (
            METADATA_VERSION,
            29,
            UNSAFE_DOWNGRADE,
            "Unsupported metadata.version downgrade from 30 to 29. Unsafe metadata downgrade is not supported in this "
            "version.",
        ),
        (
            "kraft.version",
            0,
            SAFE_DOWNGRADE,
            "Invalid update version 0 for feature kraft.version. Can't downgrade the version of this feature.",
        ),
    ],
)
def test_levels_that_cannot_be(world: World, name: str, level: int, kind: int, message: str) -> None:
    assert update(world, name, level, kind) == (ErrorCode.INVALID_UPDATE_VERSION, _PREFIX + message)


def test_every_node_must_support_a_level(world: World) -> None:
    update(world, "share.version", 0, SAFE_DOWNGRADE)
    world.base = replace(world.base, quorum_ids=(1000, 1001))
    code, message = update(world, "share.version", 1)
    assert code == ErrorCode.INVALID_UPDATE_VERSION
    assert message is not None
    assert message.endswith("controller 1001 has not registered, and may not support this feature")
    register = m.RegisterControllerRecord(1001, b"c" * 16, features=[])
    world.commit([register])
    message = update(world, "share.version", 1)[1]
    assert message is not None
    assert message.endswith("Controller 1001 does not support this feature.")
    register.features = [m.RegisterControllerRecord.ControllerFeature("share.version", 0, 1)]
    world.commit([register])
    assert update(world, "share.version", 1) == (ErrorCode.NONE, None)


def test_a_level_may_need_another_feature() -> None:
    world = World(features={ELR_VERSION: 0})
    assert FEATURES[ELR_VERSION].needs == {1: {METADATA_VERSION: 23}}
    world.commit([m.FeatureLevelRecord(METADATA_VERSION, 22)])
    message = update(world, ELR_VERSION, 1)[1]
    assert message is not None
    assert message.endswith(
        "eligible.leader.replicas.version could not be set to 1 because it depends on metadata.version=23 (4.0-IV1)"
    )


def test_switching_elr_on_makes_min_insync_replicas_one_for_all() -> None:
    world = World(features={ELR_VERSION: 0}, min_insync_replicas="2")
    world.register(0)
    world.commit([m.ConfigRecord(ResourceType.BROKER, "0", "min.insync.replicas", "3")])
    assert world.image.config(ResourceType.BROKER, "") == {}
    assert update(world, ELR_VERSION, 1) == (ErrorCode.NONE, None)
    assert world.image.config(ResourceType.BROKER, "") == {"min.insync.replicas": "2"}
    assert world.image.config(ResourceType.BROKER, "0") == {}


def test_what_a_downgrade_would_lose() -> None:
    assert loses_metadata(30, 29)
    assert not loses_metadata(29, 23)
    assert loses_metadata(23, 22)
    assert str(SUPPORTED[METADATA_VERSION]) == "7-30"
    assert str(VersionRange(1, 1)) == "1"
