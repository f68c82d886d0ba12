"""Headers of the client's messages are read in one place, which knows what it does to names that are no text."""

import re
from pathlib import Path

import moldau

_ASKED = re.compile(r"\b(message|raw|msg|record|letter)\.headers\(\)")


def test_nobody_asks_a_message_itself() -> None:
    """What it gives then may end the process (`records/client_headers.py`)."""
    (package,) = moldau.__path__
    found = [
        f"{file.name}: {line.strip()}"
        for file in Path(package).rglob("*.py")
        if file.name != "client_headers.py"
        for line in file.read_text(encoding="utf-8").splitlines()
        if _ASKED.search(line)
    ]
    assert not found
