"""`moldau acl add|list|remove`: who may do what, on any Kafka cluster with an authorizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from moldau.cli.asking import ask, fail_on
from moldau.cli.failure import misused, tell
from moldau.cli.frame import Commands, Output, Target

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from moldau.cli.output import Row


app = Commands(help="Rules about who may do what: add, list, remove.")

_ANY = 1
_CLUSTER = "kafka-cluster"

Topics = Annotated[list[str] | None, typer.Option("--topic", metavar="NAME", help="A topic; may be repeated.")]
Groups = Annotated[list[str] | None, typer.Option("--group", metavar="ID", help="A consumer group.")]
Transactions = Annotated[list[str] | None, typer.Option("--transactional-id", metavar="ID", help="A transactional id.")]
Users = Annotated[list[str] | None, typer.Option("--user", metavar="PRINCIPAL", help="Whose tokens, as User:name.")]
OnCluster = Annotated[bool, typer.Option("--cluster", help="The cluster itself.")]
Prefixed = Annotated[bool, typer.Option("--prefixed", help="Names are beginnings of names.")]
Principals = Annotated[
    list[str] | None,
    typer.Option("--principal", "-p", metavar="PRINCIPAL", help="User:name, or User:* for everybody; may be repeated."),
]
Operations = Annotated[
    list[str] | None,
    typer.Option("--operation", "-o", metavar="NAME", help="Read, Write, Describe, All …; repeatable."),
]
Hosts = Annotated[list[str] | None, typer.Option("--host", metavar="ADDRESS", help="From there only; repeatable.")]
Deny = Annotated[bool, typer.Option("--deny", help="A rule that forbids, which counts before any that allows.")]


@app.command(
    changes=True,
    examples=(
        "acl add --principal User:alice -o Read -o Describe --topic orders",
        "acl add --principal User:alice -o Read --group shop- --prefixed",
    ),
)
def add(
    target: Target,
    output: Output,
    principal: Principals = None,
    operation: Operations = None,
    topic: Topics = None,
    group: Groups = None,
    transactional_id: Transactions = None,
    user: Users = None,
    cluster: OnCluster = False,
    prefixed: Prefixed = False,
    host: Hosts = None,
    deny: Deny = False,
) -> None:
    """Allow (or --deny) principals operations on resources: every combination of what is given becomes a rule."""
    from moldau.controller.acls import Pattern, Permission
    from moldau.wire import messages as m

    if not principal:
        misused("--principal is missing: whom is the rule about? (User:name, or User:* for everybody)")
    resources = list(_resources(topic, group, transactional_id, user, cluster))
    if not resources:
        misused("give --topic, --group, --transactional-id, --user or --cluster: what is the rule about?")
    creations = [
        m.CreateAclsRequest.AclCreation(
            kind,
            name,
            Pattern.PREFIXED if prefixed and name != _CLUSTER else Pattern.LITERAL,
            who,
            where,
            _operation(what),
            Permission.DENY if deny else Permission.ALLOW,
        )
        for kind, name in resources
        for who in principal
        for what in operation or ["All"]
        for where in host or ["*"]
    ]
    answer = ask(target, m.CreateAclsRequest(creations), m.CreateAclsResponse)
    for creation, result in zip(creations, answer.results, strict=True):
        fail_on(result.error_code, result.error_message)
        row = _row(
            creation.resource_type,
            creation.resource_name,
            creation.resource_pattern_type,
            creation.principal,
            creation.host,
            creation.operation,
            creation.permission_type,
        )
        output.done(_words(row), row)


@app.command("list")
def list_rules(
    target: Target,
    output: Output,
    principal: Annotated[
        str | None, typer.Option("--principal", "-p", metavar="PRINCIPAL", help="Only of this one.")
    ] = None,
    topic: Topics = None,
    group: Groups = None,
    transactional_id: Transactions = None,
    user: Users = None,
    cluster: OnCluster = False,
) -> None:
    """Rules, one a line; of a resource, all that apply to it, prefixes and wildcards too."""
    from moldau.controller.acls import Pattern
    from moldau.wire import messages as m

    wanted: list[tuple[int, str | None]] = [*_resources(topic, group, transactional_id, user, cluster)]
    found: dict[str, Row] = {}
    for kind, name in wanted or [(_ANY, None)]:
        pattern = _ANY if name is None else Pattern.MATCH
        request = m.DescribeAclsRequest(kind, name, pattern, principal, None, _ANY, _ANY)
        answer = ask(target, request, m.DescribeAclsResponse)
        fail_on(answer.error_code, answer.error_message)
        for resource in answer.resources:
            for rule in resource.acls:
                row = _row(
                    resource.resource_type,
                    resource.resource_name,
                    resource.pattern_type,
                    rule.principal,
                    rule.host,
                    rule.operation,
                    rule.permission_type,
                )
                found[_words(row)] = row
    output.show([found[words] for words in sorted(found)], empty="no rules")


@app.command(changes=True)
def remove(
    target: Target,
    output: Output,
    principal: Principals = None,
    operation: Operations = None,
    topic: Topics = None,
    group: Groups = None,
    transactional_id: Transactions = None,
    user: Users = None,
    cluster: OnCluster = False,
    prefixed: Prefixed = False,
    host: Hosts = None,
    deny: Deny = False,
    everything: Annotated[bool, typer.Option("--all", help="Every rule there is, if nothing else is said.")] = False,
) -> None:
    """Remove rules. What is not given is not looked at: with --topic alone, all rules of that topic go."""
    from moldau.controller.acls import Pattern, Permission
    from moldau.wire import messages as m

    resources: list[tuple[int, str | None]] = [*_resources(topic, group, transactional_id, user, cluster)]
    if not (resources or principal or operation or host or everything):
        misused("say which rules: by --topic, --group, --principal …, or --all")
    anything: list[str | None] = [None]
    whos: Sequence[str | None] = principal or anything
    whats: Sequence[str | None] = operation or anything
    wheres: Sequence[str | None] = host or anything
    filters = [
        m.DeleteAclsRequest.DeleteAclsFilter(
            kind,
            name,
            _ANY if name is None else Pattern.PREFIXED if prefixed and name != _CLUSTER else Pattern.LITERAL,
            who,
            where,
            _ANY if what is None else _operation(what),
            Permission.DENY if deny else _ANY,
        )
        for kind, name in resources or [(_ANY, None)]
        for who in whos
        for what in whats
        for where in wheres
    ]
    answer = ask(target, m.DeleteAclsRequest(filters), m.DeleteAclsResponse)
    removed: dict[str, Row] = {}
    for result in answer.filter_results:
        fail_on(result.error_code, result.error_message)
        for rule in result.matching_acls:
            row = _row(
                rule.resource_type,
                rule.resource_name,
                rule.pattern_type,
                rule.principal,
                rule.host,
                rule.operation,
                rule.permission_type,
            )
            removed[_words(row)] = row
    for words in sorted(removed):
        output.done(f"removed {words}", removed[words])
    if not removed:
        tell("there was no such rule")


def _resources(
    topics: list[str] | None,
    groups: list[str] | None,
    transactional_ids: list[str] | None,
    users: list[str] | None,
    cluster: bool,
) -> Iterator[tuple[int, str]]:
    from moldau.controller.acls import AclResource

    for kind, names in (
        (AclResource.TOPIC, topics),
        (AclResource.GROUP, groups),
        (AclResource.TRANSACTIONAL_ID, transactional_ids),
        (AclResource.USER, users),
        (AclResource.CLUSTER, [_CLUSTER] if cluster else None),
    ):
        for name in names or ():
            yield kind, name


def _operation(name: str) -> int:
    from moldau.controller.acls import Operation

    wanted = name.replace("_", "").replace("-", "").lower()
    known = {key.replace("_", "").lower(): number for key, number in vars(Operation).items() if key.isupper()}
    if wanted not in known:
        names = sorted(_camel(key) for key in vars(Operation) if key.isupper())
        misused(f"--operation {name}: there are {', '.join(names)}")
    return int(known[wanted])


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _row(kind: int, name: str, pattern: int, principal: str, host: str, operation: int, permission: int) -> Row:
    from moldau.controller.acls import Pattern, Permission, operation_name, resource_name

    return {
        "principal": principal,
        "permission": "allow" if permission == Permission.ALLOW else "deny",
        "operation": _camel(operation_name(operation)),
        "resource": _camel(resource_name(kind)),
        "name": name,
        "pattern": "prefixed" if pattern == Pattern.PREFIXED else "literal",
        "host": host,
    }


def _words(row: Row) -> str:
    may = "may" if row["permission"] == "allow" else "may not"
    name = f"{row['name']}*" if row["pattern"] == "prefixed" else row["name"]
    where = "" if row["host"] == "*" else f" from {row['host']}"
    return f"{row['principal']} {may} {row['operation']} {row['resource']} {name}{where}"
