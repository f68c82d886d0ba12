"""`moldau health`: one look at a cluster, for people and for scripts that wait until it is well."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from moldau.cli.failure import ExitCode, explain
from moldau.cli.findings import Finding, cluster_findings
from moldau.cli.frame import Commands, Output, Target

app = Commands()
_PAUSE_SECONDS = 0.5


@app.command(watchable=True)
def health(
    target: Target,
    output: Output,
    wait: Annotated[
        float | None, typer.Option("--wait", metavar="SECONDS", min=0, help="Until it is well, at most so long.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only what is wrong.")] = False,
) -> None:
    """Whether a cluster is well: brokers, leaders, replicas, quorum, disks. Exits with 6 if something is wrong."""
    deadline = time.monotonic() + (wait or 0)
    while True:
        try:
            found = _look(target)
        except Exception as error:
            explained = explain(error, target.bootstrap_servers)
            if explained is None or time.monotonic() >= deadline:
                raise
        except typer.Exit:
            if time.monotonic() >= deadline:
                raise
        else:
            if _is_well(found) or time.monotonic() >= deadline:
                break
        time.sleep(_PAUSE_SECONDS)  # between two looks
    shown = [each for each in found if not quiet or each.result != "ok"]
    document = {"healthy": _is_well(found), "checks": [each._asdict() for each in found]}
    output.show([each._asdict() for each in shown], document=document)
    if not _is_well(found):
        raise typer.Exit(ExitCode.UNHEALTHY)


def _look(target: Target) -> list[Finding]:
    with target.admin() as admin:
        return list(cluster_findings(admin))


def _is_well(found: list[Finding]) -> bool:
    return all(each.result != "failed" for each in found)
