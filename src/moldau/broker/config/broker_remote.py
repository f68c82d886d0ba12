"""Broker settings of tiered storage, which Moldau does not have: only their defaults are accepted.

The format is told in `definition.py`.
"""

REMOTE = """
remote.fetch.max.wait.ms int 500 [1,...] medium cluster refused
    Tiered storage, which Moldau does not have.
remote.list.offsets.request.timeout.ms long 30000 [1,...] medium cluster refused
    Tiered storage, which Moldau does not have.
remote.log.index.file.cache.total.size.bytes long 1073741824 [1,...] low cluster refused
    Tiered storage, which Moldau does not have.
remote.log.index.file.cache.ttl.ms long 900000 [-1,...] low static internal refused
    Tiered storage, which Moldau does not have.
remote.log.manager.copier.thread.pool.size int 10 [1,...] medium cluster refused
    Tiered storage, which Moldau does not have.
remote.log.manager.copy.max.bytes.per.second long 9223372036854775807 [1,...] medium cluster refused
    Tiered storage, which Moldau does not have.
remote.log.manager.copy.quota.window.num int 11 [1,...] medium static refused
    Tiered storage, which Moldau does not have.
remote.log.manager.copy.quota.window.size.seconds int 1 [1,...] medium static refused
    Tiered storage, which Moldau does not have.
remote.log.manager.expiration.thread.pool.size int 10 [1,...] medium cluster refused
    Tiered storage, which Moldau does not have.
remote.log.manager.fetch.max.bytes.per.second long 9223372036854775807 [1,...] medium cluster refused
    Tiered storage, which Moldau does not have.
remote.log.manager.fetch.quota.window.num int 11 [1,...] medium static refused
    Tiered storage, which Moldau does not have.
remote.log.manager.fetch.quota.window.size.seconds int 1 [1,...] medium static refused
    Tiered storage, which Moldau does not have.
remote.log.manager.follower.thread.pool.size int 2 [1,...] medium cluster refused
    Tiered storage, which Moldau does not have.
remote.log.manager.task.interval.ms long 30000 [1,...] low static refused
    Tiered storage, which Moldau does not have.
remote.log.manager.task.retry.backoff.max.ms long 30000 [1,...] low static internal refused
    Tiered storage, which Moldau does not have.
remote.log.manager.task.retry.backoff.ms long 500 [1,...] low static internal refused
    Tiered storage, which Moldau does not have.
remote.log.manager.task.retry.jitter double 0.2 [0,...,0.5] low static internal refused
    Tiered storage, which Moldau does not have.
remote.log.manager.thread.pool.size int 2 [1,...] medium static refused
    Tiered storage, which Moldau does not have.
remote.log.metadata.custom.metadata.max.bytes int 128 [0,...] low static refused
    Tiered storage, which Moldau does not have.
remote.log.metadata.manager.class.name string \
org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager non-empty medium static refused
    Tiered storage, which Moldau does not have.
remote.log.metadata.manager.class.path string null - medium static refused
    Tiered storage, which Moldau does not have.
remote.log.metadata.manager.impl.prefix string rlmm.config. non-empty medium static refused
    Tiered storage, which Moldau does not have.
remote.log.metadata.manager.listener.name string null non-empty medium static refused
    Tiered storage, which Moldau does not have.
remote.log.reader.max.pending.tasks int 100 [1,...] medium static refused
    Tiered storage, which Moldau does not have.
remote.log.reader.threads int 10 [1,...] medium cluster refused
    Tiered storage, which Moldau does not have.
remote.log.storage.manager.class.name string null non-empty medium static refused
    Tiered storage, which Moldau does not have.
remote.log.storage.manager.class.path string null - medium static refused
    Tiered storage, which Moldau does not have.
remote.log.storage.manager.impl.prefix string rsm.config. non-empty medium static refused
    Tiered storage, which Moldau does not have.
remote.log.storage.system.enable boolean false - medium static refused
    Tiered storage, which Moldau does not have.
"""
