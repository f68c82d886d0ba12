"""`moldau topic …`: create, list, describe, alter, add partitions, delete, empty; offsets and sizes. On any cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moldau.cli.client_settings import pairs
from moldau.cli.completing import complete_topics
from moldau.cli.failure import ExitCode, counted, explain_code, fail, in_doubt, misused, tell
from moldau.cli.frame import Commands, Output, Target
from moldau.cli.output import size
from moldau.cli.target import TIMEOUT_SECONDS

if TYPE_CHECKING:
    from concurrent.futures import Future

    from confluent_kafka.admin import AdminClient, ClusterMetadata, TopicMetadata

app = Commands(help="Create, show, change and delete topics.")

Names = Annotated[
    list[str], typer.Argument(metavar="TOPIC...", help="Names of topics.", autocompletion=complete_topics)
]
SomeNames = Annotated[
    list[str] | None,
    typer.Argument(metavar="TOPIC...", help="Names, or patterns like 'orders-*'.", autocompletion=complete_topics),
]
TopicSettings = Annotated[
    list[str] | None,
    typer.Option("--set", "-c", metavar="KEY=VALUE", help="A topic setting; may be repeated."),
]
_UNKNOWN_TOPIC = 3


@app.command(
    changes=True,
    examples=(
        "topic create orders -p 6 -r 3 -c retention.ms=86400000",
        "topic create pinned --replica-assignment 1:2,2:3,3:1",
    ),
)
def create(
    target: Target,
    output: Output,
    names: Names,
    partitions: Annotated[int, typer.Option("--partitions", "-p", min=-1, help="-1 leaves it to the broker.")] = -1,
    replication_factor: Annotated[
        int, typer.Option("--replication-factor", "-r", min=-1, help="-1 leaves it to the broker.")
    ] = -1,
    replica_assignment: Annotated[
        str | None,
        typer.Option(
            "--replica-assignment", metavar="1:2,2:3", help="The brokers of each partition, partition by partition."
        ),
    ] = None,
    settings: TopicSettings = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="An existing topic is fine.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only ask whether it would be done.")] = False,
) -> None:
    """Create topics."""
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import NewTopic

    if partitions == 0 or replication_factor == 0:
        misused("a topic has at least one partition and one replica; -1 leaves the number to the broker")
    given = pairs(settings or (), "-c")
    placed = _assignment(replica_assignment) if replica_assignment is not None else None
    if placed is not None:
        if partitions not in (-1, len(placed)) or replication_factor != -1:
            misused("--replica-assignment says how many partitions and replicas there are; leave -p and -r out")
        topics = [NewTopic(name, len(placed), replica_assignment=placed, config=given) for name in names]
    else:
        topics = [NewTopic(name, partitions, replication_factor, config=given) for name in names]
    admin = target.admin_client()
    fine = {KafkaError.TOPIC_ALREADY_EXISTS} if if_not_exists else set()
    futures = admin.create_topics(topics, operation_timeout=TIMEOUT_SECONDS, validate_only=dry_run)
    tell_each(target, output, futures, "could create" if dry_run else "created", fine)


def _assignment(text: str) -> list[list[int]]:
    try:
        return [[int(broker) for broker in each.split(":")] for each in text.split(",")]
    except ValueError:
        misused(
            f"--replica-assignment {text}: write brokers with : between replicas and , between partitions, as 1:2,2:3"
        )


def tell_each(
    target: Target, output: Output, futures: Mapping[str, Future[Any]], done: str, fine: Set[int] = frozenset()
) -> None:
    """What became of each name, a line each; fails at the end if any was refused for another reason than `fine`."""
    from confluent_kafka import KafkaException

    worst: ExitCode | None = None
    unanswered: dict[str, Exception] = {}
    for name, future in futures.items():
        try:
            future.result(TIMEOUT_SECONDS + 1)
        except KafkaException as error:
            cause = error.args[0]
            if cause.code() in fine:
                output.done(f"exists {name}", {"name": name, "result": "exists"})
                continue
            if cause.code() < 0:  # the client's own: nobody answered
                unanswered[name] = error
                continue
            explained = in_doubt(explain_code(cause, target.bootstrap_servers), target.bootstrap_servers)
            tell(f"{name}: {explained.message}")
            worst = explained.code if worst in (None, explained.code) else ExitCode.FAILED
        except TimeoutError as error:  # the client still tries
            unanswered[name] = error
        else:
            output.done(f"{done} {name}", {"name": name, "result": done})
    if unanswered:
        if len(unanswered) < len(futures):
            tell(f"nobody answered about {', '.join(unanswered)}")
        raise next(iter(unanswered.values()))
    if worst is not None:
        raise typer.Exit(worst)


@app.command("list", watchable=True)
def list_topics(
    target: Target,
    output: Output,
    patterns: SomeNames = None,
    internal: Annotated[bool, typer.Option("--internal", help="Also topics the cluster keeps for itself.")] = False,
    details: Annotated[
        bool, typer.Option("--details", "-d", help="Also partitions, replicas and how well they are.")
    ] = False,
) -> None:
    """List topics."""
    found = target.admin_client().list_topics(timeout=TIMEOUT_SECONDS)
    names = [
        name
        for name in sorted(found.topics)
        if (internal or not name.startswith("__")) and (not patterns or _matches(name, patterns))
    ]
    rows = [summary(found.topics[name]) for name in names]
    if details or output.as_json or output.template is not None:
        output.show(rows, empty="no topics")
    else:
        for name in names:
            output.line(name)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, each) for each in patterns)


def summary(topic: TopicMetadata) -> dict[str, Any]:
    partitions = list(topic.partitions.values())
    return {
        "name": topic.topic,
        "partitions": len(partitions),
        "replicas": max((len(each.replicas) for each in partitions), default=0),
        "under_replicated": sum(len(each.isrs) < len(each.replicas) for each in partitions),
        "offline": sum(each.leader < 0 for each in partitions),
    }


def choose_topics(found: ClusterMetadata, names: Iterable[str]) -> list[str]:
    """Topics by name or pattern; a name that is not there is an error."""
    chosen: dict[str, None] = {}
    missing = []
    for name in names:
        matching = (
            [name] if name in found.topics else [each for each in sorted(found.topics) if fnmatchcase(each, name)]
        )
        if not matching:
            missing.append(name)
        chosen |= dict.fromkeys(matching)
    if missing:
        fail(f"no such topic: {', '.join(missing)} (`moldau topic list` shows what there is)", ExitCode.NOT_FOUND)
    return list(chosen)


@app.command(watchable=True)
def describe(
    target: Target,
    output: Output,
    names: SomeNames = None,
    under_replicated: Annotated[
        bool, typer.Option("--under-replicated", help="Only partitions with a replica that is behind.")
    ] = False,
    unavailable: Annotated[bool, typer.Option("--unavailable", help="Only partitions without a leader.")] = False,
) -> None:
    """Show partitions, leaders, replicas, and the settings that differ from the defaults."""
    admin = target.admin_client()
    found = admin.list_topics(timeout=TIMEOUT_SECONDS)
    chosen = (
        choose_topics(found, names) if names else [each for each in sorted(found.topics) if not each.startswith("__")]
    )
    settings = own_settings(admin, chosen)
    parts: list[tuple[str, list[dict[str, Any]]]] = []
    document: list[dict[str, Any]] = []
    for name in chosen:
        rows = [
            row
            for row in map(_partition_row, (each for _, each in sorted(found.topics[name].partitions.items())))
            if (not under_replicated or len(row["in_sync"]) < len(row["replicas"]))
            and (not unavailable or row["leader"] is None)
        ]
        if (under_replicated or unavailable) and not rows:
            continue
        shown = ", ".join(f"{key}={value}" for key, value in sorted(settings[name].items())) or "defaults"
        parts.append((f"{name}: {counted(len(found.topics[name].partitions), 'partition')}, {shown}", rows))
        document.append({"name": name, "settings": settings[name], "partitions": rows})
    flat = [{"topic": each["name"], **row} for each in document for row in each["partitions"]]
    output.sections(parts, document=document, rows=flat)


def _partition_row(partition: Any) -> dict[str, Any]:
    return {
        "partition": partition.id,
        "leader": partition.leader if partition.leader >= 0 else None,
        "replicas": list(partition.replicas),
        "in_sync": list(partition.isrs),
    }


def own_settings(admin: AdminClient, names: Iterable[str]) -> dict[str, dict[str, str]]:
    """The settings of topics that were set on them."""
    from confluent_kafka.admin import ConfigResource, ConfigSource

    own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in names]
    found = {}
    for resource, future in (admin.describe_configs(resources) if resources else {}).items():
        entries = future.result(TIMEOUT_SECONDS).values()
        found[resource.name] = {entry.name: entry.value for entry in entries if entry.source == own}
    return found


@app.command(changes=True)
def alter(
    target: Target,
    output: Output,
    names: Names,
    settings: TopicSettings = None,
    unset: Annotated[
        list[str] | None, typer.Option("--unset", "-u", metavar="KEY", help="Back to the default; may be repeated.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only ask whether it would be done.")] = False,
) -> None:
    """Change settings of topics; what is not named stays as it is."""
    from moldau.cli.config import alter_resources

    alter_resources(target, output, "topic", names, settings or (), unset or (), dry_run=dry_run)


@app.command("add-partitions", changes=True)
def add_partitions(
    target: Target,
    output: Output,
    names: Names,
    total: Annotated[int | None, typer.Option("--to", "-t", min=1, help="So many partitions altogether.")] = None,
    more: Annotated[int | None, typer.Option("--add", "-a", min=1, help="So many more than there are.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only ask whether it would be done.")] = False,
) -> None:
    """Give topics more partitions. Keys may move to other partitions; what is there stays where it is."""
    from confluent_kafka.admin import NewPartitions

    if (total is None) == (more is None):
        misused("say how many: --to TOTAL or --add MORE")
    admin = target.admin_client()
    found = admin.list_topics(timeout=TIMEOUT_SECONDS)
    wanted = []
    for name in choose_topics(found, names):
        there = len(found.topics[name].partitions)
        wanted.append(NewPartitions(name, total if total is not None else there + (more or 0)))
    futures = admin.create_partitions(wanted, operation_timeout=TIMEOUT_SECONDS, validate_only=dry_run)
    tell_each(target, output, futures, "could extend" if dry_run else "extended")


@app.command(changes=True)
def delete(
    target: Target,
    output: Output,
    names: Names,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="A topic that is not there is fine.")] = False,
) -> None:
    """Delete topics and everything in them."""
    from confluent_kafka import KafkaException

    admin = target.admin_client()
    futures = admin.delete_topics(list(names), operation_timeout=TIMEOUT_SECONDS)
    if if_exists:
        for name, future in list(futures.items()):
            error = future.exception(TIMEOUT_SECONDS + 1)
            if isinstance(error, KafkaException) and error.args[0].code() == _UNKNOWN_TOPIC:
                del futures[name]
    tell_each(target, output, futures, "deleted")


@app.command(changes=True)
def empty(
    target: Target,
    output: Output,
    names: Names,
    before: Annotated[
        int, typer.Option("--before", metavar="OFFSET", min=-1, help="Delete below this offset; -1 is the end.")
    ] = -1,
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Only this partition.")] = None,
) -> None:
    """Delete records from the beginning of topics, all of them unless --before says otherwise."""
    from confluent_kafka import KafkaException, TopicPartition

    admin = target.admin_client()
    found = admin.list_topics(timeout=TIMEOUT_SECONDS)
    places = []
    for name in choose_topics(found, names):
        indexes = sorted(found.topics[name].partitions) if partition is None else [partition]
        places += [TopicPartition(name, index, before) for index in indexes]
    rows, trouble = [], 0
    for place, future in admin.delete_records(places).items():
        try:
            low = future.result(TIMEOUT_SECONDS).low_watermark
        except KafkaException as error:
            trouble += 1
            tell(f"{place.topic}-{place.partition}: {error.args[0].str()}")
        else:
            rows.append({"topic": place.topic, "partition": place.partition, "begins_at": low})
    output.show(sorted(rows, key=lambda row: (row["topic"], row["partition"])))
    if trouble:
        raise typer.Exit(ExitCode.FAILED)


@app.command(watchable=True)
def offsets(
    target: Target,
    output: Output,
    names: Names,
    at: Annotated[
        str | None, typer.Option("--at", metavar="TIME", help="Also the first offset since: ISO time, ms, or -1h.")
    ] = None,
) -> None:
    """First and next offset of each partition, and how many records that makes at most."""
    from moldau.cli.places import offsets_at, parse_time

    since = None if at is None else parse_time(at)
    admin = target.admin_client()
    found = admin.list_topics(timeout=TIMEOUT_SECONDS)
    places = [(name, index) for name in choose_topics(found, names) for index in sorted(found.topics[name].partitions)]
    first, last = offsets_at(admin, places, "earliest"), offsets_at(admin, places, "latest")
    middle = None if since is None else offsets_at(admin, places, since)
    rows = []
    for place in places:
        row: dict[str, Any] = {"topic": place[0], "partition": place[1], "first": first[place], "next": last[place]}
        if middle is not None:
            row["at"] = middle[place] if middle[place] >= 0 else last[place]
        row["records"] = last[place] - first[place]
        rows.append(row)
    output.show(rows)


@app.command(watchable=True)
def sizes(
    target: Target,
    output: Output,
    names: SomeNames = None,
    partitions: Annotated[bool, typer.Option("--partitions", "-p", help="Of each partition and replica.")] = False,
) -> None:
    """Bytes on disk, on all brokers together, the largest first."""
    from moldau.cli.log_dirs import replica_sizes

    with target.admin() as admin:
        replicas = replica_sizes(admin)
    chosen = [
        each
        for each in replicas
        if (_matches(each.topic, names) if names else not each.topic.startswith("__")) and not each.is_future
    ]
    if names and not chosen:
        fail(f"no such topic: {', '.join(names)} (`moldau topic list` shows what there is)", ExitCode.NOT_FOUND)
    if partitions:
        rows: list[dict[str, Any]] = [
            {"topic": each.topic, "partition": each.partition, "broker": each.broker, "bytes": each.size_bytes}
            for each in chosen
        ]
    else:
        totals: dict[str, list[int]] = {}
        for each in chosen:
            totals.setdefault(each.topic, []).append(each.size_bytes)
        rows = [{"topic": topic, "replicas": len(each), "bytes": sum(each)} for topic, each in totals.items()]
    rows.sort(key=lambda row: (-row["bytes"], row["topic"], row.get("partition", 0)))
    if output.is_for_people:
        rows = [row | {"size": size(row["bytes"])} for row in rows]
    output.show(rows, empty="no topics")
