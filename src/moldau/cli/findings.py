"""What may be wrong with a cluster, looked for with questions any Kafka cluster answers. For `health` and `doctor`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from moldau.cli.failure import counted

if TYPE_CHECKING:
    from moldau.client.admin import Admin

Result = Literal["ok", "warning", "failed"]
_NAMED_MAX = 5
_FULL_PERCENT = 90
_ANSWER_SECONDS = 1.5  # a node that died a moment ago is still listed: not waited for until it is not


class Finding(NamedTuple):
    check: str
    result: Result
    found: str
    advice: str = ""


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMED_MAX])
    return shown + (f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else "")


def cluster_findings(admin: Admin) -> Iterator[Finding]:
    """Brokers, controller, partitions, disks, quorum."""
    from moldau.wire.messages import DescribeClusterRequest, DescribeClusterResponse

    cluster = admin.ask(DescribeClusterRequest(include_fenced_brokers=True), DescribeClusterResponse)
    fenced = [str(each.broker_id) for each in cluster.brokers if each.is_fenced]
    alive = len(cluster.brokers) - len(fenced)
    topics = list(admin.metadata().topics)
    silent = admin.silent(_ANSWER_SECONDS)
    if fenced:
        yield Finding("brokers", "failed", f"{alive} online, away: {_some(fenced)}", "start them again")
    if silent:
        found = f"no answer within {_ANSWER_SECONDS:g} s: {_some([str(each) for each in silent])}"
        yield Finding("brokers", "failed", found, "see whether they run, and whether you reach their addresses")
    if not fenced and not silent:
        yield Finding("brokers", "ok", f"{alive} online")
    yield _partitions_without_leader(topics)
    yield _behind(topics)
    yield _below_min_isr(admin, topics)
    yield from _quorum(admin)
    yield from _disks(admin, silent)


def _partitions_without_leader(topics: list[Any]) -> Finding:
    gone = [f"{topic.name}-{row.partition_index}" for topic in topics for row in topic.partitions if row.leader_id < 0]
    if gone:
        return Finding("leaders", "failed", f"no leader: {_some(gone)}", "start the brokers that hold them")
    count = sum(len(topic.partitions) for topic in topics)
    return Finding("leaders", "ok", f"{count} partitions of {len(topics)} topics have one")


def _behind(topics: list[Any]) -> Finding:
    late = [
        f"{topic.name}-{row.partition_index}"
        for topic in topics
        for row in topic.partitions
        if len(row.isr_nodes) < len(row.replica_nodes)
    ]
    if late:
        advice = "a broker is away or slow: moldau topic describe --under-replicated"
        return Finding(
            "replicas", "failed", f"{counted(len(late), 'partition')} under-replicated: {_some(late)}", advice
        )
    return Finding("replicas", "ok", "all are in sync")


def _below_min_isr(admin: Admin, topics: list[Any]) -> Finding:
    """Those that refuse acks=all now."""
    short = [
        (str(topic.name), row.partition_index, len(row.isr_nodes))
        for topic in topics
        for row in topic.partitions
        if len(row.isr_nodes) < len(row.replica_nodes)
    ]
    least = topic_settings(admin, sorted({each[0] for each in short}), "min.insync.replicas")
    refused = [f"{name}-{index}" for name, index, count in short if count < int(least.get(name) or 1)]
    if refused:
        return Finding("writes", "failed", f"fewer than min.insync.replicas: {_some(refused)}", "start their brokers")
    return Finding("writes", "ok", "every partition takes acks=all")


def topic_settings(admin: Admin, names: list[str], key: str) -> dict[str, str]:
    from moldau.wire.messages import DescribeConfigsRequest, DescribeConfigsResponse

    if not names:
        return {}
    resources = [
        DescribeConfigsRequest.DescribeConfigsResource(resource_type=2, resource_name=name, configuration_keys=[key])
        for name in names
    ]
    answer = admin.ask(DescribeConfigsRequest(resources=resources), DescribeConfigsResponse)
    return {each.resource_name: row.value or "" for each in answer.results for row in each.configs if row.name == key}


def _quorum(admin: Admin) -> Iterator[Finding]:
    from moldau.cli.quorum import describe_quorum
    from moldau.client.connection import BrokerError, Disconnected

    try:
        with admin.hasty(_ANSWER_SECONDS) as hasty:  # brokers hand this on to a leader who may be gone
            quorum, _ = describe_quorum(hasty)
    except Disconnected:
        advice = "a new leader is elected within seconds if a majority of the controllers runs: look again"
        yield Finding("quorum", "failed", f"its leader does not answer within {_ANSWER_SECONDS:g} s", advice)
        return
    except BrokerError as error:
        yield Finding("quorum", "failed", str(error), "a majority of the controllers must run")
        return
    late = [
        str(each.replica_id)
        for each in quorum.current_voters
        if each.replica_id != quorum.leader_id
        and each.last_caught_up_timestamp >= 0
        and _leader_time(quorum) - each.last_caught_up_timestamp > 10_000
    ]
    if late:
        yield Finding("quorum", "failed", f"voters that are behind: {_some(late)}", "start these controllers")
    else:
        voters = counted(len(quorum.current_voters), "voter")
        yield Finding("quorum", "ok", f"leader {quorum.leader_id} in epoch {quorum.leader_epoch}, {voters}")


def _leader_time(quorum: Any) -> int:
    return max((each.last_caught_up_timestamp for each in quorum.current_voters), default=0)


def _disks(admin: Admin, silent: list[int]) -> Iterator[Finding]:
    from moldau.cli.log_dirs import describe_dirs

    dirs = describe_dirs(admin, without=silent)
    away = [f"{each.log_dir} of broker {each.broker}" for each in dirs if each.error_code]
    if away:
        yield Finding("disks", "failed", f"offline: {_some(away)}", "see the broker's log; mount it and restart")
        return
    full = [
        f"{each.log_dir} of broker {each.broker}"
        for each in dirs
        if each.total_bytes and each.usable_bytes is not None
        and 100 - 100 * each.usable_bytes / each.total_bytes > _FULL_PERCENT
    ]  # fmt: skip
    if full:
        yield Finding(
            "disks", "warning", f"more than {_FULL_PERCENT} % full: {_some(full)}",
            "shorten retention.ms, add disks, or move replicas: moldau topic sizes shows the largest",
        )  # fmt: skip
    else:
        yield Finding("disks", "ok", f"{counted(len(dirs), 'log dir')} online")
