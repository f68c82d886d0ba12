"""`moldau certs`: a small certificate authority for trying things out. In production, use the one you have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moldau.cli.failure import ExitCode, fail, misused
from moldau.cli.os_errors import reason

if TYPE_CHECKING:
    from moldau.security.certificates import Certified

app = typer.Typer(
    help="Make certificates for trying things out: an authority, servers, clients.",
    no_args_is_help=True,
    add_completion=False,
)

Folder = Annotated[Path, typer.Option("--dir", "-d", metavar="DIR", help="Where certificates are kept.")]
Days = Annotated[int, typer.Option("--days", min=1, max=36_500, help="How long it is valid.")]
_DEFAULT = Path("moldau-certs")
_AUTHORITY, _TRUSTED = "ca-key.pem", "ca.pem"


@app.command()
def init(
    folder: Folder = _DEFAULT,
    name: Annotated[str, typer.Option("--name", help="The authority's name.")] = "Moldau trial CA",
    days: Days = 3650,
) -> None:
    """Make an authority: ca.pem is for ssl.truststore.location everywhere; ca-key.pem stays secret."""
    from moldau.security.certificates import CertificatesUnavailable, new_authority

    if (folder / _AUTHORITY).exists():
        misused(f"{folder / _AUTHORITY} is there already: an authority made anew would invalidate what it signed")
    try:
        authority = new_authority(name, days=days)
        folder.mkdir(parents=True, exist_ok=True)
        authority.write(folder / _AUTHORITY)
        (folder / _TRUSTED).write_text(authority.certificate)
    except (CertificatesUnavailable, OSError) as error:
        fail(reason(error))
    typer.echo(f"{folder / _TRUSTED}")


@app.command()
def server(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the node; the file is called so.")],
    hosts: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="HOST", help="A name or address clients use; may be repeated."),
    ] = None,
    folder: Folder = _DEFAULT,
    days: Days = 365,
) -> None:
    """A certificate for a node: NAME.pem is for ssl.keystore.location with ssl.keystore.type=PEM."""
    _issue(folder, name, hosts or ["localhost", "127.0.0.1", "::1"], days)


@app.command()
def client(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The user; the file is called so.")],
    folder: Folder = _DEFAULT,
    days: Days = 365,
) -> None:
    """A certificate for a client: NAME.pem proves that it is CN=NAME, where a listener asks for certificates."""
    _issue(folder, name, [], days)


def _issue(folder: Path, name: str, hosts: list[str], days: int) -> None:
    from moldau.security.certificates import CertificatesUnavailable, issue

    if Path(name).name != name or name in (".", "..", "ca", "ca-key"):
        misused(f"{name!r} cannot be the name of a file: use another")
    path = folder / f"{name}.pem"
    try:
        authority = _read_authority(folder)
        issue(authority, name, hosts, days=days).write(path, authority.certificate)
    except (CertificatesUnavailable, OSError, ValueError, TypeError) as error:
        fail(reason(error))
    typer.echo(f"{path}")


def _read_authority(folder: Path) -> Certified:
    from moldau.security.certificates import Certified

    path = folder / _AUTHORITY
    if not path.exists():
        fail(f"{path} is not there: `moldau certs init` makes it", ExitCode.NOT_FOUND)
    return Certified.read(path)
