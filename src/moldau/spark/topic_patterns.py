"""Patterns of topic names as Java writes them (`subscribePattern`), for Python's engine.

Java's character classes know unions, intersections and properties (`[a-z&&[^xy]]`, `\\p{Alpha}`) that Python's do not.
But a topic's name has 65 possible characters, so a class is worked out to those it holds, and written out.
What cannot be translated is refused by its name, instead of meaning something else.

Invariant: a translated pattern finds something in a topic's name if and only if Java's does.
"""

import re
import string

LEGAL = string.ascii_letters + string.digits + "._-"
_POSIX = {
    "lower": string.ascii_lowercase,
    "upper": string.ascii_uppercase,
    "alpha": string.ascii_letters,
    "digit": string.digits,
    "alnum": string.ascii_letters + string.digits,
    "punct": "._-",
    "graph": LEGAL,
    "print": LEGAL,
    "ascii": LEGAL,
    "blank": "",
    "cntrl": "",
    "xdigit": string.hexdigits,
    "space": "",
}
# Unicode's categories and Java's own tests, as far as a topic's name can have them.
_PROPERTIES = _POSIX | {
    "l": string.ascii_letters,
    "lu": string.ascii_uppercase,
    "ll": string.ascii_lowercase,
    "lt": "",
    "lm": "",
    "lo": "",
    "n": string.digits,
    "nd": string.digits,
    "p": "._-",
    "pc": "_",
    "pd": "-",
    "po": ".",
    "s": "",
    "z": "",
    "alphabetic": string.ascii_letters,
    "letter": string.ascii_letters,
    "lowercase": string.ascii_lowercase,
    "uppercase": string.ascii_uppercase,
    "latin": string.ascii_letters,
    "javalowercase": string.ascii_lowercase,
    "javauppercase": string.ascii_uppercase,
    "javaletter": string.ascii_letters,
    "javaletterordigit": string.ascii_letters + string.digits,
    "javadigit": string.digits,
}
# Where case does not matter, Java takes these for letters of both cases.
_OF_ONE_CASE = {"lower", "upper", "lu", "ll", "lt", "lowercase", "uppercase", "javalowercase", "javauppercase"}
_SHORT = {
    "d": string.digits,
    "w": string.ascii_letters + string.digits + "_",
    "s": "",
    "h": "",
    "v": "",
}
_POSITIONS = {"z": r"\Z", "Z": r"\Z", "A": r"\A", "b": r"\b", "B": r"\B"}
_UNKNOWN_ESCAPES = "GRXNk"


class PatternRefused(ValueError):
    """Which part of the pattern has no translation."""


def topic_pattern(pattern: str) -> re.Pattern[str]:
    """Java's pattern for Python; raises PatternRefused."""
    translated = _Translator(pattern).whole()
    try:
        return re.compile(translated)
    except re.error as error:
        raise PatternRefused(f"is no regular expression: {error}") from None


class _Translator:
    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._ignores_case = [False]  # of the pattern, and of each group that is open

    def whole(self) -> str:
        found = []
        while self._at < len(self._text):
            found.append(self._piece())
        return "".join(found)

    def _piece(self) -> str:
        sign = self._text[self._at]
        if sign == "\\":
            return self._escape()
        if sign == "[":
            self._at += 1
            return self._written(self._class())
        if self._text.startswith("(?<", self._at) and self._text[self._at + 3 : self._at + 4] not in ("=", "!", ""):
            self._at += 3
            self._ignores_case.append(self._ignores_case[-1])
            return "(?P<"
        if flags := re.compile(r"\(\?([a-zA-Z-]+)[:)]").match(self._text, self._at):
            if set(flags[1]) - set("is-"):
                raise PatternRefused(f"uses {flags[0]!r}, which has no translation: leave the flag out")
            if flags[0].endswith(")") and self._at:
                raise PatternRefused(f"turns on {flags[0]!r} in its middle: write it at the beginning")
            on, _, off = flags[1].partition("-")
            ignores = ("i" in on or self._ignores_case[-1]) and "i" not in off
            if flags[0].endswith(")"):
                self._ignores_case = [ignores]
            else:
                self._ignores_case.append(ignores)
            self._at = flags.end()
            return flags[0]
        if sign == "(":
            self._ignores_case.append(self._ignores_case[-1])
        elif sign == ")" and len(self._ignores_case) > 1:
            self._ignores_case.pop()
        if sign == "{" and not re.compile(r"\{\d+(,\d*)?\}").match(self._text, self._at):
            raise PatternRefused("has a { that is no repetition, which Java refuses: write \\{")
        self._at += 1
        return sign

    def _escape(self) -> str:
        """One escape outside of a class."""
        sign = self._text[self._at + 1 : self._at + 2]
        if sign == "Q":
            return "".join(map(re.escape, self._quoted()))
        if sign in _POSITIONS and sign:
            self._at += 2
            return _POSITIONS[sign]
        if sign.isdigit() and sign != "0":
            self._at += 2
            return f"\\{sign}"
        single = self._characters()
        return self._written(single) if len(single) != 1 else re.escape(next(iter(single)))

    def _written(self, characters: frozenset[str]) -> str:
        """Case was thought of when the class was worked out; Python would do so again, after a negation."""
        found = _written(characters)
        return f"(?-i:{found})" if self._ignores_case[-1] else found

    def _both_cases(self, characters: frozenset[str]) -> frozenset[str]:
        """Of letters that a class names; of properties Java takes only some."""
        return characters | {each.swapcase() for each in characters} if self._ignores_case[-1] else characters

    def _quoted(self) -> str:
        end = self._text.find("\\E", self._at)
        end = len(self._text) if end < 0 else end
        quoted = self._text[self._at + 2 : end]
        self._at = min(end + 2, len(self._text))
        return quoted

    def _characters(self) -> frozenset[str]:
        """What one escape stands for, of the characters a topic's name can have."""
        sign = self._text[self._at + 1 : self._at + 2]
        if sign in ("p", "P"):
            return self._property(negated=sign == "P")
        self._at += 2
        if sign.lower() in _SHORT and sign:
            found = frozenset(_SHORT[sign.lower()])
            return frozenset(LEGAL) - found if sign.isupper() else found
        if sign in ("t", "n", "r", "f", "a", "e"):
            return frozenset()
        if sign in ("x", "u", "0", "c"):
            raise PatternRefused(f"uses \\{sign}: write the character itself")
        if not sign or sign in _UNKNOWN_ESCAPES or sign.isalpha():
            raise PatternRefused(f"uses \\{sign}, which has no translation")
        return frozenset(sign)

    def _property(self, *, negated: bool) -> frozenset[str]:
        match = re.compile(r"\\[pP](?:\{(\^?)([\w=]+)\}|(\w))").match(self._text, self._at)
        if match is None:
            raise PatternRefused("has a \\p that names no property")
        self._at = match.end()
        name = (match[2] or match[3]).lower()
        name = name.rpartition("=")[2]
        short = name if name in _PROPERTIES else re.sub(r"^(is|in)", "", name)
        if short not in _PROPERTIES:
            raise PatternRefused(f"uses {match[0]}, which is not known here: write the characters out")
        is_both = self._ignores_case[-1] and short in _OF_ONE_CASE
        found = frozenset(string.ascii_letters if is_both else _PROPERTIES[short])
        return frozenset(LEGAL) - found if negated or match[1] else found

    def _class(self) -> frozenset[str]:
        """A class whose bracket was just read, to its closing one: unions first, then intersections, then negation."""
        negated = self._text.startswith("^", self._at)
        self._at += negated
        parts: list[frozenset[str]] = []
        union: frozenset[str] = frozenset()
        first, is_written = True, False
        while True:
            rest = self._text[self._at :]
            if not rest:
                raise PatternRefused("has a [ that is not closed")
            if rest[0] == "]" and not first:
                self._at += 1
                break
            if rest.startswith("&&"):
                self._at += 2
                if is_written:  # Java leaves out a side on which nothing is written
                    parts.append(union)
                union, is_written, first = frozenset(), False, False
                continue
            if rest[0] == "[":
                self._at += 1
                union |= self._class()
            elif rest.startswith("\\Q"):
                union |= self._both_cases(frozenset(self._quoted()))
            else:
                union |= self._member()
            first, is_written = False, True
        if is_written:
            parts.append(union)
        if not parts:
            raise PatternRefused("has a class with nothing in it")
        found = parts[0]
        for part in parts[1:]:
            found &= part
        return frozenset(LEGAL) - found if negated else found & frozenset(LEGAL)

    def _member(self) -> frozenset[str]:
        low = self._single()
        if len(low) == 1 and re.match(r"-[^\]\[&]", self._text[self._at : self._at + 2]):
            self._at += 1
            high = self._single()
            if len(high) == 1 and min(high) >= min(low):
                return self._both_cases(frozenset(map(chr, range(ord(min(low)), ord(min(high)) + 1))))
            raise PatternRefused("has a range in a class that runs backwards")
        return self._both_cases(low) if len(low) == 1 else low

    def _single(self) -> frozenset[str]:
        if self._text[self._at] == "\\":
            return self._characters()
        self._at += 1
        return frozenset(self._text[self._at - 1])


def _written(characters: frozenset[str]) -> str:
    """A class of these; one that holds nothing matches nothing."""
    kept = "".join(re.escape(each) for each in sorted(characters) if each in LEGAL)
    return f"[{kept}]" if kept else r"(?!)"
