"""Values as Arrow takes them."""

import uuid
from typing import Any


def plain(value: Any) -> Any:
    """What Arrow does not know by itself."""
    match value:
        case uuid.UUID():
            return str(value)
        case dict():
            return {key: plain(each) for key, each in value.items()}
        case list():
            return [plain(each) for each in value]
        case _:
            return value
