"""Records are Kafka's, byte for byte. The hex below was written by Kafka 4.3.1's own coordinator classes."""

import pytest

from moldau.groups.consumer import ConsumerGroup
from moldau.groups.metadata import TopicImage, TopicsImage, subscription_hash, topic_hash
from moldau.groups.partitioning import java_string_hash, partition_for_group
from moldau.groups.records import decode_entry, encode_entry, epochs_from_record
from moldau.groups.xxh3 import xxh3_64
from moldau.wire import messages as m
from moldau.wire.message import Message
from moldau.wire.primitives import MalformedFrame

ID = bytes.fromhex("01020304050607081112131415161718")
CURRENT = m.ConsumerGroupCurrentMemberAssignmentValue

WRITTEN_BY_KAFKA: dict[str, tuple[Message, Message | None, str, str]] = {
    "offset commit": (
        m.OffsetCommitKey("g", "orders", 3),
        m.OffsetCommitValue(offset=42, leader_epoch=7, metadata="note", commit_timestamp=1000, topic_id=ID),
        "000100016700066f726465727300000003",
        "0004000000000000002a00000007056e6f746500000000000003e801001001020304050607081112131415161718",
    ),
    "offset commit with a retention time": (
        m.OffsetCommitKey("g", "orders", 3),
        m.OffsetCommitValue(offset=42, metadata="note", commit_timestamp=1000, expire_timestamp=2000),
        "000100016700066f726465727300000003",
        "0001000000000000002a00046e6f746500000000000003e800000000000007d0",
    ),
    "classic group": (
        m.GroupMetadataKey("g"),
        m.GroupMetadataValue(
            "consumer",
            2,
            "range",
            "m1",
            1000,
            [m.GroupMetadataValue.MemberMetadata("m1", "i1", "c", "/127.0.0.1", 300000, 45000, b"\1\2", b"\3\4\5")],
        ),
        "0002000167",
        "00030008636f6e73756d657200000002000572616e676500026d3100000000000003e80000000100026d3100026931000163000a2f"
        "3132372e302e302e31000493e00000afc800000002010200000003030405",
    ),
    "classic group tombstone": (m.GroupMetadataKey("g"), None, "0002000167", ""),
    "group epoch": (
        m.ConsumerGroupMetadataKey("g"),
        m.ConsumerGroupMetadataValue(epoch=5, metadata_hash=-77),
        "0003000167",
        "000000000005010008ffffffffffffffb3",
    ),
    "member": (
        m.ConsumerGroupMemberMetadataKey("g", "m1"),
        m.ConsumerGroupMemberMetadataValue(
            "i1",
            "r1",
            "c",
            "/127.0.0.1",
            ["a", "b"],
            "x.*",
            1000,
            "range",
            m.ConsumerGroupMemberMetadataValue.ClassicMemberMetadata(
                45000, [m.ConsumerGroupMemberMetadataValue.ClassicProtocol("range", b"\x09")]
            ),
        ),
        "000500016700026d31",
        "000003693103723102630b2f3132372e302e302e31030261026204782e2a000003e80672616e6765010010010000afc802067261"
        "6e676502090000",
    ),
    "target epoch": (
        m.ConsumerGroupTargetAssignmentMetadataKey("g"),
        m.ConsumerGroupTargetAssignmentMetadataValue(5, 1000),
        "0006000167",
        "00000000000501000800000000000003e8",
    ),
    "target": (
        m.ConsumerGroupTargetAssignmentMemberKey("g", "m1"),
        m.ConsumerGroupTargetAssignmentMemberValue(
            [m.ConsumerGroupTargetAssignmentMemberValue.TopicPartition(ID, [0, 2])]
        ),
        "000700016700026d31",
        "000002010203040506070811121314151617180300000000000000020000",
    ),
    "current assignment": (
        m.ConsumerGroupCurrentMemberAssignmentKey("g", "m1"),
        CURRENT(5, 4, 1, [CURRENT.TopicPartitions(ID, [0, 2], [3, 5])], [CURRENT.TopicPartitions(ID, [1], [2])]),
        "000800016700026d31",
        "0000000000050000000401020102030405060708111213141516171803000000000000000201000903000000030000000502010203"
        "040506070811121314151617180200000001010005020000000200",
    ),
    "regular expression": (
        m.ConsumerGroupRegularExpressionKey("g", "x.*"),
        m.ConsumerGroupRegularExpressionValue(["xa", "xb"], 9, 1000),
        "00100001670003782e2a",
        "000003037861037862000000000000000900000000000003e800",
    ),
}


@pytest.mark.parametrize("name", WRITTEN_BY_KAFKA)
def test_bytes_are_kafkas(name: str) -> None:
    key, value, key_hex, value_hex = WRITTEN_BY_KAFKA[name]
    record = encode_entry(key, value)
    assert record.key.hex() == key_hex
    assert (record.value or b"").hex() == value_hex
    assert decode_entry(record.key, record.value) == (key, value)


def test_records_of_other_group_types_are_left_alone() -> None:
    share_group_key = bytes.fromhex("000b000167")
    assert decode_entry(share_group_key, b"\0\0\0\0\0\1\0") is None


def test_a_record_of_a_version_to_come_is_not_guessed_at() -> None:
    record = encode_entry(m.GroupMetadataKey("g"), m.GroupMetadataValue())
    assert record.value is not None
    with pytest.raises(MalformedFrame, match="no version 9"):
        decode_entry(record.key, b"\0\x09" + record.value[2:])


def test_assignments_without_epochs_get_the_member_epoch() -> None:
    """Kafka before 4.2 wrote none."""
    assert epochs_from_record([CURRENT.TopicPartitions(ID, [0, 2])], 6) == {(ID, 0): 6, (ID, 2): 6}
    assert epochs_from_record([CURRENT.TopicPartitions(ID, [0])], -2) == {(ID, 0): 0}
    assert epochs_from_record([CURRENT.TopicPartitions(ID, [0, 1], [4])], 6) == {(ID, 0): 6, (ID, 1): 6}


def test_a_member_state_to_come_is_unknown() -> None:
    group = ConsumerGroup("g")
    group.apply_current("m1", CURRENT(5, 4, 99, [], []))
    assert group.members["m1"].state.name == "UNKNOWN"


@pytest.mark.parametrize(
    ("text", "expected", "partition"),
    [
        ("", 0, 0),
        ("g", 103, 3),
        ("my-group", -1906497762, 12),
        ("polygenelubricants", -2147483648, 0),  # the number whose absolute value does not fit
        ("\U0001f600", 1772899, 49),  # two UTF-16 units
        ("consumer-group-1234567890", -1249451104, 4),
    ],
)
def test_groups_are_hashed_as_java_does(text: str, expected: int, partition: int) -> None:
    assert java_string_hash(text) == expected
    assert partition_for_group(text, 50) == partition


XXH3 = {  # of bytes (i * 7 + length), by hash4j, which Kafka uses
    0: 3244421341483603138,
    1: -2220562881957146901,
    2: 3724619060873665926,
    3: -6266602912829716452,
    4: 6297312323375345790,
    5: 2565845316291143453,
    8: -5693888875394197238,
    9: -8445836227155624914,
    16: 3159599325006435930,
    17: 7070371635116224842,
    31: 2053882885601730627,
    32: -8569976950676894311,
    33: -5271264198224304052,
    64: 1953419934939160347,
    100: 7938407634120260973,
    128: -1633510367785085978,
    129: -5383259723849235271,
    160: -8534891858977184318,
    200: 7350251351420641343,
    239: 3569128420754416473,
    240: 4473034316189165092,
    241: -4792628563661132438,
    256: -46693030393586759,
    300: 4044510628947536213,
    512: -648991930387029524,
    1024: -2568512991238798245,
    1025: -4010797056655636473,
    1088: 1926298949930276695,
    2000: -287206472305095639,
    5000: 3499038088879543845,
}


@pytest.mark.parametrize("length", XXH3)
def test_xxh3_is_the_one_kafka_uses(length: int) -> None:
    assert xxh3_64(bytes((index * 7 + length) & 255 for index in range(length))) == XXH3[length]


def test_topic_hashes_notice_every_change() -> None:
    topic = TopicImage("orders", ID, 2, (("a", "b"), ("b",)))
    different = [
        TopicImage("order", ID, 2, (("a", "b"), ("b",))),
        TopicImage("orders", ID[::-1], 2, (("a", "b"), ("b",))),
        TopicImage("orders", ID, 3, (("a", "b"), ("b",))),
        TopicImage("orders", ID, 2, (("a", "b"), ("c",))),
        TopicImage("orders", ID, 2),
    ]
    hashes = {topic_hash(other) for other in different}
    assert len(hashes) == len(different)
    assert topic_hash(topic) not in hashes
    assert topic_hash(TopicImage("orders", ID, 2, (("b", "a"), ("b",)))) == topic_hash(topic)


def test_subscription_hash_skips_topics_that_do_not_exist() -> None:
    image = TopicsImage.of([TopicImage("orders", ID, 2)], 1)
    assert subscription_hash(["nowhere"], image, {}) == 0
    assert subscription_hash(["orders", "nowhere"], image, {}) == subscription_hash(["orders"], image, {}) != 0
