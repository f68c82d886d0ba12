"""Text from elsewhere, made harmless to the eye: what cannot be seen, or turns lines around, is spelled out."""

from __future__ import annotations

import unicodedata

# Bidirectional controls reorder what stands around them; the others take no room and hide differences.
_HIDDEN = {
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
    0x061C,
    *range(0x200B, 0x2010),
    0x2028,
    0x2029,
    0x2060,
    0xFEFF,
    *range(0x7F, 0xA0),
    *(code for code in range(0x20) if chr(code) not in "\n\t"),
    *range(0xE0000, 0xE0080),
    *range(0xD800, 0xE000),  # halves of pairs, which JSON can write and UTF-8 cannot
}
_SPELLED = {code: f"⟨U+{code:04X}⟩" for code in _HIDDEN}


def visible(text: str) -> str:
    return text.translate(_SPELLED)


def one_line(text: str, most: int) -> str:
    """For a cell of a table."""
    cut = text[: most + 1].replace("\r", " ").replace("\n", " ").replace("\t", " ")
    return visible(cut[:most] + ("…" if len(cut) > most else ""))


def is_printable(text: str) -> bool:
    """Whether it is more likely text than bytes that happen to be valid."""
    sample = text[:4_000]
    odd = sum(unicodedata.category(char) in ("Cc", "Cn", "Co") and char not in "\n\r\t" for char in sample)
    return odd * 20 <= len(sample)
