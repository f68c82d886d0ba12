"""`moldau spark pack`: what a Spark cluster needs to run Moldau's source, sink and pipelines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moldau.cli.failure import misused

app = typer.Typer(help="Prepare Spark clusters.", no_args_is_help=True, add_completion=False)


@app.callback()
def _several() -> None:
    """Prepare Spark clusters."""


@app.command()
def pack(
    path: Annotated[Path, typer.Argument(help="The archive to write.")] = Path("moldau-env.tar.gz"),
) -> None:
    """Write the archive that executors need, and say which settings use it."""
    try:
        from moldau.spark.packing import pack as write
        from moldau.spark.packing import settings_for
    except ImportError as error:
        misused(str(error))

    packed = write(path)
    typer.echo(f"{path}: {len(packed.packages)} packages, {packed.size_bytes / 1e6:.0f} MB. Tell Spark:")
    for name, value in settings_for(path).items():
        typer.echo(f"  --conf {name}={value}")
