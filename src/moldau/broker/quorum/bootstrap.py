"""`bootstrap.checkpoint`: what a new cluster begins with, in the file that Kafka's `kafka-storage format` writes.

Moldau takes the users from it (`--add-scram`); features begin at the newest level it has. It is read by whoever becomes
the first active controller, once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from moldau.broker.quorum.snapshot_files import CorruptSnapshot, record_batches
from moldau.controller.features import bootstrap_records
from moldau.records import check_crc, iter_batches, iter_records
from moldau.seams import Disk
from moldau.wire import Message
from moldau.wire import messages as m
from moldau.wire.internal import decode_metadata_record

if TYPE_CHECKING:
    from moldau.security.first_users import FirstUser

NAME = "bootstrap.checkpoint"
_NUMBERS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}


def write_bootstrap(disk: Disk, folder: str, users: Iterable[FirstUser]) -> None:
    records: list[Message] = bootstrap_records()
    records += [
        m.UserScramCredentialRecord(
            each.name,
            _NUMBERS[each.mechanism],
            each.keys.salt,
            each.keys.stored_key,
            each.keys.server_key,
            each.keys.iterations,
        )
        for each in users
    ]
    disk.write_file_atomically(f"{folder}/{NAME}", b"".join(record_batches(records)))


def first_users(disk: Disk, folder: str) -> list[Message]:
    """The records of users; none if there is no such file. Raises CorruptSnapshot."""
    path = f"{folder}/{NAME}"
    if not disk.exists(path):
        return []
    data = disk.read_file(path)
    users: list[Message] = []
    try:
        for position, header in iter_batches(data):
            check_crc(data, position, header)
            if not header.is_control:
                values = (record.value for record in iter_records(data, position))
                records = [decode_metadata_record(value) for value in values if value is not None]
                users += [each for each in records if isinstance(each, m.UserScramCredentialRecord)]
    except Exception as error:  # whatever bytes do to those who read them
        raise CorruptSnapshot(f"{path} is damaged: format the node again, or remove it ({error})") from error
    return users
