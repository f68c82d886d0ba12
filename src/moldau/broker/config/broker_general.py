"""Broker settings that belong to no other family: topics, requests, quotas, metrics.

The format is told in `definition.py`.
"""

GENERAL = """
add.partitions.to.txn.retry.backoff.max.ms int 100 [0,...] high static
    Longest time the broker keeps retrying to add a partition to a transaction that is still completing.
add.partitions.to.txn.retry.backoff.ms int 20 [1,...] high static
    Pause between two such attempts.
alter.config.policy.class.name class null - low static refused
    Java class that judges config changes. Moldau loads no Java classes.
alter.log.dirs.replication.quota.window.num int 11 [1,...] low static ignored
    Samples kept for the quota on moves between log dirs.
alter.log.dirs.replication.quota.window.size.seconds int 1 [1,...] low static ignored
    Time covered by one such sample.
authorizer.class.name string "" - low static only:org.apache.kafka.metadata.authorizer.StandardAuthorizer
    Empty: everyone may do everything. Kafka's StandardAuthorizer: ACLs from the cluster metadata.
auto.create.topics.enable boolean true - high static
    Create a topic when a client asks for the metadata of one that does not exist and allows its creation.
background.threads int 10 [1,...] high cluster ignored
    Threads for housekeeping. Moldau sizes its own.
broker.id int -1 - high static
    Older name of `node.id`; if both are set they must agree.
broker.rack string null - medium static
    Where this broker stands. Replicas are spread over racks, and consumers may fetch from their own.
client.quota.callback.class class null - low static refused
    Java class that computes client quotas. Moldau loads no Java classes.
compression.gzip.level int -1 [1,...,9]|-1 medium cluster
    Level used where the broker compresses with gzip; -1 is the library's default.
compression.lz4.level int 9 [1,...,17] medium cluster
    Level used where the broker compresses with lz4.
compression.type string producer {uncompressed,zstd,lz4,snappy,gzip,producer} high cluster
    Codec batches are stored with; `producer` keeps what the producer chose.
compression.zstd.level int 3 [-131072,...,22] medium cluster
    Level used where the broker compresses with zstd.
config.providers list "" unique low cluster refused
    Java classes that fill in `${...}` in values. Moldau loads no Java classes.
controlled.shutdown.enable boolean true - medium static ignored
    Hand leadership to other brokers before stopping.
controller.quota.window.num int 11 [1,...] low static
    Samples kept for the quota on topic and partition mutations.
controller.quota.window.size.seconds int 1 [1,...] low static
    Time covered by one such sample.
create.topic.policy.class.name class null - low static refused
    Java class that judges new topics. Moldau loads no Java classes.
default.replication.factor int 1 - medium static
    Replicas of a topic created without a count.
delegation.token.expiry.check.interval.ms long 3600000 [1,...] low static
    How often expired delegation tokens are looked for.
delegation.token.expiry.time.ms long 86400000 [1,...] medium static
    Time after which a delegation token must be renewed.
delegation.token.max.lifetime.ms long 604800000 [1,...] medium static
    Time after which a delegation token cannot be renewed any more.
delegation.token.secret.key password null - medium static
    Key that signs delegation tokens, the same on all nodes. Without one there are no tokens.
delete.topic.enable boolean true - high static
    Let clients delete topics.
early.start.listeners list null unique high static
    Listeners opened before authorisation is ready; by default those of the controller.
fetch.max.bytes int 57671680 [1024,...] medium static
    Most bytes one Fetch answers with, whatever the client asks for; at least one batch is always sent.
follower.replication.throttled.rate long 9223372036854775807 [0,...] medium cluster
    Bytes per second this broker may fetch for throttled follower replicas. Only set dynamically.
kafka.metrics.polling.interval.secs int 10 [1,...] low static ignored
    How often metrics reporters are polled. Moldau publishes metrics for Prometheus.
kafka.metrics.reporters list "" unique low static refused
    Java metrics reporters. Moldau publishes metrics for Prometheus.
leader.replication.throttled.rate long 9223372036854775807 [0,...] medium cluster
    Bytes per second this broker may send to throttled follower replicas. Only set dynamically.
max.incremental.fetch.session.cache.slots int 1000 [0,...] medium static
    Fetch sessions kept; the oldest idle one makes room for a new one.
max.request.partition.size.limit int 2000 [1,...] medium static
    Most partitions one DescribeTopicPartitions answers with.
message.max.bytes int 1048588 [0,...] high cluster
    Largest record batch, after compression, a topic accepts unless it says otherwise.
metric.reporters list org.apache.kafka.common.metrics.JmxReporter unique low cluster ignored
    Java metrics reporters. Moldau publishes metrics for Prometheus.
metrics.num.samples int 2 [1,...] low static ignored
    Samples kept to compute a metric.
metrics.recording.level string INFO - low static ignored
    Finest level of metrics recorded.
metrics.sample.window.ms long 30000 [1,...] low static ignored
    Time covered by one sample.
num.io.threads int 8 [1,...] high cluster ignored
    Threads that serve requests. Moldau serves them on one event loop.
num.partitions int 1 [1,...] medium static
    Partitions of a topic created without a count.
num.replica.alter.log.dirs.threads int null - high static ignored
    Threads that move replicas between log dirs. Moldau sizes its own.
quota.window.num int 11 [1,...] low static
    Samples kept for client quotas.
quota.window.size.seconds int 1 [1,...] low static
    Time covered by one such sample.
replica.alter.log.dirs.io.max.bytes.per.second long 9223372036854775807 [0,...] medium cluster
    Bytes per second for moves between this broker's log dirs. Only set dynamically.
replication.quota.window.num int 11 [1,...] low static
    Samples kept for the quota on throttled replication.
replication.quota.window.size.seconds int 1 [1,...] low static
    Time covered by one such sample.
request.timeout.ms int 30000 - high static
    How long the broker waits for another node's answer.
server.max.startup.time.ms long 9223372036854775807 [0,...] medium static internal
    Give up if the node is not ready after this long.
telemetry.max.bytes int 1048576 [1,...] low static
    Largest batch of metrics, after compression, a client may push.
unstable.api.versions.enable boolean false - high static internal refused
    Offer API versions that are not final yet. Moldau offers final ones only.
unstable.feature.versions.enable boolean false - high static internal refused
    Offer feature versions that are not final yet. Moldau offers final ones only.
"""
