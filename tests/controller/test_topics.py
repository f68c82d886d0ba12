"""CreateTopics, DeleteTopics and CreatePartitions, with the codes and words Kafka 4.3 answers with."""

from dataclasses import replace

import pytest

from moldau.controller.context import ControllerResult
from moldau.controller.delta import diff
from moldau.controller.errors import ApiError
from moldau.controller.image import ConfigResource, ResourceType
from moldau.controller.topics import create_partitions, create_topics, delete_topics
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode
from moldau.wire.primitives import ZERO_UUID
from tests.controller.world import Rules, World

Topic = m.CreateTopicsRequest.CreatableTopic
Assignment = m.CreateTopicsRequest.CreatableReplicaAssignment
Config = m.CreateTopicsRequest.CreatableTopicConfig
State = m.DeleteTopicsRequest.DeleteTopicState


@pytest.fixture
def world() -> World:
    made = World()
    made.register(0, 1, 2)
    return made


def _create(world: World, *topics: Topic, validate_only: bool = False) -> ControllerResult[m.CreateTopicsResponse]:
    return create_topics(world.image, m.CreateTopicsRequest(list(topics), validate_only=validate_only), world.context)


def _refusal(world: World, topic: Topic) -> tuple[ErrorCode, str | None]:
    result = _create(world, topic)
    assert result.records == []
    (answer,) = result.response.topics
    return ErrorCode(answer.error_code), answer.error_message


def test_a_created_topic_is_in_the_image(world: World) -> None:
    answer = world.create("orders", 3, 2, retention_ms="1000")
    assert answer.error_code == ErrorCode.NONE
    assert (answer.num_partitions, answer.replication_factor) == (3, 2)
    topic = world.image.topics["orders"]
    assert world.image.topic_by_id(answer.topic_id) == topic
    assert list(topic.partitions) == [0, 1, 2]
    for partition in topic.partitions.values():
        assert partition.isr == partition.replicas
        assert partition.leader == partition.replicas[0]
        assert (partition.leader_epoch, partition.partition_epoch) == (0, 0)
        assert partition.directories == tuple(world.image.brokers[b].directories[0] for b in partition.replicas)
    assert world.image.config(ResourceType.TOPIC, "orders") == {"retention.ms": "1000"}


def test_configs_come_between_the_topic_and_its_partitions(world: World) -> None:
    topic = Topic("orders", 1, 1, configs=[m.CreateTopicsRequest.CreatableTopicConfig("retention.ms", "1")])
    kinds = [type(record).__name__ for record in _create(world, topic).records]
    assert kinds == ["TopicRecord", "ConfigRecord", "PartitionRecord"]


def test_minus_one_means_the_defaults(world: World) -> None:
    world.base = replace(world.base, default_partitions=4, default_replication_factor=3)
    answer = world.create("orders", -1, -1)
    assert (answer.num_partitions, answer.replication_factor) == (4, 3)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "the empty string is not allowed"),
        (".", "'.' is not allowed"),
        ("..", "'..' is not allowed"),
        ("a b", "'a b' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"),
        ("größe", "'größe' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"),
        ("a\n", "'a\n' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"),
        ("x" * 250, f"the length of '{'x' * 250}' is longer than the max allowed length 249"),
    ],
)
def test_names_that_are_not_allowed(world: World, name: str, reason: str) -> None:
    expected = (ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {reason}")
    assert _refusal(world, Topic(name, 1, 1)) == expected


def test_the_longest_name_is_allowed(world: World) -> None:
    assert world.create("x" * 249).error_code == ErrorCode.NONE


def test_a_dot_and_an_underscore_are_the_same_to_metrics(world: World) -> None:
    world.create("a.b_c")
    expected = (ErrorCode.INVALID_TOPIC_EXCEPTION, "Topic 'a_b.c' collides with existing topic: a.b_c")
    assert _refusal(world, Topic("a_b.c", 1, 1)) == expected
    world.run(delete_topics(world.image, m.DeleteTopicsRequest(topic_names=["a.b_c"]), world.context))
    assert world.create("a_b.c").error_code == ErrorCode.NONE


def test_a_topic_exists_once(world: World) -> None:
    world.create("a.b")
    assert _refusal(world, Topic("a.b", 1, 1)) == (ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 'a.b' already exists.")


def test_the_metadata_topic_is_not_for_users(world: World) -> None:
    expected = (ErrorCode.INVALID_REQUEST, "Creation of internal topic __cluster_metadata is prohibited.")
    assert _refusal(world, Topic("__cluster_metadata", 1, 1)) == expected


@pytest.mark.parametrize(
    ("partitions", "replicas", "code", "message"),
    [
        (0, 1, ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."),
        (-2, 1, ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."),
        (
            1,
            0,
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        ),
        (
            1,
            4,
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Unable to replicate the partition 4 time(s): The target replication factor of 4 cannot be reached because "
            "only 3 broker(s) are registered or some brokers have all their log directories cordoned.",
        ),
        (10_001, 1, ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request."),
        (10_000, 1, ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation."),
    ],
)
def test_impossible_numbers(world: World, partitions: int, replicas: int, code: ErrorCode, message: str) -> None:
    assert _refusal(world, Topic("orders", partitions, replicas)) == (code, message)


def test_what_makes_too_many_records_is_not_decided_to_its_end(world: World) -> None:
    """Each topic makes two: at the 5,001st it is clear."""
    described = 0

    class CountingRules(Rules):
        def describe_topic(self, *_: object) -> list[m.CreateTopicsResponse.CreatableTopicConfigs]:
            nonlocal described
            described += 1
            return []

    world.base = replace(world.base, rules=CountingRules())
    request = m.CreateTopicsRequest([Topic(f"t{number}", 1, 1) for number in range(9_000)], 1_000)
    result = create_topics(world.image, request, world.context)
    assert not result.records
    assert {topic.error_code for topic in result.response.topics} == {ErrorCode.POLICY_VIOLATION}
    assert (len(result.response.topics), described) == (9_000, 5_001)


def test_fenced_brokers_get_replicas_last_and_never_lead(world: World) -> None:
    world.fence(0)
    world.create("two", 10, 2)
    assert all(0 not in p.replicas for p in world.image.topics["two"].partitions.values())
    world.create("three", 10, 3)
    for partition in world.image.topics["three"].partitions.values():
        assert partition.replicas[-1] == 0
        assert 0 not in partition.isr
    world.fence(1, 2)
    code, message = _refusal(world, Topic("none", 1, 1))
    assert code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert message == "Unable to replicate the partition 1 time(s): All brokers are currently fenced."


def test_a_cordoned_broker_gets_no_new_replicas(world: World) -> None:
    world.heartbeat(1, cordoned=list(world.image.brokers[1].directories))
    world.create("orders", 20, 2)
    assert all(1 not in p.replicas for p in world.image.topics["orders"].partitions.values())


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        ([Assignment(0, [])], "The manual partition assignment includes an empty replica list."),
        (
            [Assignment(0, [0, 9])],
            "The manual partition assignment includes broker 9, but no such broker is registered.",
        ),
        ([Assignment(0, [1, 0, 1])], "The manual partition assignment includes the broker 1 more than once."),
        (
            [Assignment(0, [0, 1]), Assignment(1, [2])],
            "The manual partition assignment includes a partition with 1 replica(s), but this is not consistent with "
            "previous partitions, which have 2 replica(s).",
        ),
        (
            [Assignment(0, [0]), Assignment(0, [1])],
            "Found multiple manual partition assignments for partition 0",
        ),
        ([Assignment(1, [0])], "partitions should be a consecutive 0-based integer sequence"),
    ],
)
def test_assignments_by_hand_are_checked(world: World, assignments: list[Assignment], message: str) -> None:
    expected = (ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    assert _refusal(world, Topic("orders", -1, -1, assignments)) == expected


def test_an_assignment_by_hand_leaves_no_numbers_to_choose(world: World) -> None:
    by_hand = [Assignment(0, [0])]
    assert _refusal(world, Topic("orders", 1, -1, by_hand)) == (
        ErrorCode.INVALID_REQUEST,
        "A manual partition assignment was specified, but numPartitions was not set to -1.",
    )
    assert _refusal(world, Topic("orders", -1, 1, by_hand)) == (
        ErrorCode.INVALID_REQUEST,
        "A manual partition assignment was specified, but replication factor was not set to -1.",
    )


def test_an_assignment_by_hand_needs_somebody_alive(world: World) -> None:
    world.fence(1)
    code, message = _refusal(world, Topic("orders", -1, -1, [Assignment(0, [1])]))
    assert code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert message is not None
    assert message.startswith("All brokers specified in the manual partition assignment for partition 0 are fenced")
    world.create_assigned("orders", [1, 0])
    assert world.partition("orders").isr == (0,)
    assert world.partition("orders").leader == 0


def test_configs_are_checked_and_null_is_no_value(world: World) -> None:
    assert _refusal(world, Topic("a", 1, 1, configs=[Config("retention.ms", None), Config("x", None)])) == (
        ErrorCode.INVALID_CONFIG,
        "Null value not supported for topic configs: retention.ms,x",
    )
    code, _ = _refusal(world, Topic("a", 1, 1, configs=[Config("retention.ms", "impossible")]))
    assert code == ErrorCode.INVALID_CONFIG


def test_one_bad_topic_does_not_spoil_the_others(world: World) -> None:
    result = _create(world, Topic("good", 1, 1), Topic("bad", 0, 1), Topic("twice", 1, 1), Topic("twice", 2, 1))
    codes = {topic.name: topic.error_code for topic in result.response.topics}
    assert codes == {
        "good": ErrorCode.NONE,
        "bad": ErrorCode.INVALID_PARTITIONS,
        "twice": ErrorCode.INVALID_REQUEST,
    }
    world.run(result)
    assert list(world.image.topics) == ["good"]


def test_validate_only_creates_nothing(world: World) -> None:
    result = _create(world, Topic("orders", 1, 1), validate_only=True)
    assert result.response.topics[0].error_code == ErrorCode.NONE
    assert result.records == []


def test_configs_are_shown_to_those_who_may_see_them(world: World) -> None:
    world.base = replace(world.base, may_describe_configs=lambda name: False)
    answer = world.create("orders", 2, 1, retention_ms="1")
    assert answer.error_code == ErrorCode.NONE
    assert answer.topic_config_error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert (answer.num_partitions, answer.replication_factor, answer.configs) == (-1, -1, [])


def test_the_mutation_quota_is_charged_per_partition(world: World) -> None:
    charged: list[int] = []

    def charge(partitions: int) -> None:
        charged.append(partitions)
        if sum(charged) > 10:
            raise ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "later")

    world.base = replace(world.base, charge_partitions=charge)
    assert world.create("a", 6).error_code == ErrorCode.NONE
    assert world.create("b", 6).error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert charged == [6, 6]
    assert "b" not in world.image.topics


class CountedName(str):
    """Counts how often names are compared: more than a few times per topic is quadratic."""

    __slots__ = ()
    comparisons = 0

    def __eq__(self, other: object) -> bool:
        CountedName.comparisons += 1
        return str.__eq__(self, other) if isinstance(other, str) else NotImplemented

    __hash__ = str.__hash__


@pytest.mark.parametrize("what", ["topics", "partitions"])
def test_doubled_names_are_found_in_linear_time(world: World, what: str) -> None:
    names = [CountedName(f"topic-{number % 1_000}") for number in range(2_000)]
    CountedName.comparisons = 0
    if what == "topics":
        refused = [each.error_code for each in _create(world, *(Topic(name, 1, 1) for name in names)).response.topics]
    else:
        wanted = m.CreatePartitionsRequest.CreatePartitionsTopic
        request = m.CreatePartitionsRequest([wanted(name, 2, None) for name in names])
        refused = [e.error_code for e in create_partitions(world.image, request, world.context).response.results]
    assert refused == [ErrorCode.INVALID_REQUEST] * 1_000
    assert CountedName.comparisons < 20 * len(names)


def test_new_partitions_have_the_limit_of_new_topics(world: World) -> None:
    """Together, not each topic on its own: a command is carried out as a whole, and everybody waits for it."""
    for name in "abc":
        world.create(name)
    wanted = m.CreatePartitionsRequest.CreatePartitionsTopic
    request = m.CreatePartitionsRequest([wanted(name, 3_335, None) for name in "abc"])
    result = create_partitions(world.image, request, world.context)
    assert result.records == []
    expected = (ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")
    assert {(each.error_code, each.error_message) for each in result.response.results} == {expected}
    request.topics.pop()
    assert len(create_partitions(world.image, request, world.context).records) == 6_668


def _delete(world: World, *states: m.DeleteTopicsRequest.DeleteTopicState) -> ControllerResult[m.DeleteTopicsResponse]:
    return delete_topics(world.image, m.DeleteTopicsRequest(list(states)), world.context)


def test_a_deleted_topic_takes_its_configs_with_it(world: World) -> None:
    topic_id = world.create("orders", 2, 1, retention_ms="1").topic_id
    before = world.image
    result = _delete(world, State(topic_id=topic_id))
    assert [(r.name, r.topic_id, r.error_code) for r in result.response.responses] == [("orders", topic_id, 0)]
    world.run(result)
    assert "orders" not in world.image.topics
    assert topic_id not in world.image.topic_names
    assert ConfigResource(ResourceType.TOPIC, "orders") not in world.image.configs
    assert [topic.name for topic in diff(before, world.image).topics_deleted] == ["orders"]


def test_a_topic_deleted_and_created_again_is_another_topic(world: World) -> None:
    world.create("orders")
    before = world.image
    world.run(_delete(world, State("orders")))
    world.create("orders")
    delta = diff(before, world.image)
    assert [topic.topic_id for topic in delta.topics_deleted] == [before.topics["orders"].topic_id]
    assert [topic.topic_id for topic in delta.topics_created] == [world.image.topics["orders"].topic_id]


def test_what_cannot_be_deleted(world: World) -> None:
    topic_id = world.create("a").topic_id
    world.create("b")
    result = _delete(
        world,
        State("unknown"),
        State(topic_id=b"u" * 16),
        State(),
        State("a", topic_id),
        State("b"),
        State("b"),
    )
    assert result.records == []
    found = {(r.name, r.topic_id): (r.error_code, r.error_message) for r in result.response.responses}
    assert found[("unknown", ZERO_UUID)][0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert found[(None, b"u" * 16)][0] == ErrorCode.UNKNOWN_TOPIC_ID
    assert found[(None, ZERO_UUID)] == (ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
    assert found[("a", topic_id)] == (ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
    assert found[("b", ZERO_UUID)] == (ErrorCode.INVALID_REQUEST, "Duplicate topic name.")


def test_a_name_and_its_id_are_the_same_topic_twice(world: World) -> None:
    topic_id = world.create("a").topic_id
    result = _delete(world, State("a"), State(topic_id=topic_id))
    assert result.records == []
    (answer,) = result.response.responses
    assert answer.error_message == "The provided topic name maps to an ID that was already supplied."


def test_named_twice_a_topic_does_not_show_whether_it_exists(world: World) -> None:
    world.create("there")
    result = _delete(world, *(State(name) for name in ("there", "nowhere", "there", "nowhere")))
    assert result.records == []
    told = [(each.name, each.error_code, each.error_message) for each in result.response.responses]
    assert told == [(name, ErrorCode.INVALID_REQUEST, "Duplicate topic name.") for name in ("there", "nowhere")]


def test_a_name_twice_and_its_id_deletes_nothing(world: World) -> None:
    topic_id = world.create("a").topic_id
    result = _delete(world, State("a"), State("a"), State(topic_id=topic_id))
    assert result.records == []
    assert {each.error_code for each in result.response.responses} == {ErrorCode.INVALID_REQUEST}


def test_deletion_can_be_switched_off(world: World) -> None:
    world.create("a")
    world.base = replace(world.base, delete_topic_enable=False)
    (answer,) = _delete(world, State("a")).response.responses
    assert answer.error_code == ErrorCode.TOPIC_DELETION_DISABLED


def _add(
    world: World, name: str, count: int, assignments: list[list[int]] | None = None
) -> tuple[ErrorCode, str | None]:
    by_hand = (
        None
        if assignments is None
        else [m.CreatePartitionsRequest.CreatePartitionsAssignment(list(brokers)) for brokers in assignments]
    )
    request = m.CreatePartitionsRequest([m.CreatePartitionsRequest.CreatePartitionsTopic(name, count, by_hand)])
    (result,) = world.run(create_partitions(world.image, request, world.context)).results
    return ErrorCode(result.error_code), result.error_message


def test_partitions_are_added_behind_the_others(world: World) -> None:
    world.create("orders", 2, 2)
    before = world.image
    assert _add(world, "orders", 5) == (ErrorCode.NONE, None)
    delta = diff(before, world.image)
    assert [change.partition_id for change in delta.partitions] == [2, 3, 4]
    assert all(change.before is None and len(change.after.replicas) == 2 for change in delta.partitions)
    assert delta.topics_created == ()
    assert _add(world, "orders", 6, [[2, 1]]) == (ErrorCode.NONE, None)
    assert world.partition("orders", 5).replicas == (2, 1)


def test_partitions_that_cannot_be_added(world: World) -> None:
    world.create("orders", 3, 2)
    assert _add(world, "unknown", 5) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None)
    assert _add(world, "orders", 3) == (ErrorCode.INVALID_PARTITIONS, "Topic already has 3 partition(s).")
    assert _add(world, "orders", 2) == (
        ErrorCode.INVALID_PARTITIONS,
        "The topic orders currently has 3 partition(s); 2 would not be an increase.",
    )
    assert _add(world, "orders", 5, [[0, 1]]) == (
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified.",
    )
    code, _ = _add(world, "orders", 4, [[0]])
    assert code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert len(world.image.topics["orders"].partitions) == 3
