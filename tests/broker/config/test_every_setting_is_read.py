"""No setting is accepted in silence and does nothing: whatever is not marked `ignored` is read by somebody.

`cordoned.log.dirs` once was not, and neither was `log.dir.failure.timeout.ms`.
"""

from pathlib import Path

import moldau
from moldau.broker.config.definition import Support
from moldau.broker.config.registry import broker_definitions

# Read under names that are put together, or part of something that is refused or not served as a whole.
_UNDER_OTHER_NAMES = (
    "group.consumer.",  # bounds of what groups may set: `config/group.py`
    "group.share.",
    "group.streams.",  # likewise; the groups themselves are not served
    "ssl.",
    "sasl.",
)


def test_whatever_is_not_marked_as_ignored_is_read_by_somebody() -> None:
    root = Path(moldau.__file__).parent
    source = "\n".join(
        path.read_text()
        for path in sorted(root.rglob("*.py"))
        if not (path.parent.name == "config" and path.name.startswith("broker_"))
    )
    unread = [
        name
        for name, definition in sorted(broker_definitions().items())
        if definition.support is Support.HONOURED
        and not definition.internal
        and not name.startswith(_UNDER_OTHER_NAMES)
        and f'"{name}"' not in source
    ]
    assert unread == []
