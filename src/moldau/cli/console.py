"""`moldau console`: a cluster in the browser, Moldau or Apache Kafka. `moldau console-user`: a line for its users."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from moldau.cli.failure import fail, misused
from moldau.cli.frame import Target

if TYPE_CHECKING:
    from moldau.console.gate.oidc import OidcSettings
    from moldau.console.settings import ConsoleSettings

DEFAULT_LISTEN = "127.0.0.1:8080"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_NEEDED = ("starlette", "uvicorn", "jinja2", "multipart", "msgspec")
_GRACE_S = 2
_BACKLOG = 128


def console(
    target: Target,
    listen: Annotated[
        str, typer.Option("--listen", "-l", metavar="HOST:PORT", help="Where browsers connect.")
    ] = DEFAULT_LISTEN,
    users: Annotated[
        Path | None,
        typer.Option("--users", metavar="FILE", help="Who may log in; `moldau console-user` makes its lines."),
    ] = None,
    oidc: Annotated[
        Path | None, typer.Option("--oidc", metavar="FILE", help="A provider to log in with: see docs/console.md.")
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Look, and change nothing.")] = False,
    allow_host: Annotated[
        list[str] | None, typer.Option("--allow-host", metavar="NAME", help="A name browsers use; may be repeated.")
    ] = None,
    mask: Annotated[
        Path | None, typer.Option("--mask", metavar="FILE", help="Fields nobody may see: see docs/console.md.")
    ] = None,
    dead_letters: Annotated[
        list[str] | None,
        typer.Option(
            "--dead-letters", metavar="PATTERN", help="Topics of dead letters besides *-dlt; may be repeated."
        ),
    ] = None,
    schema_registry: Annotated[
        str | None, typer.Option("--schema-registry", metavar="URL", help="Confluent's API; decodes values by schema.")
    ] = None,
    pipelines: Annotated[
        list[Path] | None, typer.Option("--pipelines", metavar="DIR", help="Where checkpoints of pipelines are.")
    ] = None,
    audit_log: Annotated[
        Path | None, typer.Option("--audit-log", metavar="FILE", help="Changes, a line of JSON each.")
    ] = None,
    tls_certificate: Annotated[Path | None, typer.Option("--tls-certificate", metavar="FILE", help="PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="PEM.")] = None,
    behind_tls: Annotated[
        bool, typer.Option("--behind-tls", help="A proxy before it speaks TLS: cookies are sent through TLS only.")
    ] = False,
    refresh: Annotated[float, typer.Option(help="Seconds between two looks at the cluster.", min=0.2)] = 5.0,
    until_stdin_closes: Annotated[
        bool, typer.Option("--until-stdin-closes", help="Stop when whoever started this is gone.")
    ] = False,
) -> None:
    """Show a cluster in the browser. Prints `ready http://HOST:PORT`; stop it with Ctrl-C or SIGTERM."""
    from importlib.util import find_spec

    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        misused(f"the console needs {', '.join(missing)}: pip install 'moldau[console]'")
    from moldau.console.gate.roles import Role
    from moldau.console.messages.masking import parse_masks
    from moldau.console.settings import ConsoleSettings

    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal():
        misused(f"--listen {listen}: give HOST:PORT, for example {DEFAULT_LISTEN}")
    if host not in _LOOPBACK and users is None and oidc is None:
        misused(f"--listen {listen} can be reached by others, so people must log in: give --users FILE or --oidc FILE")
    try:
        provider = _oidc(oidc) if oidc is not None else None
        public = urlsplit(provider.public_url if provider is not None else "")
        settings = ConsoleSettings(
            kafka=target.settings,
            users_file=users,
            oidc=provider,
            is_read_only=read_only,
            open_role=Role.ADMIN,
            hosts=_hosts(host, [*(allow_host or []), *([public.hostname] if public.hostname else [])]),
            is_secure=behind_tls or tls_certificate is not None or public.scheme == "https",
            masks=parse_masks(mask.read_text(encoding="utf-8")) if mask is not None else (),
            dead_letters=("*-dlt", *(dead_letters or ())),
            registry_url=schema_registry,
            pipeline_folders=tuple(folder.resolve() for folder in pipelines or ()),
            audit_file=audit_log,
            refresh_s=refresh,
        )
        if audit_log is not None:
            audit_log.open("a").close()
        _serve(settings, host, int(port), tls_certificate, tls_key, until_stdin_closes=until_stdin_closes)
    except OSError as error:
        fail(f"{error.filename or listen}: {error.strerror}")
    except ValueError as error:
        misused(str(error))


def _hosts(host: str, more: list[str]) -> frozenset[str]:
    names = {"127.0.0.1", "localhost", "[::1]"} if host in _LOOPBACK else {host.lower()}
    if host in ("0.0.0.0", "::") and not more:  # noqa: S104  what was asked for
        misused("--listen on all addresses needs --allow-host NAME for each name browsers use")
    return frozenset(names | {name.lower() for name in more})


def _oidc(file: Path) -> OidcSettings:
    import os

    from moldau.broker.config import read_properties
    from moldau.console.gate.oidc import OidcSettings
    from moldau.console.gate.roles import role_named

    told = read_properties(str(file))
    for name in ("issuer", "client.id", "public.url"):
        if not told.get(name):
            raise ValueError(f"{file}: {name} is missing")
    roles = {key.removeprefix("role."): role_named(value) for key, value in told.items() if key.startswith("role.")}
    default = told.get("default.role")
    return OidcSettings(
        issuer=told["issuer"],
        client_id=told["client.id"],
        client_secret=told.get("client.secret") or os.environ.get("MOLDAU_OIDC_CLIENT_SECRET", ""),
        public_url=told["public.url"],
        role_claim=told.get("claim", "roles"),
        roles=roles,
        default_role=role_named(default) if default else None,
        scopes=told.get("scopes", "openid profile email"),
    )


def bound(host: str, port: int) -> socket.socket:
    """A socket for browsers. Its connections send at once what they are given: a page leaves in two pieces, and the
    second would wait 40 ms for a word about the first. (asyncio sees to that only for sockets it made itself.)"""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.bind((host, port))
    return listener


def _serve(
    settings: ConsoleSettings,
    host: str,
    port: int,
    certificate: Path | None,
    key: Path | None,
    *,
    until_stdin_closes: bool,
) -> None:
    import asyncio

    import uvicorn

    from moldau.console.app import create_app

    app = create_app(settings)
    listener = bound(host, port)
    options: dict[str, Any] = {"ssl_certfile": str(certificate), "ssl_keyfile": str(key)} if certificate else {}
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            log_level="warning",
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=_GRACE_S,
            limit_concurrency=500,
            **options,
        )
    )

    async def run() -> None:
        if until_stdin_closes:
            asyncio.get_running_loop().add_reader(sys.stdin.fileno(), _stop_at_end, server)
        listener.listen(_BACKLOG)  # whoever comes from now on is answered when the server is up, in milliseconds
        shown = f"[{host}]" if ":" in host else host
        print(f"ready {'https' if certificate else 'http'}://{shown}:{listener.getsockname()[1]}", flush=True)
        await server.serve(sockets=[listener])

    asyncio.run(run())


def _stop_at_end(server: Any) -> None:
    import asyncio
    import os

    if not os.read(sys.stdin.fileno(), 1024):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        server.should_exit = True


def console_user(
    name: Annotated[str, typer.Argument(help="Who logs in.")],
    role: Annotated[str, typer.Option(help="viewer, operator or admin.")] = "viewer",
) -> None:
    """Print a line for the console's users file; asks for the password, or reads it from a pipe."""
    from getpass import getpass

    from moldau.console.gate.roles import role_named
    from moldau.console.gate.users import hashed

    if ":" in name or not name.isprintable() or not name:
        misused("a name has no colon, and can be printed")
    try:
        found = role_named(role)
    except ValueError as error:
        misused(str(error))
    password = getpass() if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
    if len(password) < 8:
        misused("a password has at least 8 characters")
    typer.echo(f"{name}:{found.word}:{hashed(password)}")
