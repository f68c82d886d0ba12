"""Retries that a relay waits for: a failed record among the delayed messages, on its way to its retry topic.

Invariant: the id is that of one failure (group, origin, level). A member that dies between the acknowledgement and its
commit fails with the record once more, and replaces what is pending: there is one retry, and not two.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau.toolkit.delays import entry
from moldau.toolkit.delays.entry import Delayed

if TYPE_CHECKING:
    from moldau.toolkit.delays.sending import Delays
    from moldau.toolkit.letters import Origin
    from moldau.toolkit.sending import Record


@dataclass(slots=True, frozen=True)
class Later:
    """Under which id a record waits, and how long."""

    id: str
    due_ms: int


def retry_id(group: str, origin: Origin, level: int) -> str:
    """What `cancel` would take."""
    found = f"retry-{level}/{group}/{origin.id}"
    if len(found.encode()) <= entry.ID_BYTES_MAX:
        return found
    return f"retry-{level}/{hashlib.sha256(found.encode()).hexdigest()}"


async def order_retry(delays: Delays, later: Later, record: Record) -> Record:
    """The command that has this record delivered, as it is, when it is due. Raises `SendFailed` if the topics of the
    delays cannot be made."""
    if not delays.was_used:
        await asyncio.to_thread(delays.make_topics)
    delayed = Delayed(later.due_ms, record.topic, record.key, record.value, list(record.headers), is_retry=True)
    return delays.command(later.id, entry.encode(delayed))
