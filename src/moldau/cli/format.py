"""The `moldau format` command: give a new cluster its first users, or let a fixed voter that lost its disk begin anew.

A cluster without users needs no formatting. Beginning anew exists because only people can know that a majority of the
other voters is well.
"""

from __future__ import annotations

from typing import Annotated

import typer

from moldau.cli.failure import misused
from moldau.cli.frame import Commands
from moldau.cli.os_errors import reason

app = Commands()


@app.command()
def format_node(
    config: Annotated[str, typer.Option("--config", "-c", metavar="FILE", help="The node's server.properties.")],
    cluster_id: Annotated[
        str | None,
        typer.Option("--cluster-id", metavar="ID", help="The id of the cluster it belongs to; serve names it."),
    ] = None,
    add_scram: Annotated[
        list[str] | None,
        typer.Option(
            "--add-scram",
            "-S",
            metavar="USER",
            help="A first user, as in SCRAM-SHA-512=[name=alice,password=secret]; may be repeated.",
        ),
    ] = None,
) -> None:
    """Prepare a controller of a new cluster with its first users (--add-scram; the same on every controller), or let a
    voter that lost its disk rejoin controller.quorum.voters (--cluster-id alone): only while most others are well."""
    from moldau.broker.config import InvalidConfig, load_broker_config, read_properties
    from moldau.broker.node.identity import WrongDirectory, format_cluster, format_voter
    from moldau.seams import RealDisk, SystemRandom
    from moldau.security.first_users import parse_first_user

    if not add_scram and cluster_id is None:
        misused("say --add-scram for a new cluster, or --cluster-id for a voter that lost its disk")
    try:
        users = [parse_first_user(each) for each in add_scram or []]
    except ValueError as error:
        misused(f"--add-scram: {error}")
    try:
        settings = load_broker_config(read_properties(config))
        if users:
            cluster_id = format_cluster(settings, cluster_id, users, RealDisk(), SystemRandom())
        else:
            assert cluster_id is not None
            format_voter(settings, cluster_id, RealDisk(), SystemRandom())
    except (InvalidConfig, WrongDirectory, OSError) as error:
        misused(reason(error))
    if users:
        names = ", ".join(dict.fromkeys(each.name for each in users))
        typer.echo(f"formatted cluster {cluster_id} with the users {names}: format the other controllers, then start")
    else:
        typer.echo("formatted: start the node, and it fetches what the other voters have")
