"""What people may do. Each role may do what those before it may."""

from enum import IntEnum


class Role(IntEnum):
    """ANYBODY needs no login; a VIEWER looks; an OPERATOR sends, resets and redrives; an ADMIN changes the cluster."""

    ANYBODY = 0
    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3

    @property
    def word(self) -> str:
        return self.name.lower()


def role_named(word: str) -> Role:
    """Raises ValueError for words that are no role of people."""
    found = {role.word: role for role in (Role.VIEWER, Role.OPERATOR, Role.ADMIN)}.get(word.strip().lower())
    if found is None:
        raise ValueError(f"{word!r} is no role: write viewer, operator or admin")
    return found
