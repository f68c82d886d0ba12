"""Random brokers, random commands: what must hold for every partition after every single record batch.

The rules are those the data path relies on (FEATURES R3 to R6): who is in the ISR and who leads decides what is
committed, and an epoch that ever went back would let two leaders live in one.
"""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moldau.controller import EMPTY_IMAGE, ClusterImage, apply, snapshot_records
from moldau.controller.brokers import register_broker, unregister_broker
from moldau.controller.context import effective_min_isr
from moldau.controller.elections import balance_leaders, elect_leaders, elect_unclean_leaders
from moldau.controller.features import ELR_VERSION
from moldau.controller.image import NO_LEADER, PartitionImage
from moldau.controller.isr import alter_partition
from moldau.controller.reassignment import alter_partition_reassignments
from moldau.controller.topics import create_partitions, create_topics, delete_topics
from moldau.seams.randomness import SeededRandom
from moldau.wire import messages as m
from tests.controller.world import SESSION_TIMEOUT_MS, World

BROKERS = range(5)
TOPICS = ("a", "b", "unclean")


class Chaos:
    """Draws commands until told to stop, and checks the image after each."""

    def __init__(self, seed: int, *, elr: bool, min_isr: int) -> None:
        self.random = SeededRandom(seed)
        self.world = World(seed=seed, features={ELR_VERSION: int(elr)}, min_insync_replicas=str(min_isr))
        self.incarnations = dict.fromkeys(BROKERS, 0)
        self.actions = [
            self.heartbeat,
            self.heartbeat,
            self.heartbeat,
            self.register,
            self.time_passes,
            self.create_topic,
            self.delete_topic,
            self.add_partitions,
            self.change_isr,
            self.change_isr,
            self.change_isr,
            self.reassign,
            self.cancel,
            self.elect,
            self.timers,
            self.unregister,
        ]

    def pick(self, items: list[int]) -> int:
        return items[self.random.below(len(items))]

    def some(self, items: list[int]) -> list[int]:
        """A random non-empty selection in random order."""
        left = list(items)
        return [left.pop(self.random.below(len(left))) for _ in range(1 + self.random.below(len(left)))]

    def step(self) -> None:
        before = self.world.image
        self.actions[self.random.below(len(self.actions))]()
        check(before, self.world)

    def register(self) -> None:
        broker_id = self.pick(list(BROKERS))
        known = self.world.image.brokers.get(broker_id)
        self.incarnations[broker_id] += self.random.below(2)
        previous = known.epoch if known is not None and self.random.below(2) else -1
        request = self.world.registration(
            broker_id, rack=f"r{broker_id % 3}", incarnation=self.incarnations[broker_id] % 256, previous_epoch=previous
        )
        self.world.run(register_broker(self.world.image, request, self.world.context, self.world.sessions))

    def heartbeat(self) -> None:
        if self.world.image.brokers:
            self.world.heartbeat(
                self.pick(list(self.world.image.brokers)),
                want_fence=self.random.below(6) == 0,
                want_shut_down=self.random.below(8) == 0,
            )

    def time_passes(self) -> None:
        self.world.now_ms += self.random.fraction() * SESSION_TIMEOUT_MS
        self.world.commit(self.world.fence_stale())

    def unregister(self) -> None:
        if self.world.image.brokers and self.random.below(4) == 0:
            request = m.UnregisterBrokerRequest(self.pick(list(self.world.image.brokers)))
            self.world.run(unregister_broker(self.world.image, request, self.world.context))

    def create_topic(self) -> None:
        name = TOPICS[self.random.below(len(TOPICS))]
        configs = [m.CreateTopicsRequest.CreatableTopicConfig("unclean.leader.election.enable", "true")]
        topic = m.CreateTopicsRequest.CreatableTopic(
            name, 1 + self.random.below(3), 1 + self.random.below(4), [], configs if name == "unclean" else []
        )
        self.world.run(create_topics(self.world.image, m.CreateTopicsRequest([topic]), self.world.context))

    def delete_topic(self) -> None:
        if self.random.below(4) == 0:
            name = TOPICS[self.random.below(len(TOPICS))]
            request = m.DeleteTopicsRequest(topic_names=[name])
            self.world.run(delete_topics(self.world.image, request, self.world.context))

    def add_partitions(self) -> None:
        for topic in list(self.world.image.topics.values())[:1]:
            count = len(topic.partitions) + self.random.below(2)
            request = m.CreatePartitionsRequest([m.CreatePartitionsRequest.CreatePartitionsTopic(topic.name, count)])
            if count < 6:
                self.world.run(create_partitions(self.world.image, request, self.world.context))

    def any_partition(self) -> tuple[str, bytes, int, PartitionImage] | None:
        every = list(self.world.image.partitions())
        if not every:
            return None
        topic, number, partition = every[self.random.below(len(every))]
        return topic.name, topic.topic_id, number, partition

    def change_isr(self) -> None:
        found = self.any_partition()
        if found is None or found[3].leader == NO_LEADER:
            return
        _, topic_id, number, partition = found
        Alter = m.AlterPartitionRequest  # noqa: N806 - a class
        isr = [partition.leader, *(r for r in self.some(list(partition.replicas)) if r != partition.leader)]
        if partition.leader_recovery_state:
            isr = isr[:1]
        change = Alter.PartitionData(
            number,
            partition.leader_epoch - (self.random.below(10) == 0),
            [],
            [Alter.BrokerState(replica, -1) for replica in isr],
            0,
            partition.partition_epoch,
        )
        epoch = self.world.image.brokers[partition.leader].epoch
        request = Alter(partition.leader, epoch, [Alter.TopicData(topic_id, [change])])
        self.world.run(alter_partition(self.world.image, request, self.world.context))

    def reassign(self, *, cancel: bool = False) -> None:
        found = self.any_partition()
        if found is None or not self.world.image.brokers:
            return
        name, _, number, _ = found
        Request = m.AlterPartitionReassignmentsRequest  # noqa: N806 - a class
        target = None if cancel else self.some(list(self.world.image.brokers))
        request = Request(topics=[Request.ReassignableTopic(name, [Request.ReassignablePartition(number, target)])])
        self.world.run(alter_partition_reassignments(self.world.image, request, self.world.context))

    def cancel(self) -> None:
        self.reassign(cancel=True)

    def elect(self) -> None:
        kind = int(self.random.below(10) == 0)
        self.world.run(elect_leaders(self.world.image, m.ElectLeadersRequest(kind, None), self.world.context))

    def timers(self) -> None:
        self.world.commit(balance_leaders(self.world.image, self.world.context))
        self.world.commit(elect_unclean_leaders(self.world.image, self.world.context))


def check(before: ClusterImage, world: World) -> None:
    image = world.image
    for topic, number, partition in image.partitions():
        where = f"{topic.name}-{number}: {partition}"
        check_members(partition, where)
        if partition.leader != NO_LEADER:
            assert image.is_active(partition.leader), where
            assert partition.leader in partition.isr, where
        elif image.is_elr_enabled:
            # With a clean candidate alive, nobody waits for a leader.
            candidates = partition.isr or partition.elr
            assert not any(image.is_active(replica) for replica in candidates), where
        if not image.is_elr_enabled:
            assert partition.isr, where
            assert not partition.elr, where
        else:
            minimum = effective_min_isr(image, world.context, topic.name, len(partition.replicas))
            assert len(partition.isr) < minimum or not partition.elr, where
        old = before.topics.get(topic.name)
        if old is not None and old.topic_id == topic.topic_id:
            check_epochs(old.partitions.get(number), partition, where)
    assert apply(EMPTY_IMAGE, snapshot_records(image)) == image
    for broker in image.brokers.values():
        if broker.fenced and image.is_elr_enabled:
            assert not any(broker.broker_id in p.isr for _, _, p in image.partitions())


def check_members(partition: PartitionImage, where: str) -> None:
    replicas = set(partition.replicas)
    assert len(replicas) == len(partition.replicas) == len(partition.directories) > 0, where
    assert len(set(partition.isr)) == len(partition.isr), where
    assert set(partition.isr) <= replicas, where
    assert set(partition.elr) <= replicas, where
    assert not set(partition.isr) & set(partition.elr), where
    assert set(partition.adding_replicas) <= replicas, where
    assert set(partition.removing_replicas) <= replicas, where
    assert not set(partition.adding_replicas) & set(partition.removing_replicas), where


def check_epochs(old: PartitionImage | None, new: PartitionImage, where: str) -> None:
    if old is None or old == new:
        return
    assert new.partition_epoch > old.partition_epoch, where
    assert new.leader_epoch >= old.leader_epoch, where
    if new.leader != old.leader:
        assert new.leader_epoch > old.leader_epoch, where


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 1 << 30), st.booleans(), st.integers(1, 3))
def test_partitions_stay_sound_whatever_happens(seed: int, elr: bool, min_isr: int) -> None:
    chaos = Chaos(seed, elr=elr, min_isr=min_isr)
    for _ in range(40):
        chaos.step()


def test_the_same_seed_gives_the_same_log() -> None:
    """Nothing but the arguments decides: two runs write the same records (the simulator depends on it)."""
    runs = []
    for _ in range(2):
        chaos = Chaos(4711, elr=True, min_isr=2)
        for _ in range(120):
            chaos.step()
        runs.append((chaos.world.image, chaos.world.offset))
    assert runs[0] == runs[1]
    assert len(runs[0][0].topics) > 0
