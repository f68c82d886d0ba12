"""`moldau topic create|list|describe|delete`, on any Kafka cluster."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import TYPE_CHECKING, Annotated

import typer

from moldau.cli.common import (
    DEFAULT_BOOTSTRAP_SERVER,
    TIMEOUT_SECONDS,
    BootstrapServer,
    admin_client,
    fail,
    kafka_errors,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

    from confluent_kafka.admin import AdminClient, ClusterMetadata

app = typer.Typer(help="Create, list, describe and delete topics.", no_args_is_help=True)

Names = Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Names of topics.")]


@app.command()
def create(
    names: Names,
    partitions: Annotated[int, typer.Option("--partitions", "-p", min=-1, help="-1 leaves it to the broker.")] = -1,
    replication_factor: Annotated[
        int, typer.Option("--replication-factor", "-r", min=-1, help="-1 leaves it to the broker.")
    ] = -1,
    configs: Annotated[
        list[str] | None, typer.Option("--config", "-c", metavar="KEY=VALUE", help="A topic setting; may be repeated.")
    ] = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="An existing topic is fine.")] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
) -> None:
    """Create topics."""
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import NewTopic

    if partitions == 0 or replication_factor == 0:
        fail("a topic has at least one partition and one replica; -1 leaves the number to the broker")
    settings = {}
    for pair in configs or ():
        key, equals, value = pair.partition("=")
        if not equals:
            fail(f"--config {pair}: give KEY=VALUE, for example retention.ms=60000")
        settings[key] = value
    topics = [NewTopic(name, partitions, replication_factor, config=settings) for name in names]
    with kafka_errors(bootstrap_server):
        admin = admin_client(bootstrap_server)
        fine = {KafkaError.TOPIC_ALREADY_EXISTS} if if_not_exists else set()
        _tell_each(admin.create_topics(topics), "created", fine)


def _tell_each(futures: Mapping[str, Future[None]], done: str, fine: Set[int] = frozenset()) -> None:
    """What became of each topic, a line each; fails at the end if any was refused for another reason than `fine`."""
    from confluent_kafka import KafkaException

    refused = 0
    for name, future in futures.items():
        try:
            future.result(TIMEOUT_SECONDS)
        except KafkaException as error:
            cause = error.args[0]
            if cause.code() in fine:
                continue
            if cause.code() < 0:  # the client's own: nobody answered, which concerns all of them
                raise
            refused += 1
            typer.echo(f"moldau: {name}: {cause.str()}", err=True)
        else:
            typer.echo(f"{done} {name}")
    if refused:
        raise typer.Exit(1)


@app.command("list")
def list_topics(
    internal: Annotated[bool, typer.Option("--internal", help="Also topics the cluster keeps for itself.")] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
) -> None:
    """List topics, one a line."""
    with kafka_errors(bootstrap_server):
        found = admin_client(bootstrap_server).list_topics(timeout=TIMEOUT_SECONDS)
    for name in sorted(found.topics):
        if internal or not name.startswith("__"):
            typer.echo(name)


@app.command()
def describe(names: Names, bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER) -> None:
    """Show partitions, leaders, replicas, and the settings that differ from the defaults."""
    with kafka_errors(bootstrap_server):
        admin = admin_client(bootstrap_server)
        found = admin.list_topics(timeout=TIMEOUT_SECONDS)
        missing = [name for name in names if name not in found.topics]
        if missing:
            fail(f"no such topic: {', '.join(missing)} (`moldau topic list` shows what there is)")
        for name in names:
            _describe(found, name, _own_settings(admin, name))


def _own_settings(admin: AdminClient, name: str) -> dict[str, str]:
    from confluent_kafka.admin import ConfigResource, ConfigSource

    resource = ConfigResource(ConfigResource.Type.TOPIC, name)
    (future,) = admin.describe_configs([resource]).values()
    entries = future.result(TIMEOUT_SECONDS).values()
    own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return {entry.name: entry.value for entry in entries if entry.source == own}


def _describe(found: ClusterMetadata, name: str, settings: dict[str, str]) -> None:
    from rich.console import Console
    from rich.table import Table

    topic = found.topics[name]
    shown = ", ".join(f"{key}={value}" for key, value in sorted(settings.items())) or "defaults"
    typer.echo(f"{name}: {len(topic.partitions)} partitions, {shown}")
    table = Table()
    for column in ("partition", "leader", "replicas", "in sync"):
        table.add_column(column, justify="right")
    for index, partition in sorted(topic.partitions.items()):
        table.add_row(
            str(index),
            str(partition.leader),
            " ".join(map(str, partition.replicas)),
            " ".join(map(str, partition.isrs)),
        )
    Console().print(table)


@app.command()
def delete(names: Names, bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER) -> None:
    """Delete topics and everything in them."""
    with kafka_errors(bootstrap_server):
        admin = admin_client(bootstrap_server)
        _tell_each(admin.delete_topics(list(names)), "deleted")
