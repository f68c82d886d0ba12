"""`moldau quorum …`: the controllers' Raft quorum: who leads, who is behind; voters come and go."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moldau.cli.failure import code_of, fail, misused
from moldau.cli.frame import Commands, Output, Target
from moldau.cli.target import addresses

if TYPE_CHECKING:
    from moldau.client.admin import Admin

app = Commands(help="The controllers' quorum: status, replicas, voters.")

_TOPIC = "__cluster_metadata"
_TIMEOUT_MS = 30_000


def describe_quorum(admin: Admin) -> tuple[Any, Any]:
    """The one partition of the metadata log, and the whole answer."""
    from moldau.client.connection import BrokerError
    from moldau.wire.messages import DescribeQuorumRequest, DescribeQuorumResponse

    partitions = [DescribeQuorumRequest.PartitionData(partition_index=0)]
    request = DescribeQuorumRequest(topics=[DescribeQuorumRequest.TopicData(topic_name=_TOPIC, partitions=partitions)])
    answer = admin.ask(request, DescribeQuorumResponse)
    if answer.error_code:
        raise BrokerError(answer.error_code, "the quorum")
    partition = answer.topics[0].partitions[0]
    if partition.error_code:
        raise BrokerError(partition.error_code, "the quorum")
    return partition, answer


@app.command(watchable=True)
def status(target: Target, output: Output) -> None:
    """Leader, epoch, high watermark, voters, observers, and the largest lag."""
    with target.admin() as admin:
        quorum, _ = describe_quorum(admin)
        cluster_id = admin.metadata([]).cluster_id
    voters, observers = list(quorum.current_voters), list(quorum.observers)
    end = max((each.log_end_offset for each in voters), default=0)
    lags = [end - each.log_end_offset for each in (*voters, *observers)]
    found = {
        "cluster_id": cluster_id,
        "leader": quorum.leader_id,
        "epoch": quorum.leader_epoch,
        "high_watermark": quorum.high_watermark,
        "voters": sorted(each.replica_id for each in voters),
        "observers": sorted(each.replica_id for each in observers),
        "max_lag": max(lags, default=0),
    }
    if output.as_json or output.template is not None:
        output.show([found], document=found)
    else:
        output.show([{"what": name.replace("_", " "), "is": value} for name, value in found.items()])


@app.command(watchable=True)
def replicas(target: Target, output: Output) -> None:
    """Every replica of the metadata log, and how far behind the leader it is."""
    from moldau.log.checkpoints import uuid_text

    with target.admin() as admin:
        quorum, _ = describe_quorum(admin)
    end = max((each.log_end_offset for each in quorum.current_voters), default=0)
    now_ms = time.time() * 1000
    rows = [
        {
            "id": each.replica_id,
            "role": "leader" if each.replica_id == quorum.leader_id else role,
            "directory": uuid_text(each.replica_directory_id),
            "end": each.log_end_offset,
            "lag": end - each.log_end_offset,
            "fetched_seconds_ago": None
            if each.last_fetch_timestamp < 0
            else round(max(0.0, now_ms - each.last_fetch_timestamp) / 1000, 1),
        }
        for role, group in (("voter", quorum.current_voters), ("observer", quorum.observers))
        for each in sorted(group, key=lambda each: each.replica_id)
    ]
    output.show(rows)


Voter = Annotated[int, typer.Argument(metavar="ID", min=0, help="The controller's node id.")]
Directory = Annotated[str, typer.Argument(metavar="DIRECTORY_ID", help="Its directory.id, in meta.properties.")]


def _directory(text: str) -> bytes:
    from moldau.log.checkpoints import uuid_bytes

    try:
        return uuid_bytes(text)
    except Exception:  # whatever is wrong with it
        misused(f"{text!r} is no directory id: 22 letters as in meta.properties, shown by `moldau quorum replicas`")


@app.command("add-voter", changes=True)
def add_voter(
    target: Target,
    output: Output,
    voter: Voter,
    directory: Directory,
    listener: Annotated[str, typer.Option("--listener", metavar="NAME://HOST:PORT", help="Where it listens.")],
) -> None:
    """Make an observer a voter (KIP-853); it must have caught up."""
    from moldau.client.connection import BrokerError
    from moldau.wire.messages import AddRaftVoterRequest, AddRaftVoterResponse

    name, found, place = listener.partition("://")
    if not found or not name:
        misused(f"--listener {listener}: write NAME://HOST:PORT, for example CONTROLLER://127.0.0.1:9093")
    ((host, port),) = addresses(place)
    request = AddRaftVoterRequest(
        cluster_id=None,
        timeout_ms=_TIMEOUT_MS,
        voter_id=voter,
        voter_directory_id=_directory(directory),
        listeners=[AddRaftVoterRequest.Listener(name=name, host=host, port=port)],
    )
    with target.admin() as admin:
        answer = admin.ask(request, AddRaftVoterResponse)
    if answer.error_code:
        reason = answer.error_message or str(BrokerError(answer.error_code, f"voter {voter}"))
        fail(reason, code_of(answer.error_code))
    output.done(f"{voter} is a voter", {"voter": voter, "directory": directory, "result": "added"})


@app.command("remove-voter", changes=True)
def remove_voter(target: Target, output: Output, voter: Voter, directory: Directory) -> None:
    """Take a voter out of the quorum (KIP-853)."""
    from moldau.client.connection import BrokerError
    from moldau.wire.messages import RemoveRaftVoterRequest, RemoveRaftVoterResponse

    request = RemoveRaftVoterRequest(cluster_id=None, voter_id=voter, voter_directory_id=_directory(directory))
    with target.admin() as admin:
        answer = admin.ask(request, RemoveRaftVoterResponse)
    if answer.error_code:
        reason = answer.error_message or str(BrokerError(answer.error_code, f"voter {voter}"))
        fail(reason, code_of(answer.error_code))
    output.done(f"{voter} is no voter any more", {"voter": voter, "directory": directory, "result": "removed"})
