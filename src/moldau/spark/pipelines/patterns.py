"""Regular expressions and log lines into columns, before any JVM: `(?<name>…)` groups, and `<date> <level>: <content>`.

A line's pattern runs in Java, in time linear in the line: every place is possessive, so nothing is ever tried twice. A
pattern of the user's own runs in RE2, which is linear whatever the pattern; one that RE2 does not know (looking around,
going back to a group) runs in Python with a limit of time for each record (`linear_groups.py`).
"""

from __future__ import annotations

import re


class PatternError(ValueError):
    """What is wrong with a pattern, and the fix, in one line."""


_NAMED = re.compile(r"\(\?P?<([A-Za-z_][A-Za-z0-9_]*)>")
# An escaped character, a class, or the parenthesis of a group without a name; what comes first is taken whole.
_UNNAMED = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\((?!\?)", re.S)
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


def python_pattern(pattern: str) -> str:
    """The same with names as Python and RE2 write them."""
    return _NAMED.sub(r"(?P<\1>", pattern)


def re2_pattern(pattern: str) -> str:
    """The same without groups that have no name: Arrow wants none."""
    return _UNNAMED.sub(lambda found: "(?:" if found[0] == "(" else found[0], python_pattern(pattern))


def line_pattern(line: str) -> str:
    """`<date> <time> <level> <component>: <content>` as a regular expression.

    A place ends where the text after it first begins; the last one takes the rest of the line. A blank stands for any
    number of them, and blanks at the end belong to nothing. Possessive throughout: a line that does not fit is known
    not to after one walk over it.
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
        pattern += f"(?<{name}>{_REST if last else _until(after)}){_literal(after)}"
    return rf"^{pattern}\s*+$"


def _literal(text: str) -> str:
    return re.sub(r"(?:\\\s)+|\s+", r"\\s++", re.escape(text))


# Words, and the blanks between them: not those at the end of the line.
_REST = r"(?:\S++|[^\S\r\n]++(?!\s*+$))*+"


def _until(text: str) -> str:
    """Everything before the first occurrence of the text, a run of blanks being one step."""
    if not text.strip():
        return r"\S*+"
    if text[0].isspace():
        return rf"(?:\S++|(?!{_literal(text)})[^\S\r\n]++)*+"
    return rf"(?:[^{re.escape(text[0])}\r\n]++|(?!{_literal(text)}).)*+"
