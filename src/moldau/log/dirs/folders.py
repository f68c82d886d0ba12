"""Names of partition folders: `topic-partition`, and what is appended while one is deleted, moved or left over."""

import re
from typing import NamedTuple

from moldau.log.checkpoints import TopicPartition

DELETE_SUFFIX = "-delete"
FUTURE_SUFFIX = "-future"
STRAY_SUFFIX = "-stray"
_PLAIN = re.compile(r"(.+)-(\d+)")
_MARKED = re.compile(r"(.+)-(\d+)\.([0-9a-f]{32})(-delete|-future|-stray)")
# What a folder's name may have on most file systems.
_MAX_NAME_BYTES = 255


class FolderName(NamedTuple):
    topic: str
    partition: int
    suffix: str  # "" for a partition in use

    @property
    def topic_partition(self) -> TopicPartition:
        return self.topic, self.partition


def parse_folder(name: str) -> FolderName | None:
    """None if it is no partition's folder."""
    found = _MARKED.fullmatch(name)
    if found is not None:
        return FolderName(found[1], int(found[2]), found[4])
    found = _PLAIN.fullmatch(name)
    if found is not None and not name.endswith((DELETE_SUFFIX, FUTURE_SUFFIX, STRAY_SUFFIX)):
        return FolderName(found[1], int(found[2]), "")
    return None


def folder_name(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def marked_folder_name(topic: str, partition: int, unique: bytes, suffix: str) -> str:
    """A name no other folder has; a long topic name is shortened, as the id tells the folders apart."""
    tail = f"-{partition}.{unique.hex()}{suffix}"
    return topic[: _MAX_NAME_BYTES - len(tail)] + tail
