"""What a console is told when it starts. Nothing of it can be changed through the browser."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from moldau.console.gate.oidc import OidcSettings
from moldau.console.gate.roles import Role
from moldau.console.messages.masking import MaskRule


@dataclass(slots=True, frozen=True)
class ConsoleSettings:
    kafka: Mapping[str, str]  # Kafka's settings for clients, bootstrap.servers among them
    users_file: Path | None = None
    oidc: OidcSettings | None = None
    is_read_only: bool = False
    open_role: Role = Role.ADMIN  # what everybody is where there is no login: on loopback only
    hosts: frozenset[str] = frozenset({"127.0.0.1", "localhost", "[::1]", "::1"})  # names the console answers to
    is_secure: bool = False  # browsers come through TLS: cookies say so
    masks: tuple[MaskRule, ...] = ()
    dead_letters: tuple[str, ...] = ("*-dlt",)  # patterns of topic names
    registry_url: str | None = None
    pipeline_folders: tuple[Path, ...] = ()
    audit_file: Path | None = None
    refresh_s: float = 5.0

    @property
    def has_login(self) -> bool:
        return self.users_file is not None or self.oidc is not None
