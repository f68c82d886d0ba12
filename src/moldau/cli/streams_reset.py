"""A Kafka Streams application set back to its beginning, as kafka-streams-application-reset does: members that are left
over go, its offsets of input topics are set, its internal topics are deleted. What it keeps where it runs stays there.

Kafka's tool also deletes topics of applications whose name merely begins with this one's (`shop` and `shop-eu`); where
such a group is there, its topics are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from moldau.cli.failure import ExitCode, explain_code, fail, in_doubt, tell
from moldau.cli.frame import Target
from moldau.cli.group_reset import Plan
from moldau.cli.group_views import Member
from moldau.cli.places import Place
from moldau.cli.target import TIMEOUT_SECONDS

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

# As StreamsResetter.matchesInternalTopicFormat of Apache Kafka 4.3 knows them.
_INTERNAL = re.compile(
    r".*(-changelog|-repartition|-subscription-registration-topic|-subscription-response-topic"
    r"|.-KTABLE-FK-JOIN-SUBSCRIPTION-(REGISTRATION|RESPONSE)-\d+-topic)"
)
_REASON = "moldau group reset-streams --force"


def internal_topics(application: str, topics: Iterable[str], inputs: Collection[str]) -> list[str]:
    """What Streams made for it, going by names. An input topic is none, whatever its name."""
    begin = f"{application}-"
    return sorted(
        each for each in topics if each.startswith(begin) and each not in inputs and _INTERNAL.fullmatch(each)
    )


def of_others(application: str, topics: Iterable[str], groups: Iterable[str]) -> dict[str, str]:
    """Those that may be another application's, and its name: a group whose name goes on where this one's ends."""
    longer = sorted((each for each in groups if each.startswith(f"{application}-")), key=len)
    return {topic: group for group in longer for topic in topics if topic.startswith(f"{group}-")}


def rows_of(members: Sequence[Member], before: Mapping[Place, int], plan: Plan, topics: Sequence[str]) -> list[Any]:
    return [
        *({"what": "member", "name": each.instance or each.id, "from": each.host, "to": "removed"} for each in members),
        *(
            {"what": "offset", "name": f"{place[0]}-{place[1]}", "from": before.get(place), "to": offset}
            for place, offset in sorted(plan.items())
        ),
        *({"what": "topic", "name": each, "from": None, "to": "deleted"} for each in topics),
    ]


def remove_members(target: Target, group: str, members: Sequence[Member]) -> None:
    """As if they had left; those that live come back at once."""
    from moldau.client.admin import GROUP
    from moldau.client.connection import BrokerError
    from moldau.wire.messages import LeaveGroupRequest, LeaveGroupResponse

    leaving = [
        LeaveGroupRequest.MemberIdentity(
            member_id="" if each.instance else each.id, group_instance_id=each.instance, reason=_REASON
        )
        for each in members
    ]
    with target.admin() as admin:
        request = LeaveGroupRequest(group_id=group, members=leaving)
        answer = admin.ask_coordinator(GROUP, group, request, LeaveGroupResponse)
    if answer.error_code:
        raise BrokerError(answer.error_code, f"members of {group}")
    for each in answer.members:
        if each.error_code:
            raise BrokerError(each.error_code, f"member {each.group_instance_id or each.member_id} of {group}")


def delete_topics(target: Target, admin: AdminClient, topics: Sequence[str]) -> None:
    """All of them; one that cannot be deleted does not keep the others."""
    from confluent_kafka import KafkaException

    worst: ExitCode | None = None
    futures = admin.delete_topics(list(topics), request_timeout=TIMEOUT_SECONDS) if topics else {}
    for name, future in futures.items():
        try:
            future.result(TIMEOUT_SECONDS + 1)
        except KafkaException as error:
            explained = in_doubt(explain_code(error.args[0], target.bootstrap_servers), target.bootstrap_servers)
            tell(f"{name}: {explained.message}")
            worst = explained.code
    if worst is not None:
        raise typer.Exit(worst)


def require(wanted: Sequence[str], known: Sequence[str], application: str) -> list[str]:
    """The internal topics that were named; what is none of the application's is not deleted."""
    for each in wanted:
        if each not in known:
            there = ", ".join(known) or "it has none"
            fail(f"{each} is no internal topic of {application}: {there}", ExitCode.NOT_FOUND)
    return sorted(wanted)
