"""`sasl.jaas.config`: one line of Java's login configuration, which is where Kafka keeps users and passwords.

    org.apache.kafka.common.security.plain.PlainLoginModule required username="node" password="s" user_alice="t";

Only the module's own name counts here, not its package. Secrets are not shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

_TOKEN = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|\'((?:[^\'\\]|\\.)*)\'|([^\s="\';]+)|([=;]))', re.DOTALL)
_FLAGS = frozenset({"required", "requisite", "sufficient", "optional"})
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "b": "\b"}
_USER = "user_"


@dataclass(slots=True, frozen=True)
class JaasEntry:
    """One login module and its options."""

    module: str
    """Without its package: `ScramLoginModule`."""
    options: Mapping[str, str] = field(repr=False)

    @property
    def username(self) -> str | None:
        return self.options.get("username")

    @property
    def password(self) -> str | None:
        return self.options.get("password")

    @property
    def is_token(self) -> bool:
        """The user is the id of a delegation token."""
        return self.options.get("tokenauth", "").lower() == "true"

    @property
    def users(self) -> dict[str, str]:
        """The passwords PlainLoginModule knows, by user: its options `user_NAME`."""
        return {key.removeprefix(_USER): value for key, value in self.options.items() if key.startswith(_USER)}


def parse_jaas(text: str) -> JaasEntry:
    """ValueError says what is wrong, and never what the values are."""
    tokens = _tokens(text)
    words = [token.text for token in tokens]
    if len(tokens) < 3 or tokens[0].is_mark or words[1].lower() not in _FLAGS:
        raise ValueError("it must begin with a login module and `required`")
    marks = [token.text for token in tokens if token.is_mark]
    if not tokens[-1].is_mark or words[-1] != ";" or marks.count(";") != 1:
        raise ValueError("it must be one login module, ended by a semicolon")
    rest = tokens[2:-1]
    options: dict[str, str] = {}
    for place in range(0, len(rest), 3):
        option = rest[place : place + 3]
        if [token.is_mark for token in option] != [False, True, False]:
            raise ValueError('options are written as name="value"')
        options[option[0].text] = option[2].text
    return JaasEntry(words[0].rpartition(".")[2], options)


class _Token(NamedTuple):
    text: str
    is_mark: bool
    """`=` or `;`, not in quotation marks."""


def _tokens(text: str) -> list[_Token]:
    found = []
    position = 0
    text = text.strip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError("a quotation mark is not closed")
        position = match.end()
        double, single, bare, mark = match.groups()
        quoted = double if double is not None else single
        if quoted is not None:
            found.append(_Token(re.sub(r"\\(.)", _unescaped, quoted, flags=re.DOTALL), is_mark=False))
        else:
            found.append(_Token(bare or mark, is_mark=mark is not None))
    return found


def _unescaped(escape: re.Match[str]) -> str:
    return _ESCAPES.get(escape[1], escape[1])
