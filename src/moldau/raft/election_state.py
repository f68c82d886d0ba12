"""What a replica must never forget about elections: the epoch, whom it voted for, and who won. The `quorum-state` file.

Kafka's JSON: version 0 with a fixed voter set, version 1 (directory ids, KIP-853) from kraft.version 1 on.
"""

from __future__ import annotations

import base64
import json
from typing import NamedTuple

from moldau.raft.voters import NO_NODE, ReplicaKey
from moldau.wire import ZERO_UUID


class ElectionState(NamedTuple):
    """One vote per epoch, and one leader: both rest on this being on disk before it is said."""

    epoch: int = 0
    leader_id: int | None = None
    voted: ReplicaKey | None = None


class CorruptQuorumState(Exception):
    """The file cannot be read; voting again with it forgotten could elect two leaders."""


def encode_quorum_state(state: ElectionState, kraft_version: int, voter_ids: list[int]) -> bytes:
    leader_id = NO_NODE if state.leader_id is None else state.leader_id
    voted_id = NO_NODE if state.voted is None else state.voted.id
    if kraft_version == 0:
        old = {
            "clusterId": "",
            "leaderId": leader_id,
            "leaderEpoch": state.epoch,
            "votedId": voted_id,
            "appliedOffset": 0,
            "currentVoters": [{"voterId": each} for each in voter_ids],
            "data_version": 0,
        }
        return json.dumps(old).encode()
    directory_id = ZERO_UUID if state.voted is None else state.voted.directory_id
    new = {
        "leaderId": leader_id,
        "leaderEpoch": state.epoch,
        "votedId": voted_id,
        "votedDirectoryId": base64.urlsafe_b64encode(directory_id).rstrip(b"=").decode(),
        "data_version": 1,
    }
    return json.dumps(new).encode()


def decode_quorum_state(data: bytes) -> ElectionState:
    try:
        values = json.loads(data)
        version = values["data_version"]
        leader_id, voted_id = int(values["leaderId"]), int(values["votedId"])
        directory_id = ZERO_UUID
        if version == 1:
            directory_id = base64.urlsafe_b64decode(values["votedDirectoryId"] + "==")
        elif version != 0:
            raise CorruptQuorumState(f"quorum-state has version {version}, which is newer than this node")
        return ElectionState(
            int(values["leaderEpoch"]),
            None if leader_id < 0 else leader_id,
            None if voted_id < 0 else ReplicaKey(voted_id, directory_id),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptQuorumState(
            f"quorum-state cannot be read ({error}): restore it from a backup, "
            "or remove this node's metadata folder and let it fetch the log anew as an observer"
        ) from error
