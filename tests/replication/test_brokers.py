"""Brokers that replicate: real handlers, logs and fetchers, a controller that the test speaks for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from moldau.broker.channels import Channels
from moldau.broker.replicas.dir_assignments import DirAssignments
from moldau.broker.replicas.isr_updates import IsrUpdates
from moldau.controller.context import ControllerResult
from moldau.controller.image import UNASSIGNED_DIR
from moldau.log.flush import FlushJob
from moldau.records import build_batch
from moldau.wire import ErrorCode
from moldau.wire import messages as m
from moldau.wire.fetch import FetchedFrame
from tests.replication.brokers import LAG_MAX_MS, Cluster, directory_id
from tests.simulation.loop import VirtualLoop
from tests.support.sim_disk import SimDisk

_FIRST_SEGMENT = "/data/t-0/00000000000000000000.log"


def test_records_are_on_all_replicas_before_they_are_acknowledged() -> None:
    cluster = Cluster(3)

    async def test() -> None:
        cluster.create("t", [1, 2, 3])
        assert await cluster.produce(1, "t", "a", "b") is ErrorCode.NONE
        assert cluster.values(2, "t") == cluster.values(3, "t") == ["a", "b"]
        assert await cluster.read(1, "t") == ["a", "b"]
        # Followers hear of the high watermark with their next fetch.
        await cluster.until(lambda: cluster.log(2, "t").high_watermark == cluster.log(3, "t").high_watermark == 2)

    cluster.run(test)


def test_consumers_do_not_see_what_is_not_committed() -> None:
    cluster = Cluster(2)

    async def test() -> None:
        cluster.create("t", [1, 2])
        assert await cluster.produce(1, "t", "a") is ErrorCode.NONE
        cluster.members[2].crash()
        assert await cluster.produce(1, "t", "b", acks=1) is ErrorCode.NONE
        assert await cluster.produce(1, "t", "c", timeout_ms=100) is ErrorCode.REQUEST_TIMED_OUT
        assert await cluster.read(1, "t") == ["a"]
        assert cluster.values(1, "t") == ["a", "b", "c"]

    cluster.run(test)


def test_the_isr_shrinks_without_a_dead_follower_and_grows_again() -> None:
    cluster = Cluster(3)

    async def test() -> None:
        cluster.create("t", [1, 2, 3])
        assert await cluster.produce(1, "t", "a") is ErrorCode.NONE
        cluster.members[3].crash()
        waiting = asyncio.ensure_future(cluster.produce(1, "t", "b", timeout_ms=10_000))
        await cluster.until(lambda: cluster.image("t").isr == (1, 2))
        assert await waiting is ErrorCode.NONE
        assert await cluster.read(1, "t") == ["a", "b"]
        # It comes back as another incarnation, catches up, and is in sync.
        cluster.register(3, incarnation=1)
        cluster.publish()
        await cluster.members[3].start()
        await cluster.until(lambda: cluster.image("t").isr == (1, 2, 3))
        assert cluster.values(3, "t") == ["a", "b"]

    cluster.run(test)


def test_too_few_replicas_are_refused_before_and_told_after_the_append() -> None:
    cluster = Cluster(3)

    async def test() -> None:
        cluster.create("t", [1, 2, 3], min_insync_replicas="2")
        assert await cluster.produce(1, "t", "a") is ErrorCode.NONE
        cluster.members[2].crash()
        cluster.members[3].crash()
        assert await cluster.produce(1, "t", "b", timeout_ms=10_000) is ErrorCode.REQUEST_TIMED_OUT
        assert cluster.image("t").isr == (1,)
        assert await cluster.produce(1, "t", "c") is ErrorCode.NOT_ENOUGH_REPLICAS
        assert await cluster.produce(1, "t", "d", acks=1) is ErrorCode.NONE
        assert await cluster.read(1, "t") == ["a"], "below min.insync.replicas nothing becomes readable (KIP-966)"

    cluster.run(test)


def test_a_shrink_after_the_append_is_told_when_the_others_have_it() -> None:
    cluster = Cluster(3)

    async def test() -> None:
        cluster.create("t", [1, 2, 3], min_insync_replicas="3")
        assert await cluster.produce(1, "t", "a") is ErrorCode.NONE
        cluster.fabric.cut("n3", "n1")
        waiting = asyncio.ensure_future(cluster.produce(1, "t", "b", timeout_ms=60_000))
        await cluster.until(lambda: cluster.image("t").isr == (1, 2))
        cluster.decide(m.ConfigRecord(resource_type=2, resource_name="t", name="min.insync.replicas", value="2"))
        assert await waiting is ErrorCode.NONE

    cluster.run(test)


def test_a_new_leader_has_everything_that_was_acknowledged_and_the_old_one_cuts_the_rest() -> None:
    cluster = Cluster(3)

    async def test() -> None:
        cluster.create("t", [1, 2, 3])
        assert await cluster.produce(1, "t", "a") is ErrorCode.NONE
        # 1 is cut off: it still believes to lead, and takes a record that nobody fetches.
        cluster.members[1].is_cut_off = True
        for other in ("n2", "n3"):
            cluster.fabric.cut(other, "n1")
        assert await cluster.produce(1, "t", "lost", acks=1) is ErrorCode.NONE
        cluster.elect("t", 2, [2, 3])
        assert await cluster.produce(2, "t", "b") is ErrorCode.NONE
        assert await cluster.produce(1, "t", "x", timeout_ms=300) is ErrorCode.REQUEST_TIMED_OUT
        cluster.fabric.heal()
        cluster.members[1].is_cut_off = False
        cluster.publish()
        await cluster.until(lambda: cluster.image("t").isr == (1, 2, 3))
        assert cluster.values(1, "t") == cluster.values(2, "t") == cluster.values(3, "t") == ["a", "b"]
        assert await cluster.produce(1, "t", "y") is ErrorCode.NOT_LEADER_OR_FOLLOWER

    cluster.run(test)


def test_waiting_producers_are_told_at_once_when_the_leader_changes() -> None:
    cluster = Cluster(2)

    async def test() -> None:
        cluster.create("t", [1, 2])
        assert await cluster.produce(1, "t", "a") is ErrorCode.NONE
        cluster.fabric.cut("n2", "n1")
        waiting = asyncio.ensure_future(cluster.produce(1, "t", "b", timeout_ms=60_000))
        await asyncio.sleep(0.1)
        cluster.elect("t", 2, [1, 2])
        started = cluster.loop.time()
        assert await waiting is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert cluster.loop.time() - started < 1

    cluster.run(test)


def test_a_machine_that_lost_its_tail_fetches_it_again() -> None:
    cluster = Cluster(2)

    async def test() -> None:
        cluster.create("t", [1, 2])
        assert await cluster.produce(1, "t", "a") is ErrorCode.NONE
        cluster.log(2, "t").flush()
        assert await cluster.produce(1, "t", "b") is ErrorCode.NONE
        cluster.members[2].crash(power_lost=True)
        cluster.register(2, incarnation=1)
        cluster.publish()
        await cluster.members[2].start()
        await cluster.until(lambda: cluster.values(2, "t") == ["a", "b"])
        await cluster.until(lambda: set(cluster.image("t").isr) == {1, 2})

    cluster.run(test)


@pytest.mark.parametrize("place", [16, 17], ids=["magic, so the leader cannot read it", "CRC, so it sends it as it is"])
def test_a_follower_tells_whose_log_keeps_it_from_catching_up(place: int, caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(2)

    async def test() -> None:
        cluster.create("t", [1, 2])
        assert await cluster.produce(1, "t", "a") is ErrorCode.NONE
        second_at = cluster.members[1].disk.file_size(_FIRST_SEGMENT)
        cluster.members[2].crash()
        assert await cluster.produce(1, "t", "b", acks=1) is ErrorCode.NONE
        cluster.members[1].disk.damage(_FIRST_SEGMENT, second_at + place, 0x40)
        cluster.register(2, incarnation=1)
        cluster.publish()
        await cluster.members[2].start()
        await cluster.until(lambda: "cannot replicate t-0 from broker 1" in caplog.text)

    with caplog.at_level("WARNING"):
        cluster.run(test)


def test_followers_wait_for_the_disk_where_the_topic_wants_flushes() -> None:
    cluster = Cluster(2)

    async def test() -> None:
        cluster.create("t", [1, 2], flush_messages="1")
        assert await cluster.produce(1, "t", "a") is ErrorCode.NONE
        assert cluster.log(1, "t").flushed_offset == cluster.log(2, "t").flushed_offset == 1

    cluster.run(test)


@pytest.mark.parametrize("was_leader", [False, True], ids=["as follower", "as leader"])
def test_a_follower_does_not_tell_a_new_leader_of_what_its_stalled_disk_does_not_have(was_leader: bool) -> None:
    """Found by the simulator (15001336): whoever took over its partition went on at the end of the log, while what had
    been appended before still waited for the disk; after a loss of power it had not been there."""
    cluster = Cluster(3)

    async def test() -> None:
        cluster.create("t", [2, 1, 3] if was_leader else [1, 2, 3], flush_messages="1")
        run_in_executor, is_healed = VirtualLoop.run_in_executor, asyncio.Event()

        def stalled(loop: VirtualLoop, executor: object, work: Callable[..., Any], *args: Any) -> Any:
            job = getattr(work, "__self__", None)

            async def later() -> None:
                await is_healed.wait()
                await run_in_executor(loop, executor, work, *args)

            if isinstance(job, FlushJob) and job._disk is cluster.members[2].disk:
                return loop.create_task(later())
            return run_in_executor(loop, executor, work, *args)

        with patch.object(VirtualLoop, "run_in_executor", stalled):
            leader = cluster.members[2 if was_leader else 1].broker.replicas.leader("t", 0)
            leader.append(build_batch([(0, 0, None, b"a", ())]))
            await cluster.until(lambda: all(cluster.values(each, "t") == ["a"] for each in (1, 2, 3)))
            assert cluster.log(2, "t").flushed_offset == 0
            cluster.elect("t", 3, [1, 2, 3])
            await asyncio.sleep(LAG_MAX_MS / 2_000)
            assert (cluster.log(3, "t").flushed_offset, cluster.log(3, "t").high_watermark) == (1, 0)
            is_healed.set()
            await cluster.until(lambda: cluster.log(3, "t").high_watermark == 1)
        assert cluster.log(2, "t").flushed_offset == 1

    cluster.run(test)


@pytest.mark.parametrize("replicas", [[1], [1, 2]], ids=["alone", "with a follower"])
def test_nothing_is_readable_before_it_is_on_the_disk_where_the_topic_wants_flushes(replicas: list[int]) -> None:
    """As in Apache Kafka, which flushes within the append: whoever was told of a record, reader or coordinator, is told
    of it again after a loss of all power."""
    cluster = Cluster(2)

    async def test() -> None:
        cluster.create("t", replicas, flush_messages="1")
        partition = cluster.members[1].broker.replicas.leader("t", 0)
        log = partition.log
        seen = []
        flush = FlushJob.finish

        def finish(job: FlushJob) -> None:
            seen.append((log.high_watermark, log.flushed_offset))
            flush(job)

        with patch.object(FlushJob, "finish", finish):
            partition.append(build_batch([(0, 0, None, b"a", ())]))
            assert log.high_watermark == 0
            await cluster.until(lambda: log.high_watermark == 1)
        assert (0, 0) in seen
        assert log.flushed_offset == 1

    cluster.run(test)


def test_a_leader_that_names_no_ids_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    """What a peer answers is not to be trusted: an answer in a version without topic ids is told, not asserted."""
    cluster = Cluster(2)
    left = [3]

    async def test() -> None:
        call = Channels.call

        async def old(self: Channels, *place: Any, **more: Any) -> Any:
            answer = await call(self, *place, **more)
            if isinstance(answer, FetchedFrame) and answer.topics and left[0]:
                left[0] -= 1
                return answer._replace(topics=[("t", results) for _, results in answer.topics])
            return answer

        with patch.object(Channels, "call", old):
            cluster.create("t", [1, 2])
            assert await cluster.produce(1, "t", "a") is ErrorCode.NONE
            await cluster.until(lambda: cluster.values(2, "t") == ["a"])
        assert not left[0]

    cluster.run(test)
    assert "the leader is too old" in caplog.text
    assert "Traceback" not in caplog.text


def test_a_follower_that_missed_deleted_records_starts_over() -> None:
    cluster = Cluster(2)

    async def test() -> None:
        cluster.create("t", [1, 2])
        for value in "abcd":
            assert await cluster.produce(1, "t", value) is ErrorCode.NONE
        cluster.members[2].crash()
        for value in "efgh":
            assert await cluster.produce(1, "t", value, timeout_ms=10_000) is ErrorCode.NONE
        cluster.log(1, "t").delete_records_before(6)
        cluster.register(2, incarnation=1)
        cluster.publish()
        await cluster.members[2].start()
        await cluster.until(lambda: cluster.values(2, "t") == ["g", "h"])
        assert cluster.log(2, "t").log_start_offset == 6

    cluster.run(test)


def test_deleted_records_are_gone_when_all_replicas_dropped_them() -> None:
    cluster = Cluster(2)

    async def test() -> None:
        cluster.create("t", [1, 2])
        for value in "abc":
            assert await cluster.produce(1, "t", value) is ErrorCode.NONE
        kind = m.DeleteRecordsRequest
        request = kind([kind.DeleteRecordsTopic("t", [kind.DeleteRecordsPartition(0, 2)])], 5_000)
        response = await cluster.channels.call("n1", 9092, request)
        result = response.topics[0].partitions[0]
        assert (result.error_code, result.low_watermark) == (ErrorCode.NONE, 2)
        assert cluster.log(2, "t").log_start_offset == 2

    cluster.run(test)


def test_many_partitions_share_one_fetcher_and_a_session() -> None:
    cluster = Cluster(2)

    async def test() -> None:
        cluster.create("t", *([1, 2] for _ in range(50)))
        for index in range(0, 50, 7):
            assert await cluster.produce(1, "t", f"v{index}", index=index) is ErrorCode.NONE
        fetchers = cluster.members[2].broker.replicas.replication.fetchers
        # Replicas are made in turns: those that come while a fetch is under way are carried by another until it ends.
        async with asyncio.timeout(30):
            while sum(not each.is_over for each in fetchers._fetchers.values()) > 1:
                await asyncio.sleep(0.1)
        assert len(cluster.members[1].broker.fetch_sessions) == 1

    cluster.run(test)


def test_strangers_and_former_lives_cannot_fetch_as_followers() -> None:
    cluster = Cluster(3)

    async def test() -> None:
        cluster.create("t", [1, 2])
        assert await cluster.produce(1, "t", "a") is ErrorCode.NONE
        epoch = cluster.controller.image.brokers[2].epoch
        result = await cluster.fetch(1, "t", 0, replica=(3, 1))
        assert result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        result = await cluster.fetch(1, "t", 0, replica=(2, epoch - 1))
        assert result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        result = await cluster.fetch(2, "t", 0, replica=(1, 1))
        assert result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        result = await cluster.fetch(1, "t", 0, replica=(2, epoch), leader_epoch=5)
        assert result.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        result = await cluster.fetch(1, "t", 0, replica=(2, epoch), last_epoch=7)
        assert result.error_code == ErrorCode.OFFSET_OUT_OF_RANGE

    cluster.run(test)


def test_consumers_may_read_from_followers_and_are_sent_to_their_rack() -> None:
    cluster = Cluster(2, replica_selector_class="org.apache.kafka.common.replica.RackAwareReplicaSelector")
    cluster.members[1].settings["broker.rack"] = "east"
    cluster.members[2].settings["broker.rack"] = "west"

    async def test() -> None:
        cluster.create("t", [1, 2])
        assert await cluster.produce(1, "t", "a") is ErrorCode.NONE
        assert (await cluster.fetch(1, "t", 0, rack="east")).preferred_read_replica == -1
        result = await cluster.fetch(1, "t", 0, rack="west")
        assert (result.preferred_read_replica, result.records) == (2, [])
        assert (await cluster.fetch(1, "t", 0, rack="north")).preferred_read_replica == -1
        # The follower hears of the high watermark at once, not with the end of its long fetch.
        waiting = asyncio.ensure_future(cluster.fetch(2, "t", 1, max_wait_ms=10_000))
        started = cluster.loop.time()
        assert await cluster.produce(1, "t", "b") is ErrorCode.NONE
        assert (await waiting).records
        assert cluster.loop.time() - started < 0.1

    cluster.run(test)


def test_replicas_move_and_leave_nothing_behind() -> None:
    cluster = Cluster(3)

    async def test() -> None:
        cluster.create("t", [1, 2])
        assert await cluster.produce(1, "t", "a", "b") is ErrorCode.NONE
        cluster.change("t", replicas=[3, 2, 1], adding_replicas=[3], removing_replicas=[1])
        # The controller completes it when the new one is in sync, and gives the leadership away.
        await cluster.until(lambda: set(cluster.image("t").replicas) == {2, 3})
        leader = cluster.image("t").leader
        assert await cluster.produce(leader, "t", "c") is ErrorCode.NONE
        assert cluster.values(2, "t") == cluster.values(3, "t") == ["a", "b", "c"]
        assert cluster.members[1].broker.replicas.get("t", 0) is None
        assert cluster.members[1].broker.logs.get("t", 0) is None
        assert await cluster.produce(1, "t", "d") is ErrorCode.NOT_LEADER_OR_FOLLOWER

    cluster.run(test)


@pytest.mark.parametrize(("side", "broker_id"), [("leader", 1), ("follower", 2)])
def test_throttled_replicas_come_slowly_and_others_at_once(side: str, broker_id: int) -> None:
    cluster = Cluster(2, replica_fetch_max_bytes="300")

    async def test() -> None:
        cluster.create("moved", [1], **{f"{side}_replication_throttled_replicas": f"0:{broker_id}"})
        cluster.create("free", [1])
        rate = f"{side}.replication.throttled.rate"
        cluster.decide(m.ConfigRecord(resource_type=4, resource_name=str(broker_id), name=rate, value="100"))
        for topic in ("moved", "free"):
            for _ in range(40):
                assert await cluster.produce(1, topic, "x" * 100, acks=1) is ErrorCode.NONE
        for topic in ("moved", "free"):
            cluster.change(topic, replicas=[1, 2], adding_replicas=[2])
        await cluster.until(lambda: cluster.log(2, "free").log_end_offset == 40)
        await asyncio.sleep(3)
        assert 1 < cluster.log(2, "moved").log_end_offset < 15, "a burst of ten seconds' worth, and then no more"
        await asyncio.sleep(200)
        assert cluster.log(2, "moved").log_end_offset == 40
        await cluster.until(lambda: cluster.image("moved").isr == (1, 2))

    cluster.run(test)


def test_a_deleted_topic_is_no_longer_followed() -> None:
    cluster = Cluster(2)

    async def test() -> None:
        cluster.create("t", [1, 2])
        assert await cluster.produce(1, "t", "a") is ErrorCode.NONE
        cluster.decide(m.RemoveTopicRecord(topic_id=cluster.topic_id("t")))
        await asyncio.sleep(1)
        assert cluster.members[2].broker.logs.get("t", 0) is None
        assert not cluster.members[2].broker.replicas.replication.fetchers._of
        # A topic of the same name is another topic.
        cluster.create("t", [2, 1])
        assert await cluster.produce(2, "t", "b") is ErrorCode.NONE
        assert cluster.values(1, "t") == ["b"]

    cluster.run(test)


def test_a_slow_controller_does_not_stop_the_rest() -> None:
    """The ISR cannot change while the controller is away, and nothing is promised meanwhile that it could break."""
    cluster = Cluster(3)

    async def test() -> None:
        cluster.create("t", [1, 2, 3])
        assert await cluster.produce(1, "t", "a") is ErrorCode.NONE
        cluster.members[1].is_cut_off = True
        cluster.members[3].crash()
        waiting = asyncio.ensure_future(cluster.produce(1, "t", "b", timeout_ms=60_000))
        await asyncio.sleep(3 * LAG_MAX_MS / 1000)
        assert not waiting.done()
        cluster.members[1].is_cut_off = False
        assert await waiting is ErrorCode.NONE
        assert cluster.image("t").isr == (1, 2)

    cluster.run(test)


def test_with_several_log_dirs_the_controller_hears_where_replicas_lie() -> None:
    cluster = Cluster(2, log_dirs="/a,/b")

    async def test() -> None:
        cluster.create("t", *([1, 2] for _ in range(6)))
        assert cluster.image("t").directories == (UNASSIGNED_DIR, UNASSIGNED_DIR)

        def is_known() -> bool:
            return all(
                cluster.image("t", index).directories[place]
                == directory_id(node_id, ["/a", "/b"].index(cluster.log(node_id, "t", index).log_dir))
                for index in range(6)
                for place, node_id in enumerate([1, 2])
            )

        await cluster.until(is_known)
        asked = [request for request in cluster.requests if isinstance(request, m.AssignReplicasToDirsRequest)]
        assert len(asked) == 2, "all replicas of a broker in one request"
        # A replica whose dir the image names is made there.
        cluster.members[1].crash()
        cluster.members[1].disk.remove_tree("/b")
        cluster.members[1].disk.make_dirs("/b")
        cluster.register(1, incarnation=1)
        cluster.publish()
        await cluster.members[1].start()
        await cluster.until(is_known)
        assert len([each for each in cluster.requests if isinstance(each, m.AssignReplicasToDirsRequest)]) == 2

    cluster.run(test)


@pytest.mark.parametrize("is_counted_on", [True, False])
def test_a_replica_that_may_lie_in_a_dir_that_is_away_is_not_made_anew(
    monkeypatch: pytest.MonkeyPatch, is_counted_on: bool
) -> None:
    """The controller was not told where it lies. If anybody counts on it, an empty one must not take its place."""
    cluster = Cluster(2, log_dirs="/a,/b")
    monkeypatch.setattr(DirAssignments, "check", lambda *_: None)

    async def test() -> None:
        cluster.create("t", [1, 2], [1, 2])
        member = cluster.members[1]
        (index,) = [each for each in range(2) if cluster.log(1, "t", each).log_dir == "/b"]
        assert await cluster.produce(1, "t", "a", index=index) is ErrorCode.NONE
        if is_counted_on:
            cluster.change("t", index, isr=[1])
        member.crash()
        member.disk.fail("/b")
        cluster.register(1, incarnation=1)
        await member.start()
        cluster.publish()
        assert cluster.image("t", index).directories == (UNASSIGNED_DIR, UNASSIGNED_DIR)
        if is_counted_on:
            assert cluster.image("t", index).leader == 1
            assert member.broker.replicas.get("t", index) is None
            assert await cluster.produce(1, "t", "b", index=index) is ErrorCode.KAFKA_STORAGE_ERROR
            cluster.create("new", [1, 2])  # what is new cannot lie there
            assert await cluster.produce(1, "new", "a") is ErrorCode.NONE
        else:
            await cluster.until(lambda: cluster.image("t", index).isr == (1, 2))
            assert cluster.log(1, "t", index).log_dir == "/a"
            assert cluster.values(1, "t", index) == ["a"]

    cluster.run(test)


def test_the_controller_hears_of_a_disk_that_was_replaced() -> None:
    cluster = Cluster(2)

    async def test() -> None:
        cluster.create("t", [1, 2])
        member = cluster.members[2]
        member.crash()
        member.disk, member.disks = SimDisk(), 2
        cluster.register(2, incarnation=1)
        cluster.publish()
        await member.start()
        await cluster.until(lambda: cluster.image("t").directories[1] == directory_id(2, 0, 2))

    cluster.run(test)


def test_new_partitions_do_not_wait_for_the_fetch_that_is_under_way() -> None:
    cluster = Cluster(2, replica_fetch_wait_max_ms="20000", replica_lag_time_max_ms="60000")

    async def test() -> None:
        cluster.create("old", [1, 2])
        assert await cluster.produce(1, "old", "a") is ErrorCode.NONE
        await asyncio.sleep(1)
        started = cluster.loop.time()
        for number in range(5):
            cluster.create(f"new-{number}", [1, 2])
            assert await cluster.produce(1, f"new-{number}", "a") is ErrorCode.NONE
        assert cluster.loop.time() - started < 2
        # With the next round they are one again.
        assert await cluster.produce(1, "old", "b") is ErrorCode.NONE
        await asyncio.sleep(1)
        fetchers = cluster.members[2].broker.replicas.replication.fetchers
        assert len({id(each) for each in fetchers._of.values()}) == 1
        assert await cluster.produce(1, "new-0", "b") is ErrorCode.NONE
        assert cluster.values(2, "new-0") == ["a", "b"]

    cluster.run(test)


def test_what_a_broker_led_before_its_restart_it_leads_no_more() -> None:
    """Found by the simulator: back before the controller noticed, without its unflushed records, and still the leader
    by the image, it wrote others in their place, in the same epoch, which nobody could tell apart."""
    cluster = Cluster(2)

    async def test() -> None:
        cluster.create("t", [1, 2])
        assert await cluster.produce(1, "t", "a") is ErrorCode.NONE
        cluster.log(1, "t").flush()
        assert await cluster.produce(1, "t", "b") is ErrorCode.NONE
        cluster.members[1].crash(power_lost=True)
        await cluster.members[1].start()  # it has not registered yet
        assert cluster.image("t").leader == 1
        assert await cluster.produce(1, "t", "x", acks=1) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        cluster.register(1, incarnation=1)
        cluster.members[1].broker.broker_epoch = cluster.members[1].registered_epoch
        cluster.publish()
        await cluster.until(lambda: set(cluster.image("t").isr) == {1, 2})
        assert cluster.values(1, "t") == cluster.values(2, "t") == ["a", "b"]

    cluster.run(test)


def test_nobody_waits_for_a_follower_that_was_about_to_join_and_is_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(3, replica_lag_time_max_ms="30000")
    monkeypatch.setattr(IsrUpdates, "on_fetch", lambda *_: None)

    async def test() -> None:
        cluster.create("t", [1, 2, 3])
        assert await cluster.produce(1, "t", "a") is ErrorCode.NONE
        cluster.change("t", isr=[1, 2])
        cluster.fabric.cut("n3", "n1")
        waiting = asyncio.ensure_future(cluster.produce(1, "t", "b", timeout_ms=20_000))
        await asyncio.sleep(1)
        assert not waiting.done(), "3 is as good as in sync"
        cluster.controller.fence(3)
        cluster.publish()
        assert await waiting is ErrorCode.NONE

    cluster.run(test)


def test_a_refused_follower_is_not_proposed_with_every_fetch_but_when_brokers_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(3)
    proposals: list[float] = []

    def refuse(image: object, request: m.AlterPartitionRequest, context: object) -> ControllerResult[object]:
        proposals.append(cluster.loop.time())
        kind = m.AlterPartitionResponse
        answer = kind.PartitionData(0, ErrorCode.INELIGIBLE_REPLICA)
        return ControllerResult(kind(topics=[kind.TopicData(request.topics[0].topic_id, [answer])]), [])

    async def test() -> None:
        cluster.create("t", [1, 2, 3])
        assert await cluster.produce(1, "t", "a") is ErrorCode.NONE
        with monkeypatch.context() as patch:
            patch.setattr("tests.replication.brokers.alter_partition", refuse)
            cluster.elect("t", 1, [1, 2])
            await cluster.until(lambda: len(proposals) == 1)
            for number in range(50):
                assert await cluster.produce(1, "t", str(number)) is ErrorCode.NONE
            assert len(proposals) == 1, "each of these was fetched, and none of these fetches proposed it again"
            await cluster.until(lambda: len(proposals) == 2)
            assert proposals[1] - proposals[0] >= 1
        # Long before the pause is over, the image tells that brokers changed.
        started = cluster.loop.time()
        cluster.register(3, incarnation=1)
        cluster.members[3].broker.broker_epoch = cluster.members[3].registered_epoch
        cluster.publish()
        await cluster.until(lambda: cluster.image("t").isr == (1, 2, 3))
        assert cluster.loop.time() - started < 0.5

    cluster.run(test)
