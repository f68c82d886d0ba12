"""The partitions that a query's options ask for, as they are now."""

from moldau.client.cluster import Cluster, Topics, UnknownTopic
from moldau.spark.options import SourceOptions
from moldau.spark.topic_patterns import topic_pattern


def assigned_partitions(cluster: Cluster, options: SourceOptions) -> Topics:
    """The partitions the options ask for, as they are now."""
    if options.subscribe_pattern is not None:
        every = cluster.topics(None)
        pattern = topic_pattern(options.subscribe_pattern)
        kept = {name: leader for name, leader in every.leaders.items() if pattern.search(name[0])}
        return Topics(kept, every.brokers, frozenset(), every.ids)
    if options.subscribe is not None:
        return cluster.topics(options.subscribe)
    assert options.assign is not None
    named = cluster.topics({topic for topic, _ in options.assign})
    kept = {partition: leader for partition, leader in named.leaders.items() if partition in options.assign}
    return Topics(kept, named.brokers, named.missing, named.ids)


def require_topics(topics: Topics) -> Topics:
    """Refuse topics that do not exist, when they were named."""
    if topics.missing:
        names = ", ".join(sorted(topics.missing))
        raise UnknownTopic(f"no such topic: {names}. Create it first, or subscribe by subscribePattern")
    return topics
