"""Broker settings of replication, and of the quorum of controllers.

The format is told in `definition.py`.
"""

REPLICATION = """
auto.leader.rebalance.enable boolean true - high static
    Give leadership back to preferred replicas from time to time.
delete.records.purgatory.purge.interval.requests int 1 - medium static ignored
    Finished DeleteRecords kept before they are swept out. Moldau drops them at once.
fetch.purgatory.purge.interval.requests int 1000 - medium static ignored
    Finished fetches kept before they are swept out. Moldau drops them at once.
follower.fetch.last.tiered.offset.enable boolean false - medium cluster ignored
    Start an empty follower at the last tiered offset. Moldau has no tiered storage.
leader.imbalance.check.interval.seconds long 300 [1,...] high static
    How often preferred leaders are checked.
num.replica.fetchers int 1 [1,...] high cluster
    Fetch connections to each leader.
producer.purgatory.purge.interval.requests int 1000 - medium static ignored
    Finished produces kept before they are swept out. Moldau drops them at once.
replica.fetch.backoff.ms int 1000 [0,...] medium static
    Pause after a failed fetch from a leader.
replica.fetch.max.bytes int 1048576 [0,...] medium static
    Bytes a follower asks for per partition; at least one batch is always sent.
replica.fetch.min.bytes int 1 - high static
    Bytes a follower waits for.
replica.fetch.response.max.bytes int 10485760 [0,...] medium static
    Bytes a follower asks for in one fetch; at least one batch is always sent.
replica.fetch.wait.max.ms int 500 - high static
    How long a follower's fetch waits for those bytes.
replica.high.watermark.checkpoint.interval.ms long 5000 - high static
    How often high watermarks are written down.
replica.lag.time.max.ms long 30000 - high static
    Time after which a follower that did not catch up leaves the in-sync replicas.
replica.selector.class string null - medium static only:org.apache.kafka.common.replica.LeaderSelector|\
org.apache.kafka.common.replica.RackAwareReplicaSelector
    Which replica a consumer is sent to: Kafka's LeaderSelector (the default) or RackAwareReplicaSelector.
replica.socket.receive.buffer.bytes int 65536 - high static ignored
    Receive buffer of a follower's fetch connection.
replica.socket.timeout.ms int 30000 - high static
    How long a follower waits for a leader's answer.
share.fetch.purgatory.purge.interval.requests int 1000 - medium static ignored
    Finished share fetches kept before they are swept out. Moldau drops them at once.
unclean.leader.election.enable boolean false - high cluster
    Let a replica that is not in sync lead when no other is left, losing records.
unclean.leader.election.interval.ms long 300000 [1,...] medium static internal
    How often partitions waiting for an unclean election are looked for.
"""

KRAFT = """
broker.heartbeat.interval.ms int 2000 - medium static
    How often a broker tells the controller that it is alive.
broker.session.timeout.ms int 9000 - medium static
    Time without heartbeats after which the controller fences a broker.
controller.listener.names list required unique+ high static
    Listeners of the controllers; the first is the one brokers use.
controller.performance.always.log.threshold.ms long 2000 [0,...] medium static internal ignored
    Controller events slower than this are logged.
controller.performance.sample.period.ms long 60000 [100,...] medium static internal ignored
    How often controller performance is logged.
controller.quorum.append.linger.ms int 25 [0,...] medium static ignored
    How long the leader gathers metadata records before it writes them.
controller.quorum.auto.join.enable boolean false - low static
    Let a controller add itself to the quorum.
controller.quorum.bootstrap.servers list "" servers high static
    Controllers to find the quorum through, `host:port`.
controller.quorum.election.backoff.max.ms int 1000 [0,...] high static
    Longest pause before a new election.
controller.quorum.election.timeout.ms int 1000 [0,...] high static
    Time a candidate waits for votes.
controller.quorum.fetch.max.bytes int 1048576 [1,...] low static
    Bytes of metadata log fetched at a time.
controller.quorum.fetch.snapshot.max.bytes int 1048576 [1,...] low static
    Bytes of a metadata snapshot fetched at a time.
controller.quorum.fetch.timeout.ms int 2000 [0,...] high static
    Time without a leader's answer after which a voter stands for election.
controller.quorum.request.timeout.ms int 2000 [0,...] medium static
    How long to wait for a voter's answer.
controller.quorum.retry.backoff.ms int 20 [0,...] low static
    Pause before a failed request to a voter is tried again.
controller.quorum.voters list "" voters high static
    The fixed set of voters, `id@host:port`; empty when the quorum is kept in the metadata.
initial.broker.registration.timeout.ms int 60000 - medium static
    Stop if the broker could not register after this long.
internal.metadata.delete.delay.millis long 60000 - low static internal
    Wait before deleted metadata files are removed.
internal.metadata.log.segment.bytes int null - low static internal
    Size of metadata log segments in tests.
internal.metadata.max.batch.size.in.bytes int 8388608 - low static internal
    Largest batch of the metadata log in tests.
metadata.log.dir string null - high static
    Folder of the metadata log; the first of the log dirs when unset.
metadata.log.max.record.bytes.between.snapshots long 20971520 [1,...] high static
    Bytes of metadata log after which a snapshot is taken.
metadata.log.max.snapshot.interval.ms long 3600000 [0,...] high static
    Time after which a snapshot is taken, if anything changed; 0 means never.
metadata.log.segment.bytes int 1073741824 [8388608,...] high static
    Size at which a segment of the metadata log is closed.
metadata.log.segment.ms long 604800000 - high static
    Time after which a segment of the metadata log is closed.
metadata.max.idle.interval.ms int 500 [0,...] low static
    How often an idle leader writes an empty metadata record; 0 means never.
metadata.max.retention.bytes long 104857600 - high static
    Bytes of metadata log and snapshots kept.
metadata.max.retention.ms long 604800000 - high static
    Time metadata log and snapshots are kept.
node.id int required [0,...] high static
    Number of this node, different from all others in the cluster.
process.roles list required {broker,controller}+ high static
    What this node does: `broker`, `controller`, or both.
"""
