"""Offsets of share groups (KIP-932), which have requests of their own. Moldau's brokers have no such groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from moldau.cli.places import Place

if TYPE_CHECKING:
    from moldau.client.admin import Admin


def refuse(what: str, code: int, message: str | None) -> None:
    """If the broker did."""
    from moldau.client.connection import BrokerError

    if code:
        raise BrokerError(code, f"{what}{': ' + message if message else ''}")


def starts_and_lags(admin: Admin, broker: int, group: str) -> tuple[dict[Place, int], dict[Place, int]]:
    """Where it begins, and how much is left as its broker counts: records in the middle may be done."""
    from moldau.wire.messages import DescribeShareGroupOffsetsRequest as Request
    from moldau.wire.messages import DescribeShareGroupOffsetsResponse

    asked = Request(groups=[Request.DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=None)])
    (found,) = admin.ask_broker(broker, asked, DescribeShareGroupOffsetsResponse).groups
    refuse(f"group {group}", found.error_code, found.error_message)
    starts: dict[Place, int] = {}
    lags: dict[Place, int] = {}
    for topic in found.topics:
        for each in topic.partitions:
            place = (topic.topic_name, each.partition_index)
            refuse(f"{group}, {place[0]}-{place[1]}", each.error_code, each.error_message)
            if each.start_offset >= 0:
                starts[place] = each.start_offset
            if each.lag >= 0:
                lags[place] = each.lag
    return starts, lags


def set_starts(admin: Admin, broker: int, group: str, plan: Mapping[Place, int]) -> None:
    from moldau.wire.messages import AlterShareGroupOffsetsRequest as Request
    from moldau.wire.messages import AlterShareGroupOffsetsResponse

    topics = [
        Request.AlterShareGroupOffsetsRequestTopic(
            topic_name=topic,
            partitions=[
                Request.AlterShareGroupOffsetsRequestPartition(partition_index=index, start_offset=offset)
                for (name, index), offset in sorted(plan.items())
                if name == topic
            ],
        )
        for topic in sorted({name for name, _ in plan})
    ]
    answer = admin.ask_broker(broker, Request(group_id=group, topics=topics), AlterShareGroupOffsetsResponse)
    refuse(f"group {group}", answer.error_code, answer.error_message)
    for each in answer.responses:
        for partition in each.partitions:
            what = f"{group}, {each.topic_name}-{partition.partition_index}"
            refuse(what, partition.error_code, partition.error_message)


def forget(admin: Admin, broker: int, group: str, topics: Sequence[str]) -> None:
    """Whole topics: a share group forgets no single partition."""
    from moldau.wire.messages import DeleteShareGroupOffsetsRequest as Request
    from moldau.wire.messages import DeleteShareGroupOffsetsResponse

    asked = [Request.DeleteShareGroupOffsetsRequestTopic(topic_name=each) for each in topics]
    answer = admin.ask_broker(broker, Request(group_id=group, topics=asked), DeleteShareGroupOffsetsResponse)
    refuse(f"group {group}", answer.error_code, answer.error_message)
    for each in answer.responses:
        refuse(f"{group}, {each.topic_name}", each.error_code, each.error_message)
