"""Regular expressions and log lines into columns, before any JVM: `(?<name>…)` groups, and `<date> <level>: <content>`.

The pattern runs in Java at last; both dialects agree on what lines of logs need. `(?P<name>…)` is accepted too.
"""

from __future__ import annotations

import re


class PatternError(ValueError):
    """What is wrong with a pattern, and the fix, in one line."""


_NAMED = re.compile(r"\(\?P?<([A-Za-z_][A-Za-z0-9_]*)>")
_PLACE = re.compile(r"<([A-Za-z_]\w*)>")


def compiled(pattern: str) -> re.Pattern[str]:
    """The pattern as Python has it: to check it, and to know which group has which number."""
    try:
        return re.compile(_NAMED.sub(r"(?P<\1>", pattern))
    except re.error as error:
        place = f" at character {error.pos + 1}" if error.pos is not None else ""
        raise PatternError(f"not a regular expression: {error.msg}{place}") from None


def group_names(pattern: str) -> list[str]:
    """The columns, in the order of the pattern."""
    return list(compiled(pattern).groupindex)


def java_pattern(pattern: str) -> tuple[str, dict[str, int]]:
    """The pattern for Spark, and each column's group number. Java allows no underscore in names, so names go."""
    numbers = dict(compiled(pattern).groupindex)
    return _NAMED.sub("(", pattern), numbers


def line_pattern(line: str) -> str:
    """`<date> <time> <level> <component>: <content>` as a regular expression.

    A place ends where the text after it begins; the last one takes the rest of the line. A blank stands for any number
    of them, and blanks at the end belong to nothing.
    """
    parts = _PLACE.split(line)
    names = parts[1::2]
    if not names:
        raise PatternError("the line has no places; write <name> where a column is")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise PatternError(f"<{twice}> stands in the line twice; give each place a name of its own")
    pattern = _literal(parts[0])
    for index, name in enumerate(names):
        after = parts[2 * index + 2]
        last = index == len(names) - 1 and not after
        if not after and not last:
            raise PatternError(f"<{name}> and <{names[index + 1]}> touch; something has to stand between")
        pattern += f"(?<{name}>.*?){_literal(after)}"
    return rf"^{pattern}\s*$"


def _literal(text: str) -> str:
    return re.sub(r"(?:\\ )+|\s+", r"\\s+", re.escape(text))
