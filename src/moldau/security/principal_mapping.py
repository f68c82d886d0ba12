"""`ssl.principal.mapping.rules`: how the distinguished name of a certificate becomes a user's name.

    RULE:^CN=(.*?),OU=.*$/$1/L,DEFAULT

Rules are tried in order; `DEFAULT` keeps the whole name. A name that no rule fits has no principal: its connection is
refused, as in Kafka.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_RULE = r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?).*?|(.*?)"
_SPLIT = re.compile(rf"\s*({_RULE})\s*(,\s*|$)")
_RULE_PARTS = re.compile(_RULE)
_REFERENCE = re.compile(r"\\(.)|\$(\d+)|[\s\S]")


class NoMatchingRule(Exception):
    """No rule fits the name."""


@dataclass(slots=True, frozen=True)
class _Rule:
    pattern: re.Pattern[str] | None
    """None for DEFAULT."""
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        if self.pattern is None:
            return name
        found = self.pattern.fullmatch(name)
        if found is None:
            return None
        mapped = _expand(found, self.replacement)
        return {"L": mapped.lower, "U": mapped.upper}.get(self.case, lambda: mapped)()


class PrincipalMapping:
    def __init__(self, rules: str = "DEFAULT") -> None:
        """ValueError says which rule cannot be read."""
        self._rules = tuple(_parse(rules.strip()))

    def name_of(self, distinguished_name: str) -> str:
        for rule in self._rules:
            name = rule.apply(distinguished_name)
            if name is not None:
                return name
        raise NoMatchingRule(f"no rule of ssl.principal.mapping.rules fits {distinguished_name!r}")


def _parse(text: str) -> list[_Rule]:
    rules = []
    position = 0
    while position < len(text):
        split = _SPLIT.match(text, position)
        assert split is not None  # the last alternative takes anything
        position = max(split.end(), position + 1)
        part = split[1]
        parts = _RULE_PARTS.match(part)
        if parts is None or parts.end() != len(part):
            raise ValueError(f"'{part}' is no rule: write DEFAULT or RULE:pattern/replacement/[L|U]")
        if parts[1] is not None:
            rules.append(_Rule(None))
        elif parts[2] is not None:
            try:
                rules.append(_Rule(re.compile(parts[2]), parts[3], parts[4]))
            except re.error as error:
                raise ValueError(f"the pattern of '{part}' cannot be read: {error}") from error
        elif part.strip():
            raise ValueError(f"'{part}' is no rule: write DEFAULT or RULE:pattern/replacement/[L|U]")
    return rules


def _expand(found: re.Match[str], replacement: str) -> str:
    """Java's replacement: `$1` is a group, `\\x` is x. A number that is no group stands for itself, as far as it is."""
    groups = found.re.groups
    pieces = []
    for piece in _REFERENCE.finditer(replacement):
        if piece[1] is not None:
            pieces.append(piece[1])
        elif piece[2] is not None:
            digits = piece[2]
            used = 1
            while used < len(digits) and int(digits[: used + 1]) <= groups:
                used += 1
            number = int(digits[:used])
            pieces.append((found[number] or "") + digits[used:] if number <= groups else f"${digits}")
        else:
            pieces.append(piece[0])
    return "".join(pieces)
