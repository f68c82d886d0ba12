"""Who this node is: cluster id, node id and directory ids, written into every log dir on the first start.

A dir of another cluster or another node is refused: its logs would be mixed up with ours. A new dir of a known node
is adopted, so that a disk can be replaced; a dir with partitions but without identity is not.

Nobody has to format anything. A node that knows its cluster keeps to it. A new node asks the controllers it was told
about; if it is a voter itself and none of the others answers, the cluster is new, and all its voters derive the same
id from the list of voters they share. A new node that is no voter waits for an answer: it cannot found a cluster.
Whether voters without a history may found one is the quorum's to decide (`moldau.raft.founding`).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from moldau.broker.quorum.settings import founds_quorum
from moldau.log.checkpoints import (
    META_PROPERTIES,
    MetaProperties,
    read_meta_properties,
    uuid_text,
    write_meta_properties,
)
from moldau.log.dirs.log_dir import LogDir
from moldau.raft.election_state import ElectionState, encode_quorum_state
from moldau.seams import Disk, Random
from moldau.seams.network import Disconnected, RequestTimedOut
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.channels import Channels
    from moldau.broker.config import BrokerConfig
    from moldau.security.first_users import FirstUser

_log = logging.getLogger(__name__)
_ROUNDS = 3  # of asking, before a cluster is founded
_ASK_MS = 500.0
_PAUSE_SECONDS = 0.1
METADATA_FOLDER, QUORUM_STATE = "__cluster_metadata-0", "quorum-state"
_CONTROLLERS = 2  # the kind of endpoint, in DescribeCluster


class WrongDirectory(Exception):
    """A log dir belongs to somebody else. The message says what to do."""


def known_cluster_id(dirs: list[LogDir], node_id: int) -> str | None:
    """The cluster these dirs belong to; None if they are all new. WrongDirectory if they are not ours."""
    known = [(each.path, each.properties) for each in dirs if each.properties is not None]
    cluster_ids = {properties.cluster_id for _, properties in known}
    if len(cluster_ids) > 1:
        raise WrongDirectory(
            f"log.dirs belong to different clusters: {', '.join(sorted(cluster_ids))}. Give each cluster its own dirs"
        )
    for path, properties in known:
        if properties.node_id != node_id:
            raise WrongDirectory(
                f"{path} belongs to node {properties.node_id}, and this is node {node_id}: "
                f"set node.id={properties.node_id}, or use another log.dirs"
            )
    return cluster_ids.pop() if cluster_ids else None


def adopt(dirs: list[LogDir], cluster_id: str, node_id: int, disk: Disk, random: Random) -> None:
    """Give new dirs an identity."""
    for each in dirs:
        if each.properties is None:
            if any(name[-1:].isdigit() and "-" in name for name in disk.list_dir(each.path)):
                raise WrongDirectory(
                    f"{each.path} holds partitions but no {META_PROPERTIES}: "
                    "restore that file, or move the dir away if it is no longer needed"
                )
            each.properties = MetaProperties(cluster_id, node_id, uuid_text(random.uuid()))
            write_meta_properties(disk, each.path, each.properties)


async def find_cluster_id(config: BrokerConfig, channels: Channels) -> str:
    """The id of the cluster this new node belongs to: asked of others, or derived if this founds it."""
    others = _other_controllers(config)
    is_voter = any(voter.id == config.node_id for voter in config.voters)
    rounds = 0
    while True:
        for told in await asyncio.gather(*(_ask(channels, host, port) for host, port in others)):
            if told:
                return told
        rounds += 1
        if is_voter and rounds >= (_ROUNDS if others else 1):
            return derived_cluster_id(config)
        if rounds == _ROUNDS:
            _log.warning(
                "waiting for a controller to tell which cluster this is: asked %s",
                ", ".join(f"{host}:{port}" for host, port in others),
            )
        await asyncio.sleep(_PAUSE_SECONDS)


async def refuse_other_cluster(config: BrokerConfig, channels: Channels, cluster_id: str) -> None:
    """A node that knows its cluster, and finds controllers of another one where it was told to look, must not go on."""
    others = _other_controllers(config)
    answers = await asyncio.gather(*(_ask(channels, host, port) for host, port in others))
    for (host, port), told in zip(others, answers, strict=True):
        if told is not None and told != cluster_id:
            raise WrongDirectory(
                f"log.dirs belong to cluster {cluster_id}, and the controller at {host}:{port} to cluster {told}: "
                "use the log.dirs of that cluster, or empty ones, or name the controllers of the right one"
            )


def _other_controllers(config: BrokerConfig) -> list[tuple[str, int]]:
    others = [(voter.host, voter.port) for voter in config.voters if voter.id != config.node_id]
    own = {(each.host, each.port) for each in (*config.controller_listeners, *config.advertised_controller_listeners)}
    for server in config.get_list("controller.quorum.bootstrap.servers"):
        host, _, port = server.rpartition(":")
        address = (host.strip("[]"), int(port))
        if address not in own:
            others.append(address)
    return others


async def _ask(channels: Channels, host: str, port: int) -> str | None:
    from moldau.broker.channels import UnsupportedVersion

    request = m.DescribeClusterRequest(endpoint_type=_CONTROLLERS)
    try:
        response = await channels.call(host, port, request, timeout_ms=_ASK_MS)
    except (Disconnected, RequestTimedOut, UnsupportedVersion):
        return None
    return response.cluster_id or None


def format_voter(config: BrokerConfig, cluster_id: str, disk: Disk, random: Random) -> None:
    """Write down that this voter begins with nothing, on the word of people: see `moldau.raft.founding`.

    WrongDirectory unless its metadata folder is empty, and its dirs are new or those of this node and cluster."""
    if not any(voter.id == config.node_id for voter in config.voters):
        raise WrongDirectory(
            f"node {config.node_id} is not in controller.quorum.voters: only fixed voters are formatted, others start"
        )
    folder = f"{config.metadata_log_dir}/{METADATA_FOLDER}"
    if disk.exists(folder) and any(_is_history(disk, folder, name) for name in disk.list_dir(folder)):
        raise WrongDirectory(f"{folder} is not empty: what it holds would be forgotten. Move it away first")
    for path in config.log_dirs:
        disk.make_dirs(path)
        known = read_meta_properties(disk, path)
        if known is None:
            write_meta_properties(disk, path, MetaProperties(cluster_id, config.node_id, uuid_text(random.uuid())))
        elif (known.cluster_id, known.node_id) != (cluster_id, config.node_id):
            raise WrongDirectory(f"{path} belongs to node {known.node_id} of cluster {known.cluster_id}")
    disk.make_dirs(folder)
    state = encode_quorum_state(ElectionState(), 0, [voter.id for voter in config.voters])
    disk.write_file_atomically(f"{folder}/{QUORUM_STATE}", state)


def format_cluster(
    config: BrokerConfig, cluster_id: str | None, users: Sequence[FirstUser], disk: Disk, random: Random
) -> str:
    """Prepare a controller of a new cluster that begins with these users; the cluster's id, made up if not given.

    Every controller is formatted with the same. WrongDirectory if there is anything already."""
    from moldau.broker.quorum.bootstrap import write_bootstrap

    if not config.is_controller:
        raise WrongDirectory("users are kept by controllers: format those, this node only has process.roles=broker")
    if cluster_id is None:
        if founds_quorum(config):
            cluster_id = uuid_text(random.uuid())
        elif config.voters:
            cluster_id = derived_cluster_id(config)
        else:
            raise WrongDirectory("say --cluster-id: this node joins a quorum, whose id it cannot know")
    folder = f"{config.metadata_log_dir}/{METADATA_FOLDER}"
    if disk.exists(folder) and any(_is_history(disk, folder, name) for name in disk.list_dir(folder)):
        raise WrongDirectory(f"{folder} is not empty: users of a running cluster are added with `moldau user add`")
    for path in config.log_dirs:
        disk.make_dirs(path)
        if read_meta_properties(disk, path) is not None:
            raise WrongDirectory(f"{path} is formatted already: empty it, or use another log.dirs")
    disk.make_dirs(config.metadata_log_dir)
    write_bootstrap(disk, config.metadata_log_dir, users)
    for path in config.log_dirs:
        write_meta_properties(disk, path, MetaProperties(cluster_id, config.node_id, uuid_text(random.uuid())))
    return cluster_id


def _is_history(disk: Disk, folder: str, name: str) -> bool:
    """A start that was refused leaves the files of an empty log."""
    if name.endswith(".log"):
        return disk.file_size(f"{folder}/{name}") > 0
    return name == QUORUM_STATE or name.endswith(".checkpoint")


def derived_cluster_id(config: BrokerConfig) -> str:
    voters = ",".join(f"{voter.id}@{voter.host}:{voter.port}" for voter in sorted(config.voters))
    raw = bytearray(hashlib.sha256(f"moldau cluster of {voters}".encode()).digest()[:16])
    raw[6] = (raw[6] & 0x0F) | 0x40  # as a random id looks, and never with a dash in front
    raw[8] = (raw[8] & 0x3F) | 0x80
    raw[0] &= 0x7F
    return uuid_text(bytes(raw))
