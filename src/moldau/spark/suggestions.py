"""What to write instead of a word that nobody knows."""

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The fix for an unknown word: the nearest known one, or all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, 1, 0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known are: {', '.join(names)}" if names else ""
