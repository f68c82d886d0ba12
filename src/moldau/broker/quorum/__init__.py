"""This node's part in the controller quorum: Raft with a disk, a network and a clock."""
