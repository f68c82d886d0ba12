"""`moldau quota set|list|remove`: how much users, clients and addresses may use, on any Kafka cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from moldau.cli.asking import ask, fail_on
from moldau.cli.failure import misused
from moldau.cli.frame import Commands, Output, Target

if TYPE_CHECKING:
    from moldau.wire import messages as m


app = Commands(help="Limits of users, clients and addresses: set, list, remove.")

_DEFAULT = "default"
_KEYS = {
    "produce": "producer_byte_rate",
    "fetch": "consumer_byte_rate",
    "request-percent": "request_percentage",
    "mutations": "controller_mutation_rate",
    "connections": "connection_creation_rate",
}
_UNITS = {"k": 1_000, "m": 1_000_000, "g": 1_000_000_000}

User = Annotated[
    str | None, typer.Option("--user", "-u", metavar="NAME", help="A user; --user '' is the default user.")
]
ClientId = Annotated[
    str | None, typer.Option("--client-id", metavar="ID", help="A client id; '' is the default client id.")
]
Ip = Annotated[str | None, typer.Option("--ip", metavar="ADDRESS", help="An address; '' is the default address.")]


@app.command(
    "set",
    changes=True,
    examples=(
        "quota set --user alice --produce 1M --fetch 2M",
        "quota set --user '' --request-percent 50",
    ),
)
def set_quota(
    target: Target,
    output: Output,
    user: User = None,
    client_id: ClientId = None,
    ip: Ip = None,
    produce: Annotated[
        str | None, typer.Option("--produce", metavar="BYTES", help="Per second; 1M is 1000000.")
    ] = None,
    fetch: Annotated[str | None, typer.Option("--fetch", metavar="BYTES", help="Per second.")] = None,
    request_percent: Annotated[
        float | None, typer.Option("--request-percent", metavar="PERCENT", help="Of a broker's time.")
    ] = None,
    mutations: Annotated[
        float | None, typer.Option("--mutations", metavar="N", help="Partitions made or deleted per second.")
    ] = None,
    connections: Annotated[
        int | None, typer.Option("--connections", metavar="N", help="New connections per second; with --ip.")
    ] = None,
) -> None:
    """Set limits. A user and a client id together limit that client of that user."""
    given: dict[str, float | None] = {
        "produce": _bytes("--produce", produce),
        "fetch": _bytes("--fetch", fetch),
        "request-percent": request_percent,
        "mutations": mutations,
        "connections": None if connections is None else float(connections),
    }
    limits = {_KEYS[name]: value for name, value in given.items() if value is not None}
    if not limits:
        misused("say what is limited: --produce, --fetch, --request-percent, --mutations or --connections")
    _alter(target, output, _entity(user, client_id, ip), dict(limits))


@app.command("list")
def list_quotas(target: Target, output: Output) -> None:
    """Every limit, one entity a line."""
    from moldau.wire import messages as m

    answer = ask(target, m.DescribeClientQuotasRequest(), m.DescribeClientQuotasResponse)
    fail_on(answer.error_code, answer.error_message)
    names = {key: name for name, key in _KEYS.items()}
    rows = [
        {
            **{kind.replace("-", "_"): parts.get(kind) for kind in ("user", "client-id", "ip")},
            "limit": names.get(each.key, each.key),
            "per_second": int(each.value) if each.value.is_integer() else each.value,
        }
        for entry in answer.entries or ()
        if (parts := {part.entity_type: _shown(part.entity_name) for part in entry.entity})
        for each in entry.values
    ]
    output.show(sorted(rows, key=repr), empty="no limits")


@app.command(changes=True)
def remove(
    target: Target,
    output: Output,
    user: User = None,
    client_id: ClientId = None,
    ip: Ip = None,
    what: Annotated[
        list[str] | None, typer.Option("--limit", metavar="NAME", help=f"{', '.join(_KEYS)}; all without.")
    ] = None,
) -> None:
    """Remove limits of a user, a client id, both together, or an address."""
    for name in what or ():
        if name not in _KEYS:
            misused(f"--limit {name}: there are {', '.join(_KEYS)}")
    possible = ["connections"] if ip is not None else [name for name in _KEYS if name != "connections"]
    _alter(target, output, _entity(user, client_id, ip), {_KEYS[name]: None for name in what or possible})


def _entity(user: str | None, client_id: str | None, ip: str | None) -> list[m.AlterClientQuotasRequest.EntityData]:
    from moldau.wire import messages as m

    parts = {"user": user, "client-id": client_id, "ip": ip}
    found = [
        m.AlterClientQuotasRequest.EntityData(kind, name or None) for kind, name in parts.items() if name is not None
    ]
    if not found:
        misused("say whose: --user, --client-id, both, or --ip ('' is the default of its kind)")
    return found


def _alter(
    target: Target,
    output: Output,
    entity: list[m.AlterClientQuotasRequest.EntityData],
    limits: dict[str, float | None],
) -> None:
    from moldau.wire import messages as m

    ops = [m.AlterClientQuotasRequest.OpData(key, value or 0.0, value is None) for key, value in limits.items()]
    request = m.AlterClientQuotasRequest([m.AlterClientQuotasRequest.EntryData(entity, ops)])
    answer = ask(target, request, m.AlterClientQuotasResponse)
    for entry in answer.entries:
        fail_on(entry.error_code, entry.error_message)
    who = " ".join(f"{part.entity_type}={_shown(part.entity_name)}" for part in entity)
    output.done(f"{who}: changed", {"entity": who, "limits": limits})


def _shown(name: str | None) -> str:
    return f"<{_DEFAULT}>" if name is None else name


def _bytes(option: str, text: str | None) -> float | None:
    if text is None:
        return None
    number, factor = text, 1
    if text[-1:].lower() in _UNITS:
        number, factor = text[:-1], _UNITS[text[-1].lower()]
    try:
        return float(number) * factor
    except ValueError:
        misused(f"{option} {text}: give bytes per second, as 1000000 or 1M")
