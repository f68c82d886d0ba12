"""What a new leader writes first, byte for byte as Apache Kafka 4.3 does."""

from moldau.broker.quorum.control_records import leader_change_records
from moldau.raft import AppendLeaderChange, ReplicaKey
from moldau.raft.voters import VoterHistory, VoterSet
from moldau.records import ControlType

# Of the first batch of the metadata log of a node formatted with `kafka-storage format --standalone`, of voter 1.
BY_APACHE_KAFKA = bytes.fromhex("0000 00000001 02 00000001 00 02 00000001 00 00")


def test_a_leader_is_told_in_the_version_that_apache_kafka_reads_also_where_voters_change() -> None:
    me = ReplicaKey(1, b"d" * 16)
    history = VoterHistory()
    history.add_kraft_version(0, 1)
    history.add_voters(1, VoterSet())
    (record,) = leader_change_records(me, AppendLeaderChange(1, (me,), (me,)), history)
    assert record == (ControlType.LEADER_CHANGE, BY_APACHE_KAFKA)
