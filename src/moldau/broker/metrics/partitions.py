"""Topics, their partitions, and the logs below them, as far as this node has a replica.

A partition is told of by its leader, so that adding up over nodes counts it once. Bounded: beyond
`moldau.metrics.topics.max` topics are added up as one, beyond `moldau.metrics.partitions.max` partitions have no series
of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from moldau.broker.replicas.traffic import Traffic
from moldau.controller.image import NO_LEADER
from moldau.metrics import Page

if TYPE_CHECKING:
    from moldau.broker.parts import HasConfig, HasIdentity, HasImage, HasLogs
    from moldau.broker.replicas.partition import Partition
    from moldau.broker.replicas.parts import HasReplicas
    from moldau.log.partition_log import PartitionLog
    from moldau.metrics.text import Labels
    from moldau.timers.turns import Slices

    class Needs(HasConfig, HasIdentity, HasImage, HasLogs, HasReplicas, Protocol):
        """What this file may touch."""


OTHER = "_other"
_PER_SLICE = 50
_TRAFFIC = (
    ("kafka_server_brokertopicmetrics_messagesin_total", "Records appended by clients.", "records_in"),
    ("kafka_server_brokertopicmetrics_bytesin_total", "Bytes appended by clients.", "bytes_in"),
    ("kafka_server_brokertopicmetrics_bytesout_total", "Bytes fetched by consumers.", "bytes_out"),
    (
        "kafka_server_brokertopicmetrics_replicationbytesin_total",
        "Bytes fetched from leaders.",
        "replication_bytes_in",
    ),
    (
        "kafka_server_brokertopicmetrics_replicationbytesout_total",
        "Bytes fetched by followers.",
        "replication_bytes_out",
    ),
    (
        "kafka_server_brokertopicmetrics_totalproducerequests_total",
        "Batches appended, or refused, by partition: as Kafka counts them.",
        "produce_requests",
    ),
    (
        "kafka_server_brokertopicmetrics_failedproducerequests_total",
        "Those refused, but for batches that are too large or corrupt, and disks that failed.",
        "failed_produce_requests",
    ),
    (
        "kafka_server_brokertopicmetrics_totalfetchrequests_total",
        "Reads of consumers and followers, by partition.",
        "fetch_requests",
    ),
    (
        "kafka_server_brokertopicmetrics_failedfetchrequests_total",
        "Those that failed, but for offsets out of range, and disks that failed.",
        "failed_fetch_requests",
    ),
)


class NamedTopics:
    """Which topics have series of their own. A topic keeps its place as long as it is there: else the sum of the others
    would jump whenever a topic comes."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def choose(self, present: list[str], count_max: int) -> set[str]:
        self._names &= set(present)
        for name in present:
            if len(self._names) >= count_max:
                break
            self._names.add(name)
        return self._names


class OtherTopics:
    """All topics without series of their own, as one that only grows: a topic that is deleted, moved away or named from
    now on leaves here what it has counted. Taken out, the sum would fall, which is a restart for Prometheus."""

    def __init__(self) -> None:
        self._left = Traffic()
        self._seen: dict[str, Traffic] = {}

    def total(self, unnamed: dict[str, Traffic]) -> Traffic:
        """Of those that are unnamed now, and of those that were at a scrape before."""
        for topic, before in self._seen.items():
            now = unnamed.get(topic)
            if now is None or now.is_below(before):  # gone, or gone and back
                self._left.add(before)
        self._seen = unnamed
        total = Traffic()
        for each in (self._left, *unnamed.values()):
            total.add(each)
        return total

    @property
    def were_there(self) -> bool:
        return bool(self._seen) or self._left != Traffic()


def collect_partitions(page: Page, broker: Needs, named: NamedTopics, others: OtherTopics) -> Slices[None]:
    config = broker.config
    every = list(broker.replicas)
    names = named.choose(list(dict.fromkeys(each.topic for each in every)), config.get_int("moldau.metrics.topics.max"))
    room = config.get_int("moldau.metrics.partitions.max")
    counts = _Counts()
    by_topic = broker.replicas.departed.of_topics()
    total = Traffic()
    total.add(broker.replicas.departed.of_node)
    for at, partition in enumerate(every):
        if at % _PER_SLICE == _PER_SLICE - 1:
            yield
        total.add(partition)
        by_topic.setdefault(partition.topic, Traffic()).add(partition)
        counts.add(partition)
        if at < room:
            _partition(page, partition)
    for name, help_text, field in _TRAFFIC:
        page.counter(name, help_text, getattr(total, field))
    told = {topic: by_topic[topic] for topic in by_topic if topic in names}
    other = others.total({topic: by_topic[topic] for topic in by_topic if topic not in names})
    if others.were_there:
        told[OTHER] = other
    for topic, traffic in told.items():
        for name, help_text, field in _TRAFFIC:
            page.counter(name, help_text, getattr(traffic, field), {"topic": topic})
    page.gauge(
        "moldau_metrics_partitions_left_out",
        "Partitions without series of their own (moldau.metrics.partitions.max).",
        max(0, len(every) - room),
    )
    counts.tell(page, len(broker.logs.offline))
    replication = broker.replicas.made_replication
    for name, help_text, value in (
        ("isrexpands", "Times a replica came into sync.", 0 if replication is None else replication.isr.expansions),
        ("isrshrinks", "Times one fell out of sync.", 0 if replication is None else replication.isr.shrinkages),
    ):
        page.counter(f"kafka_server_replicamanager_{name}_total", help_text, value)


class _Counts:
    def __init__(self) -> None:
        self.partitions = self.leaders = self.under_replicated = self.under_min_isr = self.at_min_isr = 0
        self.reassigning = 0

    def add(self, partition: Partition) -> None:
        self.partitions += 1
        self.reassigning += partition.image.is_reassigning
        if not partition.is_leader:
            return
        self.leaders += 1
        lead = partition.lead
        if lead is not None:
            needed = lead.min_isr(partition.settings.min_insync_replicas)
            self.under_replicated += len(lead.isr) < len(lead.replicas)
            self.under_min_isr += len(lead.isr) < needed
            self.at_min_isr += len(lead.isr) == needed < len(lead.replicas)

    def tell(self, page: Page, offline: int) -> None:
        for name, help_text, value in (
            ("partitioncount", "Replicas on this node.", self.partitions),
            ("leadercount", "Partitions this node leads.", self.leaders),
            ("underreplicatedpartitions", "Of these, those with replicas out of sync.", self.under_replicated),
            ("underminisrpartitioncount", "Those below min.insync.replicas: acks=all fails.", self.under_min_isr),
            ("atminisrpartitioncount", "Those that have no replica to lose.", self.at_min_isr),
            ("offlinereplicacount", "Replicas in log dirs that failed.", offline),
            ("reassigningpartitions", "Replicas of partitions that are being moved.", self.reassigning),
        ):
            page.gauge(f"kafka_server_replicamanager_{name}", help_text, value)


def tell_log(page: Page, log: PartitionLog, labels: Labels) -> None:
    page.gauge("kafka_log_log_size", "Bytes of the log, on each replica.", log.size_bytes, labels)
    page.gauge("kafka_log_log_numlogsegments", "Its segments.", len(log.segments), labels)
    page.gauge("kafka_log_log_logstartoffset", "Its first offset.", log.log_start_offset, labels)
    page.gauge("kafka_log_log_logendoffset", "The offset the next record gets.", log.log_end_offset, labels)


def _partition(page: Page, partition: Partition) -> None:
    log, image = partition.log, partition.image
    labels = {"topic": partition.topic, "partition": partition.index}
    tell_log(page, log, labels)
    if not partition.is_leader:
        return
    for name, help_text, value in (
        ("current_offset", "The high watermark.", log.high_watermark),
        ("oldest_offset", "The first offset.", log.log_start_offset),
        ("leader", "Which broker leads.", image.leader),
        ("leader_is_preferred", "Whether that is the one it should be.", image.leader == image.preferred_leader),
        ("replicas", "How many replicas there are.", len(image.replicas)),
        ("in_sync_replica", "How many are in sync.", len(image.isr)),
        ("under_replicated_partition", "Whether some are not.", len(image.isr) < len(image.replicas)),
    ):
        page.gauge(f"kafka_topic_partition_{name}", help_text, int(value), labels)
    lead = partition.lead  # None: there is one replica, which leads
    in_sync, replicas = (1, 1) if lead is None else (len(lead.isr), len(lead.replicas))
    needed = 1 if lead is None else lead.min_isr(partition.settings.min_insync_replicas)
    for name, help_text, is_so in (
        ("underreplicated", "Whether replicas are out of sync.", in_sync < replicas),
        ("underminisr", "Whether acks=all fails: fewer in sync than min.insync.replicas.", in_sync < needed),
        ("atminisr", "Whether it has no replica to lose.", in_sync == needed < replicas),
    ):
        page.gauge(f"kafka_cluster_partition_{name}", help_text, int(is_so), labels)


def collect_topics(page: Page, broker: Needs, names: NamedTopics) -> Slices[None]:
    """What the metadata says of the whole cluster: the same on every node, and for the active controller to tell."""
    image = broker.image
    partitions = offline = imbalanced = 0
    for at, (_, _, each) in enumerate(image.partitions()):
        if at % (_PER_SLICE * 20) == _PER_SLICE * 20 - 1:
            yield
        partitions += 1
        offline += each.leader == NO_LEADER
        imbalanced += each.leader not in (NO_LEADER, each.preferred_leader)
    for name, help_text, value in (
        ("globaltopiccount", "Topics of the cluster.", len(image.topics)),
        ("globalpartitioncount", "Their partitions.", partitions),
        ("offlinepartitionscount", "Those that nobody leads.", offline),
        ("preferredreplicaimbalancecount", "Those led by another than the preferred replica.", imbalanced),
        ("activebrokercount", "Brokers that serve.", sum(not each.fenced for each in image.brokers.values())),
        ("fencedbrokercount", "Brokers that do not.", sum(each.fenced for each in image.brokers.values())),
    ):
        page.gauge(f"kafka_controller_kafkacontroller_{name}", help_text, value)
    for number, registered in image.brokers.items():
        address = next((f"{at.host}:{at.port}" for at in registered.endpoints), "")
        page.gauge("kafka_broker_info", "Brokers there are.", 1, {"id": number, "address": address})
    limit = broker.config.get_int("moldau.metrics.topics.max")
    chosen = names.choose(list(image.topics), limit)
    for topic in image.topics.values():
        if topic.name in chosen:
            labels = {"topic": topic.name}
            page.gauge("kafka_topic_partitions", "Partitions of the topic.", len(topic.partitions), labels)
