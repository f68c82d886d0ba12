"""Who a connection belongs to, in Kafka's words: a type, which is nearly always `User`, and a name."""

from __future__ import annotations

from dataclasses import dataclass, field

USER_TYPE = "User"


@dataclass(slots=True, frozen=True)
class Principal:
    """Equal if type and name are; how it proved itself makes no other user of it."""

    type: str
    name: str
    token_authenticated: bool = field(default=False, compare=False)
    """It came with a delegation token, so it must not ask for another one."""

    def __str__(self) -> str:
        """As ACLs and `super.users` write it."""
        return f"{self.type}:{self.name}"

    @classmethod
    def user(cls, name: str) -> Principal:
        return cls(USER_TYPE, name)

    @classmethod
    def parse(cls, text: str) -> Principal:
        """From `User:name`. ValueError for anything else."""
        kind, colon, name = text.partition(":")
        if not kind or not colon:
            raise ValueError(f"'{text}' is not a principal: write it as User:name")
        return cls(kind, name)


ANONYMOUS = Principal(USER_TYPE, "ANONYMOUS")
