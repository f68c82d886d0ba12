"""The `moldau format` command: let a fixed voter that lost its disk begin anew.

Nobody needs it for a new cluster. It exists because only people can know that a majority of the other voters is well.
"""

from __future__ import annotations

from typing import Annotated

import typer


def format_voter(
    config: Annotated[str, typer.Option("--config", "-c", metavar="FILE", help="The node's server.properties.")],
    cluster_id: Annotated[
        str, typer.Option("--cluster-id", metavar="ID", help="The id of the cluster it belongs to; serve names it.")
    ],
) -> None:
    """Let a voter that lost its disk rejoin controller.quorum.voters: only while most of the others are up and well."""
    from moldau.broker.config import InvalidConfig, load_broker_config, read_properties
    from moldau.broker.node.identity import WrongDirectory, format_voter
    from moldau.seams import RealDisk, SystemRandom

    try:
        format_voter(load_broker_config(read_properties(config)), cluster_id, RealDisk(), SystemRandom())
    except (InvalidConfig, WrongDirectory, OSError) as error:
        typer.echo(f"moldau: {error}", err=True)
        raise typer.Exit(2) from error
    typer.echo("formatted: start the node, and it fetches what the other voters have")
