"""RE2's syntax: text to a tree. See `regex` for why, and for what becomes of the tree.

What only changes which of several matches is found (laziness, captures, line modes) is read and ignored: all that is
asked is whether a whole name matches. What RE2 refuses (look-around, back-references) is refused.

A character class is the set of those of its characters that names may have, the alphabet: topic names have 65, and for
other names it is what occurs in them.
"""

from __future__ import annotations

import string
import unicodedata
from typing import NamedTuple

TOPIC_CHARACTERS = frozenset(string.ascii_letters + string.digits + "._-")
_ASCII = frozenset(map(chr, range(128)))
_DIGITS = frozenset(string.digits)
WORD = frozenset(string.ascii_letters + string.digits + "_")
_NONE: frozenset[str] = frozenset()

_LENGTH_MAX = 1_000
_REPEAT_MAX = 1_000
_NESTING_MAX = 100

_GRAPH = frozenset(string.ascii_letters + string.digits + string.punctuation)
_POSIX = {
    "alnum": frozenset(string.ascii_letters + string.digits),
    "alpha": frozenset(string.ascii_letters),
    "ascii": _ASCII,
    "blank": frozenset(" \t"),
    "cntrl": frozenset(char for char in _ASCII if unicodedata.category(char) == "Cc"),
    "digit": _DIGITS,
    "graph": _GRAPH,
    "lower": frozenset(string.ascii_lowercase),
    "print": _GRAPH | {" "},
    "punct": frozenset(string.punctuation),
    "space": frozenset(string.whitespace),
    "upper": frozenset(string.ascii_uppercase),
    "word": WORD,
    "xdigit": frozenset(string.hexdigits),
}
_PERL = {"d": _DIGITS, "w": WORD, "s": frozenset("\t\n\f\r ")}
_CONTROL = {"n": "\n", "t": "\t", "f": "\f", "r": "\r", "v": "\v", "a": "\a"}


class InvalidRegex(ValueError):
    """The text is no regular expression RE2 would take; the message says where it goes wrong."""


class Node(NamedTuple):
    """A piece of an expression: `char`, `concat`, `either`, `repeat`, or an assertion (START, END, WORD, NOT_WORD)."""

    kind: str
    chars: frozenset[str] = _NONE
    parts: tuple[Node, ...] = ()
    low: int = 0
    high: int = 0
    """Repetitions; -1: no limit."""


def parse(pattern: str, alphabet: frozenset[str] = TOPIC_CHARACTERS) -> Node:
    """The tree of an expression over names made of these characters, or InvalidRegex."""
    if len(pattern) > _LENGTH_MAX:
        raise InvalidRegex(f"longer than {_LENGTH_MAX} characters")
    return _Parser(pattern, alphabet).parse()


class _Parser:
    """Recursive descent, one character at a time."""

    def __init__(self, pattern: str, alphabet: frozenset[str]) -> None:
        self._text = pattern
        # Both cases of every letter, so that a class can be folded after it was made.
        self._alphabet = alphabet | _other_case(alphabet)
        self._at = 0
        self._depth = 0
        self._ignore_case = False
        self._dot_is_any = False

    def parse(self) -> Node:
        node = self._either()
        if self._at < len(self._text):
            raise InvalidRegex("unexpected ): no group is open")
        return node

    def _peek(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _take(self, text: str) -> bool:
        found = self._peek(text)
        if found:
            self._at += len(text)
        return found

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise InvalidRegex("it ends too early")
        char = self._text[self._at]
        self._at += 1
        return char

    def _until(self, end: str) -> str:
        found = self._text.find(end, self._at)
        if found < 0:
            raise InvalidRegex(f"missing {end}")
        text = self._text[self._at : found]
        self._at = found + len(end)
        return text

    def _either(self) -> Node:
        parts: list[Node] = []
        branch: list[Node] = []
        while self._at < len(self._text) and not self._peek(")"):
            if self._take("|"):
                parts.append(Node("concat", parts=tuple(branch)))
                branch = []
            elif self._take("\\Q"):
                end = self._text.find("\\E", self._at)
                quoted = self._text[self._at :] if end < 0 else self._until("\\E")
                self._at = len(self._text) if end < 0 else self._at
                branch += [self._char(char) for char in quoted]
            else:
                branch.append(self._repeated(self._atom()))
        parts.append(Node("concat", parts=tuple(branch)))
        return parts[0] if len(parts) == 1 else Node("either", parts=tuple(parts))

    def _atom(self) -> Node:
        char = self._next()
        if char == "(":
            return self._group()
        if char == "[":
            return Node("char", self._class())
        if char == ".":
            return Node("char", self._alphabet if self._dot_is_any else self._alphabet - {"\n"})
        if char == "^":
            return Node("START")
        if char == "$":
            return Node("END")
        if char == "\\":
            return self._escape()
        if char in "*+?":
            raise InvalidRegex(f"nothing to repeat before {char}")
        return self._char(char)

    def _char(self, char: str) -> Node:
        return Node("char", self._folded(frozenset(char)))

    def _folded(self, chars: frozenset[str]) -> frozenset[str]:
        if not self._ignore_case:
            return chars
        return chars | _other_case(chars)

    def _repeated(self, node: Node) -> Node:
        bounds = self._bounds()
        if bounds is None:
            return node
        low, high = bounds
        if max(low, high) > _REPEAT_MAX or (high != -1 and high < low):
            raise InvalidRegex(f"repetition {{{low},{high}}} is not possible (at most {_REPEAT_MAX})")
        self._take("?")  # lazy: the same names match
        if self._bounds() is not None:
            raise InvalidRegex("a repetition cannot be repeated: put it into a group")
        return Node("repeat", parts=(node,), low=low, high=high)

    def _bounds(self) -> tuple[int, int] | None:
        """The repetition that starts here, if one does. A brace that starts none is a brace."""
        for sign, bounds in (("*", (0, -1)), ("+", (1, -1)), ("?", (0, 1))):
            if self._take(sign):
                return bounds
        if not self._peek("{"):
            return None
        end = self._text.find("}", self._at)
        low, comma, high = self._text[self._at + 1 : end].partition(",")
        if end < 0 or not _is_number(low) or not (high == "" or _is_number(high)):
            return None
        self._at = end + 1
        if not comma:
            return int(low), int(low)
        return int(low), int(high) if high else -1

    def _group(self) -> Node:
        outer_case, outer_dot = self._ignore_case, self._dot_is_any
        if self._take("?"):
            if self._take("P<") or (not self._peek("<=") and not self._peek("<!") and self._take("<")):
                name = self._until(">")
                if not name.isidentifier():
                    raise InvalidRegex(f"invalid group name {name}")
            elif not self._flags():
                return Node("concat")  # flags for the rest of the group around
        self._depth += 1
        if self._depth > _NESTING_MAX:
            raise InvalidRegex(f"groups nested deeper than {_NESTING_MAX}")
        node = self._either()
        if not self._take(")"):
            raise InvalidRegex("missing )")
        self._depth -= 1
        self._ignore_case, self._dot_is_any = outer_case, outer_dot
        return node

    def _flags(self) -> bool:
        """Flags after `(?`. True: they hold for a group that follows; False: for what follows in this one."""
        on = True
        while True:
            char = self._next()
            if char == "i":
                self._ignore_case = on
            elif char == "s":
                self._dot_is_any = on
            elif char == "-" and on:
                on = False
            elif char == ":":
                return True
            elif char == ")":
                return False
            elif char not in "mU":
                raise InvalidRegex(f"(?{char} is not supported: no look-around, no unknown flags")

    def _escape(self) -> Node:
        assertion = {"A": "START", "z": "END", "b": "WORD", "B": "NOT_WORD"}.get(self._text[self._at : self._at + 1])
        if assertion is not None:
            self._at += 1
            return Node(assertion)
        return Node("char", self._folded(self._escaped_chars()))

    def _escaped_chars(self) -> frozenset[str]:
        """After a backslash: the characters it stands for."""
        char = self._next()
        if char.lower() in _PERL:
            chars = _PERL[char.lower()]
            return chars if char.islower() else self._alphabet - chars
        if char in "pP":
            return self._unicode(negated=char == "P")
        if char in _CONTROL:
            return frozenset(_CONTROL[char])
        if char == "x":
            digits = self._until("}") if self._take("{") else self._next() + self._next()
            return frozenset(_code_point(digits, 16))
        if char == "0" or (char in "1234567" and self._text[self._at : self._at + 1] in tuple("01234567")):
            digits = char
            while len(digits) < 3 and self._text[self._at : self._at + 1] in tuple("01234567"):
                digits += self._next()
            return frozenset(_code_point(digits, 8))
        if char.isascii() and char.isalnum():
            raise InvalidRegex(f"invalid escape \\{char}")
        return frozenset(char)

    def _unicode(self, *, negated: bool) -> frozenset[str]:
        name = self._until("}") if self._take("{") else self._next()
        if name.startswith("^"):
            negated, name = not negated, name[1:]
        chars = frozenset(char for char in self._alphabet if _is_in_unicode_class(char, name))
        return self._alphabet - chars if negated else chars

    def _class(self) -> frozenset[str]:
        negated = self._take("^")
        chars: set[str] = set()
        first = True
        while first or not self._take("]"):
            first = False
            if self._take("[:"):
                name = self._until(":]")
                complement = name.startswith("^")
                members = _POSIX.get(name.removeprefix("^"))
                if members is None:
                    raise InvalidRegex(f"invalid character class [:{name}:]")
                chars |= self._alphabet - members if complement else members
                continue
            low = self._class_item()
            dash = self._peek("-") and self._text[self._at + 1 : self._at + 2] not in ("", "]")
            if len(low) != 1 or not dash:
                chars |= low
                continue
            self._at += 1
            high = self._class_item()
            if len(high) != 1 or max(high) < min(low):
                raise InvalidRegex("invalid character class range")
            chars |= {char for char in self._alphabet if min(low) <= char <= max(high)}
        folded = self._folded(frozenset(chars))
        return self._alphabet - folded if negated else folded

    def _class_item(self) -> frozenset[str]:
        return self._escaped_chars() if self._take("\\") else frozenset(self._next())


def _other_case(chars: frozenset[str]) -> frozenset[str]:
    """Both cases of these, as far as they are one character: ß has no such upper case."""
    return frozenset(each for char in chars for each in (char.lower(), char.upper()) if len(each) == 1)


def _is_in_unicode_class(char: str, name: str) -> bool:
    """A category (`L`, `Lu`), or a script. Python knows no scripts, but names characters after them."""
    category = unicodedata.category(char)
    if name in {"Any", category, category[0]}:
        return True
    if name == "Common":
        return category[0] not in "LM"
    script = "CJK" if name == "Han" else name.upper()
    return category[0] in "LM" and unicodedata.name(char, "").startswith(f"{script} ")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 6


def _code_point(digits: str, base: int) -> str:
    try:
        return chr(int(digits, base))
    except (ValueError, OverflowError):
        raise InvalidRegex(f"invalid character code {digits}") from None
