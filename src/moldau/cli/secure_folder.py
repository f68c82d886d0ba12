"""What `moldau cluster --secure` keeps beside its nodes: an authority, the nodes' certificate, and passwords.

Made on the first run, used again on the next. Everything secret is readable by its owner alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from moldau.broker.config.secure_cluster import (
    ADMIN_USER,
    CLIENTS,
    MECHANISM,
    NODE_USER,
    SecureFiles,
    client_properties,
    secure_settings,
)
from moldau.security.certificates import Certified, issue, new_authority, write_secret

if TYPE_CHECKING:
    from moldau.broker.config import BrokerConfig

_HOSTS = ("localhost", "127.0.0.1", "::1")


class SecureFolder:
    """ValueError if the cluster that is there began without security."""

    listener = CLIENTS

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._folder = folder = data_dir / "security"
        if not folder.exists():
            if any(data_dir.glob("node-*.properties")):
                raise ValueError(f"{data_dir} holds a cluster that began without --secure: use another --data-dir")
            folder.mkdir(mode=0o700)
            authority = new_authority("Moldau cluster CA")
            authority.write(folder / "ca-key.pem")
            (folder / "ca.pem").write_text(authority.certificate)
        if not (folder / "node.pem").exists():
            authority = Certified.read(folder / "ca-key.pem")
            issue(authority, NODE_USER, _HOSTS).write(folder / "node.pem", authority.certificate)
        self._node_password = self._password("node-password")
        self._admin_password = self._password("admin-password")

    def settings(self) -> dict[str, str]:
        """For every node."""
        files = SecureFiles(self._folder / "ca.pem", self._folder / "node.pem", self._node_password)
        return secure_settings(files)

    def format(self, config: BrokerConfig) -> None:
        """Give a new node its first users."""
        from moldau.broker.node.identity import format_cluster
        from moldau.seams import RealDisk, SystemRandom
        from moldau.security.first_users import first_user

        if Path(config.log_dirs[0]).exists():
            return
        users = [
            first_user(MECHANISM, NODE_USER, self._node_password),
            first_user(MECHANISM, ADMIN_USER, self._admin_password),
        ]
        format_cluster(config, None, users, RealDisk(), SystemRandom())

    def write_client_properties(self, servers: str) -> Path:
        path = self._data_dir / "client.properties"
        properties = client_properties(ADMIN_USER, self._admin_password, self._folder / "ca.pem")
        properties["bootstrap.servers"] = servers
        write_secret(path, "".join(f"{key}={value}\n" for key, value in properties.items()))
        return path

    def _password(self, name: str) -> str:
        path = self._folder / name
        if not path.exists():
            from secrets import token_urlsafe

            write_secret(path, token_urlsafe(24))
        return path.read_text().strip()
