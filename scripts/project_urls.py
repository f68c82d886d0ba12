"""Where this project lives on the web, for the package's metadata: asked when a package is built, because nobody who
writes the source can know under which address it is published.

What is asked, in this order, each only where it can be true:

1. `MOLDAU_REPOSITORY_URL`, the address of the repository's page;
2. on hosted CI, the repository whose checkout this is (`GITHUB_SERVER_URL`, `GITHUB_REPOSITORY`); not where somebody
   else's job builds us on its way (`pip install` of a source archive);
3. `git remote get-url origin` of this very folder, if it names a host that others can reach.

If none knows, the package has no links, which is better than wrong ones. A source archive has them in its PKG-INFO, and
hatchling takes them from there. A password inside of an address never comes along.
"""

from __future__ import annotations

import ipaddress
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hatchling.metadata.plugin.interface import MetadataHookInterface

VARIABLE = "MOLDAU_REPOSITORY_URL"
LINKS = {
    "Homepage": "",
    "Documentation": "/blob/HEAD/docs/index.md",
    "Source": "",
    "Changelog": "/blob/HEAD/CHANGELOG.md",
    "Issues": "/issues",
}
_SCP_LIKE = re.compile(r"[\w.-]+@([\w.-]+):(?!/)(.+)")  # git@host:owner/name


class ProjectUrls(MetadataHookInterface):
    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        # An empty table too says that the question was asked: a field left dynamic would be told as one.
        metadata["urls"] = links(repository(Path(self.root), os.environ))


def links(address: str | None) -> dict[str, str]:
    return {} if address is None else {name: address + path for name, path in LINKS.items()}


def repository(root: Path, environment: Mapping[str, str]) -> str | None:
    """The address of the repository's page, without a slash at its end."""
    told = environment.get(VARIABLE, "").strip()
    if told:
        address = page_of(told)
        if address is None:
            sys.exit(f"{VARIABLE}={told!r} is no address of a page: give it as https://host/owner/name")
        return address
    if (root / "PKG-INFO").exists():
        return None  # a source archive that was built without an address: the folders around it are somebody else's
    return _of_hosted_ci(root, environment) or _of_git(root)


def page_of(remote: str) -> str | None:
    """The page of what git calls a remote, if it is one on a host that others can reach."""
    scp_like = _SCP_LIKE.fullmatch(remote)
    if scp_like is not None:
        scheme, host, port, path = "https", scp_like[1], None, scp_like[2]
    else:
        try:
            parts = urlsplit(remote)
            scheme, host, port, path = parts.scheme, parts.hostname, parts.port, parts.path
        except ValueError:
            return None
        if scheme in ("ssh", "git+ssh"):
            scheme, port = "https", None
    path = path.strip("/").removesuffix(".git")
    if scheme not in ("http", "https") or host is None or not path or not _is_public(host):
        return None
    return f"{scheme}://{host}{f':{port}' if port else ''}/{path}"


def _is_public(host: str) -> bool:
    """Not this machine, not a bare number, not a name that only one network knows."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return "." in host and not host.endswith((".local", ".localhost", ".internal", ".lan"))
    return False


def _of_hosted_ci(root: Path, environment: Mapping[str, str]) -> str | None:
    server, name = environment.get("GITHUB_SERVER_URL"), environment.get("GITHUB_REPOSITORY")
    workspace = environment.get("GITHUB_WORKSPACE")
    if not server or not name or not workspace or Path(workspace).resolve() != root.resolve():
        return None
    return page_of(f"{server}/{name}")


def _of_git(root: Path) -> str | None:
    top = _git(root, "rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != root.resolve():
        return None  # unpacked inside of another project
    remote = _git(root, "remote", "get-url", "origin")
    return None if remote is None else page_of(remote)


def _git(root: Path, *arguments: str) -> str | None:
    # Inside of a hook, git's own variables name the repository of the hook, whatever folder is asked about.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(root), *arguments]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None  # no git here
    return done.stdout.strip() if done.returncode == 0 else None
