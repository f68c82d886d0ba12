"""Broker settings of the coordinators: groups, offsets, shares and transactions.

The format is told in `definition.py`.
"""

GROUPS = """
group.consumer.assignment.interval.ms int 1000 [0,...] medium cluster
    Shortest time between two assignments of one consumer group.
group.consumer.assignors list uniform,range unique+ medium static
    Assignors offered to consumer groups, the first being the default.
group.consumer.heartbeat.interval.ms int 5000 [1,...] medium static
    How often members of consumer groups send heartbeats.
group.consumer.max.assignment.interval.ms int 15000 [0,...] medium static
    Largest assignment interval a consumer group may be given.
group.consumer.max.heartbeat.interval.ms int 15000 [1,...] medium static
    Largest heartbeat interval a consumer group may be given.
group.consumer.max.session.timeout.ms int 60000 [1,...] medium static
    Largest session timeout a consumer group may be given.
group.consumer.max.size int 2147483647 [1,...] medium static
    Most members of one consumer group.
group.consumer.migration.policy string bidirectional ~{bidirectional,disabled,downgrade,upgrade} medium static
    Which way groups may move between the classic and the consumer protocol while in use.
group.consumer.min.assignment.interval.ms int 0 [0,...] medium static
    Smallest assignment interval a consumer group may be given.
group.consumer.min.heartbeat.interval.ms int 5000 [1,...] medium static
    Smallest heartbeat interval a consumer group may be given.
group.consumer.min.session.timeout.ms int 45000 [1,...] medium static
    Smallest session timeout a consumer group may be given.
group.consumer.regex.refresh.interval.ms int 600000 [10000,...] medium static internal
    How often subscriptions by pattern are matched against the topics anew.
group.consumer.session.timeout.ms int 45000 [1,...] medium static
    Time without heartbeats after which a member of a consumer group is removed.
group.coordinator.append.linger.ms int -1 [-1,...] medium static ignored
    How long the coordinator gathers records before it writes them; -1 adapts to the load.
group.coordinator.background.threads int 2 [1,...] high static ignored
    Threads for slow work of the coordinator. Moldau sizes its own.
group.coordinator.cached.buffer.max.bytes int 1048588 [524288,...] medium cluster ignored
    Largest write buffer the coordinator keeps for reuse.
group.coordinator.rebalance.protocols list classic,consumer,streams {consumer,classic,share,streams}+ medium static
    Group protocols on offer; `classic` cannot be left out.
group.coordinator.threads int 4 [1,...] high static ignored
    Threads of the coordinator. Moldau runs it on the event loop.
group.initial.rebalance.delay.ms int 3000 - medium static
    How long a new classic group waits for more members before its first rebalance.
group.max.session.timeout.ms int 1800000 - medium static
    Largest session timeout a member of a classic group may ask for.
group.max.size int 2147483647 [1,...] medium static
    Most members of one classic group.
group.min.session.timeout.ms int 6000 - medium static
    Smallest session timeout a member of a classic group may ask for.
group.share.assignment.interval.ms int 1000 [0,...] medium cluster
    Shortest time between two assignments of one share group.
group.share.assignors list simple unique+ medium static
    The assignor of share groups.
group.share.delivery.count.limit int 5 [2,...,10] medium static
    How often a record is delivered before it is given up.
group.share.heartbeat.interval.ms int 5000 [1,...] medium static
    How often members of share groups send heartbeats.
group.share.initialize.retry.interval.ms int 30000 [1,...] low static internal
    Pause before the state of a share partition is initialised again.
group.share.max.assignment.interval.ms int 15000 [0,...] medium static
    Largest assignment interval a share group may be given.
group.share.max.delivery.count.limit int 10 [5,...,25] medium static
    Largest delivery count a share group may be given.
group.share.max.heartbeat.interval.ms int 15000 [1,...] medium static
    Largest heartbeat interval a share group may be given.
group.share.max.partition.max.record.locks int 4000 [2000,...,10000] medium static
    Largest number of locked records per partition a share group may be given.
group.share.max.record.lock.duration.ms int 60000 [30000,...,3600000] medium static
    Longest record lock a share group may be given.
group.share.max.session.timeout.ms int 60000 [1,...] medium static
    Largest session timeout a share group may be given.
group.share.max.share.sessions int 2000 [1,...] medium static
    Most share sessions on one broker.
group.share.max.size int 200 [1,...,1000] medium static
    Most members of one share group.
group.share.min.assignment.interval.ms int 0 [0,...] medium static
    Smallest assignment interval a share group may be given.
group.share.min.delivery.count.limit int 2 [2,...,5] medium static
    Smallest delivery count a share group may be given.
group.share.min.heartbeat.interval.ms int 5000 [1,...] medium static
    Smallest heartbeat interval a share group may be given.
group.share.min.partition.max.record.locks int 100 [100,...,2000] medium static
    Smallest number of locked records per partition a share group may be given.
group.share.min.record.lock.duration.ms int 15000 [1000,...,30000] medium static
    Shortest record lock a share group may be given.
group.share.min.session.timeout.ms int 45000 [1,...] medium static
    Smallest session timeout a share group may be given.
group.share.partition.max.record.locks int 2000 [100,...,10000] medium static
    Most records of one partition locked for delivery at the same time.
group.share.persister.class.name string org.apache.kafka.server.share.persister.DefaultStatePersister - medium static \
internal refused
    Java class that keeps the state of share groups. Moldau loads no Java classes.
group.share.record.lock.duration.ms int 30000 [1000,...,3600000] medium static
    How long a delivered record stays locked for its consumer.
group.share.session.timeout.ms int 45000 [1,...] medium static
    Time without heartbeats after which a member of a share group is removed.
group.streams.assignment.interval.ms int 1000 [0,...] medium cluster
    Shortest time between two assignments of one streams group.
group.streams.heartbeat.interval.ms int 5000 [1,...] medium static
    How often members of streams groups send heartbeats.
group.streams.initial.rebalance.delay.ms int 3000 [0,...] medium static
    How long a new streams group waits for more members before its first rebalance.
group.streams.max.assignment.interval.ms int 15000 [0,...] medium static
    Largest assignment interval a streams group may be given.
group.streams.max.heartbeat.interval.ms int 15000 [1,...] medium static
    Largest heartbeat interval a streams group may be given.
group.streams.max.session.timeout.ms int 60000 [1,...] medium static
    Largest session timeout a streams group may be given.
group.streams.max.size int 2147483647 [1,...] medium static
    Most members of one streams group.
group.streams.max.standby.replicas int 2 [0,...] medium static
    Most standby replicas a streams group may be given.
group.streams.min.assignment.interval.ms int 0 [0,...] medium static
    Smallest assignment interval a streams group may be given.
group.streams.min.heartbeat.interval.ms int 5000 [1,...] medium static
    Smallest heartbeat interval a streams group may be given.
group.streams.min.session.timeout.ms int 45000 [1,...] medium static
    Smallest session timeout a streams group may be given.
group.streams.num.standby.replicas int 0 [0,...] medium static
    Standby replicas of each task of a streams group.
group.streams.session.timeout.ms int 45000 [1,...] medium static
    Time without heartbeats after which a member of a streams group is removed.
offset.metadata.max.bytes int 4096 - high static
    Largest note a consumer may attach to a committed offset.
offsets.commit.timeout.ms int 5000 [1,...] high static
    How long a commit waits for all replicas of the offsets topic.
offsets.load.buffer.size int 5242880 [1,...] high static ignored
    Bytes read at a time when group state is loaded.
offsets.retention.check.interval.ms long 600000 [1,...] high static
    How often expired offsets are looked for.
offsets.retention.minutes int 10080 [1,...] high static
    Time the offsets of an empty group, or of a topic nobody subscribes to, are kept.
offsets.topic.compression.codec int 0 - high static
    Codec of the offsets topic by number: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.
offsets.topic.num.partitions int 50 [1,...] high static
    Partitions of the offsets topic; fixed once it exists.
offsets.topic.replication.factor short 3 [1,...] high static
    Replicas of the offsets topic; it is created only once there are that many brokers.
offsets.topic.segment.bytes int 104857600 [1,...] high static
    Segment size of the offsets topic; small segments load faster.
share.coordinator.append.linger.ms int -1 [-1,...] medium static ignored
    How long the share coordinator gathers records before it writes them; -1 adapts to the load.
share.coordinator.cached.buffer.max.bytes int 1048588 [524288,...] medium cluster ignored
    Largest write buffer the share coordinator keeps for reuse.
share.coordinator.cold.partition.snapshot.interval.ms int 300000 [1,...] low static internal
    How often idle share partitions are snapshotted.
share.coordinator.load.buffer.size int 5242880 [1,...] high static ignored
    Bytes read at a time when share state is loaded.
share.coordinator.snapshot.update.records.per.snapshot int 500 [0,...,500] medium static ignored
    Updates of share state between two snapshots.
share.coordinator.state.topic.compression.codec int 0 - high static
    Codec of the share state topic by number: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.
share.coordinator.state.topic.min.isr short 2 [1,...] high static
    `min.insync.replicas` of the share state topic.
share.coordinator.state.topic.num.partitions int 50 [1,...] high static ignored
    Partitions of the share state topic; fixed once it exists.
share.coordinator.state.topic.prune.interval.ms int 300000 [1,...] low static internal
    How often the share state topic is pruned.
share.coordinator.state.topic.replication.factor short 3 [1,...] high static
    Replicas of the share state topic.
share.coordinator.state.topic.segment.bytes int 104857600 [1,...] high static ignored
    Segment size of the share state topic.
share.coordinator.threads int 1 [1,...] medium static ignored
    Threads of the share coordinator. Moldau runs it on the event loop.
share.coordinator.write.timeout.ms int 5000 [1,...] high static ignored
    How long a write of share state waits for all replicas.
"""

TRANSACTIONS = """
transaction.abort.timed.out.transaction.cleanup.interval.ms int 10000 [1,...] low static
    How often transactions past their timeout are looked for.
transaction.max.timeout.ms int 900000 [1,...] high static
    Longest timeout a producer may ask for.
transaction.partition.verification.enable boolean true - low cluster
    Check that a partition belongs to the transaction before records are appended.
transaction.remove.expired.transaction.cleanup.interval.ms int 3600000 [1,...] low static
    How often expired transactional ids are looked for.
transaction.state.log.load.buffer.size int 5242880 [1,...] high static ignored
    Bytes read at a time when transaction state is loaded.
transaction.state.log.min.isr int 2 [1,...] high static
    `min.insync.replicas` of the transaction topic.
transaction.state.log.num.partitions int 50 [1,...] high static
    Partitions of the transaction topic; fixed once it exists.
transaction.state.log.replication.factor short 3 [1,...] high static
    Replicas of the transaction topic; it is created only once there are that many brokers.
transaction.state.log.segment.bytes int 104857600 [1,...] high static
    Segment size of the transaction topic.
transaction.two.phase.commit.enable boolean false - low static refused
    Let a producer prepare a transaction and finish it later. Moldau does not have it yet.
transactional.id.expiration.ms int 604800000 [1,...] high static
    Time after which an idle transactional id is forgotten.
"""
