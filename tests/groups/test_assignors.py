"""The server-side assignors: complete, without overlap, balanced, and with few moves."""

from hypothesis import given
from hypothesis import strategies as st

from moldau.groups.assignors import ASSIGNORS, GroupSpec, MemberSpec, TargetAssignment, assign_range, assign_uniform
from moldau.groups.consumer import SubscriptionType

A, B, C = (bytes([value]) * 16 for value in (1, 2, 3))


def spec(members: dict[str, set[bytes]], counts: dict[bytes, int], former: TargetAssignment | None = None) -> GroupSpec:
    read = {topic for topics in members.values() for topic in topics}
    same = len({frozenset(topics) for topics in members.values()}) <= 1
    return GroupSpec(
        {
            name: MemberSpec(None, frozenset(topics), (former or {}).get(name, frozenset()))
            for name, topics in members.items()
        },
        {topic: count for topic, count in counts.items() if topic in read},
        SubscriptionType.HOMOGENEOUS if same else SubscriptionType.HETEROGENEOUS,
    )


def sizes(assignment: TargetAssignment) -> list[int]:
    return sorted(map(len, assignment.values()))


def test_range_gives_each_member_consecutive_partitions_of_every_topic() -> None:
    assignment = assign_range(spec({"m1": {A, B}, "m2": {A, B}, "m3": {A, B}}, {A: 7, B: 3}))
    assert assignment == {
        "m1": {(A, 0), (A, 1), (A, 2), (B, 0)},
        "m2": {(A, 3), (A, 4), (B, 1)},
        "m3": {(A, 5), (A, 6), (B, 2)},
    }


def test_range_orders_static_members_by_instance_id() -> None:
    group = GroupSpec(
        {
            "a-dynamic": MemberSpec(None, frozenset({A}), frozenset()),
            "z-static": MemberSpec("host-1", frozenset({A}), frozenset()),
        },
        {A: 2},
        SubscriptionType.HOMOGENEOUS,
    )
    assert assign_range(group) == {"z-static": {(A, 0)}, "a-dynamic": {(A, 1)}}


def test_uniform_moves_only_what_a_new_member_needs() -> None:
    before = assign_uniform(spec({"m1": {A}, "m2": {A}}, {A: 9}))
    after = assign_uniform(spec({"m1": {A}, "m2": {A}, "m3": {A}}, {A: 9}, before))
    assert sizes(after) == [3, 3, 3]
    assert after["m1"] <= before["m1"]
    assert after["m2"] <= before["m2"]


def test_uniform_with_different_topics_fills_whoever_has_least() -> None:
    assignment = assign_uniform(spec({"m1": {A, B}, "m2": {B}, "m3": {B, C}}, {A: 4, B: 4, C: 1}))
    assert assignment["m1"] == {(A, index) for index in range(4)}
    assert sizes(assignment) == [2, 3, 4]


def test_uniform_balances_after_a_subscription_changed() -> None:
    former: TargetAssignment = {"m1": frozenset((A, index) for index in range(6)), "m2": frozenset()}
    assignment = assign_uniform(spec({"m1": {A}, "m2": {A, B}}, {A: 6, B: 1}, former))
    assert sizes(assignment) == [3, 4]


SUBSCRIPTIONS = st.dictionaries(
    st.sampled_from([f"m{number}" for number in range(6)]),
    st.sets(st.sampled_from([A, B, C]), max_size=3),
    min_size=1,
    max_size=6,
)


@given(
    name=st.sampled_from(sorted(ASSIGNORS)),
    first=SUBSCRIPTIONS,
    second=SUBSCRIPTIONS,
    counts=st.tuples(*[st.integers(1, 8)] * 3),
    grown=st.integers(0, 3),
)
def test_every_partition_has_one_reader(
    name: str, first: dict[str, set[bytes]], second: dict[str, set[bytes]], counts: tuple[int, ...], grown: int
) -> None:
    """Also when members, subscriptions and partitions changed since the last assignment."""
    assign = ASSIGNORS[name]
    before = assign(spec(first, dict(zip((A, B, C), counts, strict=True))))
    wanted = dict(zip((A, B, C), (count + grown for count in counts), strict=True))
    group = spec(second, wanted, before)
    after = assign(group)
    assert after.keys() == second.keys()
    given_out = sorted(partition for partitions in after.values() for partition in partitions)
    assert given_out == sorted(
        (topic, index) for topic, count in group.partition_counts.items() for index in range(count)
    )
    for member_id, partitions in after.items():
        assert {topic for topic, _ in partitions} <= second[member_id]
    if name == "uniform" and group.subscription_type is SubscriptionType.HOMOGENEOUS:
        assert max(sizes(after)) - min(sizes(after)) <= 1
    assert assign(spec(second, wanted, after)) == after, "without a change, nothing moves"
