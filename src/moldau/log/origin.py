"""Who writes to a log."""

from enum import Enum


class AppendOrigin(Enum):
    """Who writes, hence what is checked: clients everything, coordinators no sequences, replication nothing."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"
    RAFT_LEADER = "raft leader"
