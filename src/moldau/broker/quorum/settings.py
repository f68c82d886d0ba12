"""What a node's settings say about the quorum: who votes, where they are, how long anybody waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.log.checkpoints import uuid_bytes
from moldau.log.config import LogConfig
from moldau.raft import Address, RaftSettings, ReplicaKey, Voter, VoterSet
from moldau.raft.voters import static_voters
from moldau.wire import ZERO_UUID

if TYPE_CHECKING:
    from moldau.broker.config import BrokerConfig
    from moldau.log.dirs.log_manager import LogManager
    from moldau.seams import Disk

_MAX_BATCH_BYTES = 8 << 20


def founds_quorum(config: BrokerConfig) -> bool:
    """Whether this node, if it is new, begins a quorum of its own that others may join: it was told of no others."""
    if config.standalone:
        return True
    mine = {address for _, address in own_endpoints(config)}
    return config.is_controller and not config.voters and set(bootstrap_servers(config)) <= mine


def how_to_restore(config: BrokerConfig) -> str:
    """What to do about metadata of this node that is damaged."""
    folder = f"{config.metadata_log_dir}/__cluster_metadata-0"
    if config.standalone or (len(config.voters) == 1 and config.is_controller):
        return f"Nobody else has it: restore {folder} from a backup"
    if not config.is_controller:
        return f"Remove {folder}, and this broker fetches it anew from the controllers"
    if not config.voters:
        return (
            f"If the other voters are well: remove-controller this one (kafka-metadata-quorum), remove {folder}, start "
            "the node, and add-controller it again. Else restore the folder from a backup"
        )
    return (
        f"Restore {folder} from a backup; or, if a majority of the other voters is well, remove it and let the node "
        "rejoin as docs/cluster.md says (a voter that lost its disk)"
    )


def is_formatted(disk: Disk, config: BrokerConfig) -> bool:
    """Whether Apache Kafka's tool formatted the folder: that is the word of people that this node begins with it."""
    return disk.exists(f"{config.metadata_log_dir}/bootstrap.checkpoint")


def lost_history(config: BrokerConfig, node_id: int, epoch: int, cluster_id: str) -> str:
    """Why a voter with an empty folder does not start, and what to do about it."""
    return (
        f"{config.metadata_log_dir} holds no metadata, but the quorum of controller.quorum.voters exists: node "
        f"{node_id} is in epoch {epoch}. A voter that forgot its promises can make the others lose what is committed. "
        f"Restore the folder from a backup; or, if a majority of the other voters is up and well, let this one begin "
        f"anew: moldau format --cluster-id {cluster_id} with this node's settings (docs/cluster.md)"
    )


def metadata_directory_id(logs: LogManager, config: BrokerConfig) -> bytes:
    """The id of the dir that holds the metadata log: with the node's id, the voter's name (KIP-853)."""
    log_dir = logs.dirs.get(config.metadata_log_dir)
    if log_dir is None or log_dir.properties is None or log_dir.properties.directory_id is None:
        return ZERO_UUID
    return uuid_bytes(log_dir.properties.directory_id)


def log_config(config: BrokerConfig) -> LogConfig:
    """Metadata never expires by itself: what snapshots cover is removed."""
    segment_bytes = config.get_int_or_none("internal.metadata.log.segment.bytes")
    return LogConfig(
        retention_ms=-1,
        max_message_bytes=_MAX_BATCH_BYTES,
        segment_bytes=segment_bytes or config.get_int("metadata.log.segment.bytes"),
        segment_ms=2**63 - 1 if config.standalone else config.get_int("metadata.log.segment.ms"),
        file_delete_delay_ms=config.get_int("internal.metadata.delete.delay.millis"),
    )


def raft_settings(config: BrokerConfig) -> RaftSettings:
    return RaftSettings(
        election_timeout_ms=config.get_int("controller.quorum.election.timeout.ms"),
        fetch_timeout_ms=config.get_int("controller.quorum.fetch.timeout.ms"),
        election_backoff_max_ms=config.get_int("controller.quorum.election.backoff.max.ms"),
        retry_backoff_ms=config.get_int("controller.quorum.retry.backoff.ms"),
    )


def voters_of(config: BrokerConfig) -> VoterSet:
    if config.standalone:
        return VoterSet((Voter(ReplicaKey(config.node_id)),))
    name = next(iter(config.controller_listener_names), "CONTROLLER")
    return static_voters(config.voters, name)


def bootstrap_servers(config: BrokerConfig) -> tuple[Address, ...]:
    servers = []
    for text in config.get_list("controller.quorum.bootstrap.servers"):
        host, _, port = text.rpartition(":")
        servers.append(Address(host.strip("[]"), int(port)))
    return tuple(servers)


def own_endpoints(config: BrokerConfig) -> tuple[tuple[str, Address], ...]:
    """Where this node's controller is, before its listeners are bound."""
    mine = next((each for each in config.voters if each.id == config.node_id), None)
    if mine is not None and config.controller_listener_names:
        return ((config.controller_listener_names[0], Address(mine.host, mine.port)),)
    told = config.advertised_controller_listeners
    return tuple((each.listener, Address(each.host or "localhost", each.port)) for each in told)
