"""`moldau broker …`: which brokers there are, what lies on their disks, what they speak; leaders, features, leaving."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from moldau.cli.failure import ExitCode, code_of, counted, fail, misused, tell
from moldau.cli.frame import Commands, Output, Target
from moldau.cli.output import size
from moldau.cli.places import chosen

app = Commands(help="Brokers: list, disks, versions, features; elect leaders, unregister.")

BrokerId = Annotated[int, typer.Argument(metavar="ID", min=0, help="A broker's id.")]
_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE = 1, 2, 3


@app.command("list", watchable=True)
def list_brokers(target: Target, output: Output) -> None:
    """Brokers: where they are, what they lead, who is the controller."""
    from moldau.client.connection import BrokerError
    from moldau.wire.messages import DescribeClusterRequest, DescribeClusterResponse

    with target.admin() as admin:
        request = DescribeClusterRequest(include_fenced_brokers=True)
        found = admin.ask(request, DescribeClusterResponse)
        if found.error_code:
            raise BrokerError(found.error_code, "the cluster")
        leads: dict[int, int] = {}
        holds: dict[int, int] = {}
        behind: dict[int, int] = {}
        for topic in admin.metadata().topics:
            for partition in topic.partitions:
                leads[partition.leader_id] = leads.get(partition.leader_id, 0) + 1
                for replica in partition.replica_nodes:
                    holds[replica] = holds.get(replica, 0) + 1
                    if replica not in partition.isr_nodes:
                        behind[replica] = behind.get(replica, 0) + 1
    rows = [
        {
            "id": each.broker_id,
            "host": each.host,
            "port": each.port,
            "rack": each.rack,
            "state": "fenced" if each.is_fenced else "online",
            "controller": each.broker_id == found.controller_id,
            "leads": leads.get(each.broker_id, 0),
            "replicas": holds.get(each.broker_id, 0),
            "behind": behind.get(each.broker_id, 0),
        }
        for each in sorted(found.brokers, key=lambda each: each.broker_id)
    ]
    document = {"cluster_id": found.cluster_id, "controller": found.controller_id, "brokers": rows}
    output.show(rows, document=document, title=f"cluster {found.cluster_id}" if output.is_for_people else "")


@app.command(watchable=True)
def disks(
    target: Target,
    output: Output,
    brokers: Annotated[list[int] | None, typer.Argument(metavar="ID...", help="Only these brokers.")] = None,
) -> None:
    """Log dirs of brokers: how full they are, and how many replicas lie there."""
    from moldau.cli.log_dirs import describe_dirs

    with target.admin() as admin:
        dirs = describe_dirs(admin)
        missing = sorted(set(brokers or ()) - set(admin.brokers))
    if missing:
        fail(f"there is no broker {missing[0]} now", ExitCode.NOT_FOUND)
    rows: list[dict[str, Any]] = [
        {
            "broker": each.broker,
            "log_dir": each.log_dir,
            "state": "offline" if each.error_code else "online",
            "replicas": len(each.replicas),
            "bytes": sum(replica.size_bytes for replica in each.replicas),
            "total_bytes": each.total_bytes,
            "usable_bytes": each.usable_bytes,
        }
        for each in dirs
        if not brokers or each.broker in brokers
    ]
    if output.is_for_people:
        rows = [row | {name: size(row[name]) for name in ("bytes", "total_bytes", "usable_bytes")} for row in rows]
    output.show(rows)


@app.command("api-versions")
def api_versions(
    target: Target,
    output: Output,
    broker: Annotated[int | None, typer.Argument(metavar="ID", help="A broker; any, if none is named.")] = None,
) -> None:
    """Which requests a broker understands, in which versions."""
    from moldau.wire import apis
    from moldau.wire.messages import ApiVersionsRequest, ApiVersionsResponse

    request = ApiVersionsRequest(client_software_name="moldau", client_software_version="1")
    with target.admin() as admin:
        if broker is None:
            answer = admin.ask(request, ApiVersionsResponse)
        else:
            answer = admin.ask_broker(broker, request, ApiVersionsResponse)
    ours = apis()
    output.show(
        [
            {
                "key": each.api_key,
                "api": ours[each.api_key].name if each.api_key in ours else None,
                "from": each.min_version,
                "to": each.max_version,
                "ours": f"{ours[each.api_key].versions.first}-{ours[each.api_key].versions.last}"
                if each.api_key in ours
                else None,
            }
            for each in sorted(answer.api_keys, key=lambda each: each.api_key)
        ]
    )


@app.command()
def features(target: Target, output: Output) -> None:
    """Features of the cluster: which level is in force, and which the broker could."""
    from moldau.wire.messages import ApiVersionsRequest, ApiVersionsResponse

    request = ApiVersionsRequest(client_software_name="moldau", client_software_version="1")
    with target.admin() as admin:
        answer = admin.ask(request, ApiVersionsResponse)
    levels = {each.name: each.max_version_level for each in answer.finalized_features}
    output.show(
        [
            {"feature": each.name, "level": levels.get(each.name, 0), "from": each.min_version, "to": each.max_version}
            for each in sorted(answer.supported_features, key=lambda each: each.name)
        ]
    )


@app.command("set-feature", changes=True)
def set_feature(
    target: Target,
    output: Output,
    feature: Annotated[str, typer.Argument(help="Its name, for example metadata.version.")],
    level: Annotated[int, typer.Argument(min=0, help="The level; `moldau broker features` shows which there are.")],
    downgrade: Annotated[bool, typer.Option("--downgrade", help="A lower level, if nothing is lost by it.")] = False,
    unsafe: Annotated[bool, typer.Option("--unsafe", help="A lower level, whatever is lost by it.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only ask whether it would be done.")] = False,
) -> None:
    """Set a feature's level for the whole cluster: a new version of Kafka's format, mostly for good."""
    from moldau.client.connection import BrokerError
    from moldau.wire.messages import UpdateFeaturesRequest, UpdateFeaturesResponse

    kind = _UNSAFE_DOWNGRADE if unsafe else _SAFE_DOWNGRADE if downgrade else _UPGRADE
    update = UpdateFeaturesRequest.FeatureUpdateKey(feature=feature, max_version_level=level, upgrade_type=kind)
    with target.admin() as admin:
        answer = admin.ask(
            UpdateFeaturesRequest(feature_updates=[update], validate_only=dry_run), UpdateFeaturesResponse
        )
    refusals = [
        (answer.error_code, answer.error_message),
        *((each.error_code, each.error_message) for each in answer.results),
    ]
    for code, message in refusals:
        if code:
            fail(message or str(BrokerError(code, feature)), code_of(code))
    output.done(
        f"{feature} {'could be' if dry_run else 'is'} at level {level}",
        {"feature": feature, "level": level, "result": "possible" if dry_run else "set"},
    )


@app.command("elect-leaders", changes=True)
def elect_leaders(
    target: Target,
    output: Output,
    topics: Annotated[list[str] | None, typer.Argument(metavar="TOPIC[:0,1]...", help="All, if none named.")] = None,
    unclean: Annotated[
        bool, typer.Option("--unclean", help="Also a replica that is behind: records are lost; only for what has none.")
    ] = False,
) -> None:
    """Give leadership back to the preferred replicas, the first of each partition's list."""
    from moldau.client.connection import BrokerError
    from moldau.wire.messages import ElectLeadersRequest, ElectLeadersResponse

    if unclean and not topics:
        misused("--unclean loses records: name the topics")
    with target.admin() as admin:
        rows = None
        if topics:
            known = {
                str(each.name): [row.partition_index for row in each.partitions]
                for each in admin.metadata(sorted({text.partition(":")[0] for text in topics})).topics
                if not each.error_code
            }
            wanted: dict[str, list[int]] = {}
            for name, index in chosen(known, topics):
                wanted.setdefault(name, []).append(index)
            rows = [ElectLeadersRequest.TopicPartitions(topic=each, partitions=wanted[each]) for each in wanted]
        request = ElectLeadersRequest(election_type=int(unclean), topic_partitions=rows, timeout_ms=30_000)
        answer = admin.ask(request, ElectLeadersResponse)
    if answer.error_code:
        raise BrokerError(answer.error_code, "leaders were not elected")
    not_needed = 84
    shown, failed = [], 0
    for topic in answer.replica_election_results:
        for each in topic.partition_result:
            result = "elected"
            if each.error_code == not_needed:
                result = "was leader"
            elif each.error_code:
                failed += 1
                result = each.error_message or str(BrokerError(each.error_code, "failed"))
            shown.append({"topic": topic.topic, "partition": each.partition_id, "result": result})
    output.show(shown, empty="every preferred replica leads already")
    if failed:
        fail(f"{counted(failed, 'partition')} without a leader of that kind")


@app.command(changes=True)
def unregister(target: Target, output: Output, broker: BrokerId) -> None:
    """Forget a broker that was stopped for good; first `moldau reassign drain` it."""
    from moldau.client.connection import BrokerError
    from moldau.wire.messages import UnregisterBrokerRequest, UnregisterBrokerResponse

    with target.admin() as admin:
        left = sum(
            broker in partition.replica_nodes for topic in admin.metadata().topics for partition in topic.partitions
        )
        answer = admin.ask(UnregisterBrokerRequest(broker_id=broker), UnregisterBrokerResponse)
    if answer.error_code:
        reason = answer.error_message or str(BrokerError(answer.error_code, f"broker {broker}"))
        fail(reason, code_of(answer.error_code))
    if left:
        tell(f"it is still named as a replica by {counted(left, 'partition')}")
    output.done(f"unregistered {broker}", {"broker": broker, "result": "unregistered", "partitions_left": left})
