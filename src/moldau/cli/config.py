"""`moldau config list|describe|set|unset`: settings of topics, brokers, groups and client metrics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer

from moldau.cli.client_settings import pairs
from moldau.cli.failure import ExitCode, code_of, misused, tell
from moldau.cli.frame import Commands, Output, Target

app = Commands(help="List, show and change settings of topics, brokers, groups and client metrics.")

KINDS = {"topic": 2, "broker": 4, "broker-logger": 8, "client-metrics": 16, "group": 32}
_SOURCES = {
    1: "topic", 2: "broker", 3: "all brokers", 4: "server.properties", 5: "default", 6: "broker logger",
    7: "client metrics", 8: "group",
}  # fmt: skip
_SET, _DELETE, _APPEND, _SUBTRACT = 0, 1, 2, 3

Kind = Annotated[str, typer.Argument(metavar="KIND", help=", ".join(KINDS))]
Name = Annotated[str, typer.Argument(metavar="NAME", help="A topic, a broker's id (- for all brokers), a group.")]


def _resource(kind: str, name: str) -> tuple[int, str]:
    if kind not in KINDS:
        misused(f"{kind!r}: settings belong to {', '.join(KINDS)}")
    if kind == "broker" and name == "-":
        return KINDS[kind], ""
    if kind.startswith("broker") and not name.isdecimal():
        misused(f"{name!r} is no broker: give its id, or - for what holds for all brokers")
    return KINDS[kind], name


@app.command("list")
def list_resources(
    target: Target,
    output: Output,
    kinds: Annotated[
        list[str] | None, typer.Argument(metavar="KIND...", help=f"Of these only: {', '.join(KINDS)}.")
    ] = None,
) -> None:
    """What has settings: topics, brokers, and the groups and client metrics that somebody gave some."""
    from moldau.client.connection import BrokerError
    from moldau.wire.messages import ListConfigResourcesRequest, ListConfigResourcesResponse

    for kind in kinds or ():
        if kind not in KINDS:
            misused(f"{kind!r}: settings belong to {', '.join(KINDS)}")
    request = ListConfigResourcesRequest(resource_types=[KINDS[kind] for kind in kinds or ()])
    with target.admin() as admin:
        answer = admin.ask(request, ListConfigResourcesResponse)
    if answer.error_code:
        raise BrokerError(answer.error_code, "what has settings")
    words = {number: kind for kind, number in KINDS.items()}
    found = {(words.get(each.resource_type, "?"), each.resource_name) for each in answer.config_resources}
    rows = [{"kind": kind, "name": name} for kind, name in sorted(found)]
    output.show(rows, empty="nothing of the kind has settings")


@app.command()
def describe(
    target: Target,
    output: Output,
    kind: Kind,
    name: Name,
    keys: Annotated[list[str] | None, typer.Argument(metavar="KEY...", help="Only these settings.")] = None,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also what is at its default.")] = False,
    documentation: Annotated[bool, typer.Option("--docs", help="Also what each is about.")] = False,
) -> None:
    """Settings that somebody set, and where; all of them with --all."""
    from moldau.client.connection import BrokerError
    from moldau.wire.messages import DescribeConfigsRequest, DescribeConfigsResponse

    number, resource_name = _resource(kind, name)
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=number, resource_name=resource_name, configuration_keys=list(keys) if keys else None
    )
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=False, include_documentation=documentation)
    with target.admin() as admin:
        if kind.startswith("broker") and resource_name:
            answer = admin.ask_broker(int(resource_name), request, DescribeConfigsResponse)
        else:
            if kind == "topic":
                _require_topic(admin, resource_name)
            answer = admin.ask(request, DescribeConfigsResponse)
    for result in answer.results:
        if result.error_code:
            raise BrokerError(result.error_code, f"settings of {kind} {name}")
        rows: list[dict[str, Any]] = []
        for entry in sorted(result.configs, key=lambda each: each.name):
            source = _SOURCES.get(entry.config_source, "?")
            if not everything and not keys and source in ("default", "server.properties"):
                continue
            row: dict[str, Any] = {
                "setting": entry.name,
                "value": "(hidden)" if entry.is_sensitive else entry.value,
                "from": source,
            }
            if documentation:
                row["about"] = entry.documentation
            rows.append(row)
        output.show(rows, empty=f"{kind} {name}: nothing was set; --all shows the defaults")


def _require_topic(admin: Any, name: str) -> None:
    from moldau.client.connection import BrokerError

    for topic in admin.metadata([name]).topics:
        if topic.error_code:
            raise BrokerError(topic.error_code, f"topic {name}")


Assignments = Annotated[
    list[str], typer.Argument(metavar="KEY=VALUE...", help="KEY+=VALUE adds to a list, KEY-=VALUE takes away.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only ask whether it would be done.")]


@app.command(
    "set",
    changes=True,
    examples=(
        "config set topic orders retention.ms=3600000 cleanup.policy+=compact",
        "config set broker - log.cleaner.threads=2",
        "config set broker-logger 1 moldau.broker=DEBUG",
    ),
)
def set_settings(
    target: Target, output: Output, kind: Kind, name: Name, settings: Assignments, dry_run: DryRun = False
) -> None:
    """Change settings; what is not named stays as it is."""
    alter_resources(target, output, kind, [name], settings, (), dry_run=dry_run)


@app.command("unset", changes=True)
def unset_settings(
    target: Target,
    output: Output,
    kind: Kind,
    name: Name,
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="Back to the default.")],
    dry_run: DryRun = False,
) -> None:
    """Take settings back: the default holds again."""
    alter_resources(target, output, kind, [name], (), keys, dry_run=dry_run)


def alter_resources(
    target: Target,
    output: Output,
    kind: str,
    names: Iterable[str],
    settings: Iterable[str],
    unset: Iterable[str],
    *,
    dry_run: bool = False,
) -> None:
    """Change settings of several things of a kind, and tell about each."""
    from moldau.client.connection import BrokerError
    from moldau.wire.messages import IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse

    request_type = IncrementalAlterConfigsRequest
    changes = [_change(text) for text in settings]
    changes += [(key, _DELETE, None) for key in unset]
    _require_one_each(key for key, _, _ in changes)
    if not changes:
        misused("nothing to change: give KEY=VALUE to set, or --unset KEY")
    failed: ExitCode | None = None
    with target.admin() as admin:
        for name in names:
            number, resource_name = _resource(kind, name)
            rows = [
                request_type.AlterableConfig(name=key, config_operation=operation, value=value)
                for key, operation, value in changes
            ]
            resource = request_type.AlterConfigsResource(
                resource_type=number, resource_name=resource_name, configs=rows
            )
            request = request_type(resources=[resource], validate_only=dry_run)
            if kind.startswith("broker") and resource_name:
                answer = admin.ask_broker(int(resource_name), request, IncrementalAlterConfigsResponse)
            else:
                answer = admin.ask(request, IncrementalAlterConfigsResponse)
            for each in answer.responses:
                if each.error_code:
                    error = BrokerError(each.error_code, f"{kind} {name}")
                    tell(f"{kind} {name}: {each.error_message}" if each.error_message else str(error))
                    failed = code_of(each.error_code)
                else:
                    done = "could change" if dry_run else "changed"
                    output.done(f"{done} {kind} {name}", {"kind": kind, "name": name, "result": done})
    if failed is not None:
        raise typer.Exit(failed)


def _require_one_each(keys: Iterable[str]) -> None:
    seen: set[str] = set()
    for key in keys:
        if key in seen:
            misused(f"{key} is given twice: a setting has one value (lists: {key}=a,b)")
        seen.add(key)


def _change(text: str) -> tuple[str, int, str | None]:
    for mark, operation in (("+=", _APPEND), ("-=", _SUBTRACT)):
        key, found, value = text.partition(mark)
        if found and "=" not in key:
            return key.strip(), operation, value.strip()
    ((key, value),) = pairs([text], "setting").items()
    return key, _SET, value
