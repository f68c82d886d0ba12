r"""Text of others on a terminal: what would move its cursor, change its title or hide lines is spelled out (`\u001b`).

Names, keys, values, headers and errors are written by whoever can reach the cluster. Pipes and files get what is there.
"""

from __future__ import annotations

# C0 but tab and newline, DEL, C1; and halves of surrogate pairs, which no terminal can be given.
_CONTROLS = [code for code in (*range(0x20), *range(0x7F, 0xA0), *range(0xD800, 0xE000)) if chr(code) not in "\t\n"]
_SPELLED = {code: f"\\u{code:04x}" for code in _CONTROLS}
_SPELLED_IN_LINE = _SPELLED | {ord("\n"): "\\n"}


def harmless(text: str) -> str:
    """Lines stay lines."""
    return text if text.isprintable() else text.translate(_SPELLED)


def harmless_cell(text: str) -> str:
    """For a table: a name with a newline in it must not look like two rows."""
    return text if text.isprintable() else text.translate(_SPELLED_IN_LINE)


def harmless_bytes(data: bytes) -> bytes:
    """Bytes that are no text are spelled, too: a terminal may take them for controls."""
    return harmless(data.decode(errors="backslashreplace")).encode()


def is_text(text: str) -> bool:
    """Whether UTF-8 has it: not half of a surrogate pair, as which arguments that are no UTF-8 come."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
