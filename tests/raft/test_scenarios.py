"""What the Raft paper and Kafka's KIPs promise, as small stories: `scenarios/*.txt`, one step per line.

    nodes 3 [observers 1]        the cluster; every story begins with it
    elect                        wait for a leader that can commit: `leader` from then on; the former one is `old`
    append x y                   the leader appends
    append x to NODE             somebody who believes to lead appends
    committed x y                wait until these, in this order, are committed everywhere that is up
    isolate NODE, heal           cut a node off, mend the network
    crash NODE, start NODE       lose what was not flushed; come back
    resign                       the leader gives up in an orderly way
    snapshot NODE                take a snapshot of what is committed, and cut the log behind it
    add N, remove N              change the voters
    run 1500                     let so many milliseconds pass
    within 500 STEP              the step must be done in so many milliseconds
    expect …                     see `_expect`

NODE is a number, `leader`, `old`, `follower` (the lowest voter that does not lead) or `other` (the highest).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from moldau.raft import VoterSet
from moldau.raft.leader import Leader
from tests.raft.cluster import LEADER_CHANGE, Cluster, Node

STORIES = sorted(Path(__file__).with_name("scenarios").glob("*.txt"))
ROLES = ("unattached", "follower", "prospective", "candidate", "leader", "resigned")


class Story:
    def __init__(self) -> None:
        self.cluster: Cluster
        self.leader: Node | None = None
        self.old: Node | None = None
        self.within_ms = 20_000.0

    def play(self, line: str) -> None:
        name, *words = line.split()
        if name == "within":
            self.within_ms = float(words[0])
            self.play(" ".join(words[1:]))
            self.within_ms = 20_000.0
        else:
            getattr(self, f"_{name}")(words)

    def node(self, name: str) -> Node:
        if name in ("leader", "old"):
            found = self.leader if name == "leader" else self.old
            assert found is not None
            return found
        if name.isdigit():
            return self.cluster.nodes[int(name)]
        assert self.leader is not None
        ids = [voter.key.id for voter in self.leader.raft.voters if voter.key.id != self.leader.id]
        return self.cluster.nodes[ids[0] if name == "follower" else ids[-1]]

    # -- steps

    def _nodes(self, words: list[str]) -> None:
        observers = int(words[2]) if len(words) > 1 else 0
        self.cluster = Cluster(int(words[0]), 7, observers=observers)

    def _elect(self, words: list[str]) -> None:
        former = None if self.leader is None or self.leader.raft.role.epoch < 1 else self.leader
        self.cluster.run_until(self.cluster.has_active_leader, self.within_ms)
        self.leader = self.cluster.leader
        if former is not self.leader:
            self.old = former

    def _append(self, words: list[str]) -> None:
        node = self.node(words[-1]) if "to" in words else self.node("leader")
        for value in words[: words.index("to")] if "to" in words else words:
            assert node.append(value), f"{node.id} does not lead"

    def _committed(self, words: list[str]) -> None:
        def is_so() -> bool:
            reached = [
                _values(node)[: len(words)] == words and (node.raft.high_watermark or 0) == node.log.end_offset
                for node in self.cluster.nodes
                if node.is_up and not self._is_cut(node)
            ]
            return all(reached) and _values_of(self.cluster) == words

        self.cluster.run_until(is_so, self.within_ms)

    def _is_cut(self, node: Node) -> bool:
        return any(node.id in pair for pair in self.cluster.cut) and all(
            (node.id, other.id) in self.cluster.cut for other in self.cluster.nodes if other is not node
        )

    def _isolate(self, words: list[str]) -> None:
        self.cluster.isolate(self.node(words[0]).id)

    def _heal(self, words: list[str]) -> None:
        self.cluster.heal()

    def _crash(self, words: list[str]) -> None:
        self.node(words[0]).crash()

    def _start(self, words: list[str]) -> None:
        self.node(words[0]).start()

    def _resign(self, words: list[str]) -> None:
        node = self.node("leader")
        node.raft.resign(self.cluster.now_ms)
        node.carry_out_effects()

    def _snapshot(self, words: list[str]) -> None:
        node = self.node(words[0])
        assert node.raft.high_watermark is not None
        node.log.take_snapshot(node.raft.high_watermark)
        node.log.cut_before(node.raft.high_watermark)

    def _add(self, words: list[str]) -> None:
        assert self.node("leader").add_voter(int(words[0]))

    def _remove(self, words: list[str]) -> None:
        assert self.node("leader").remove_voter(int(words[0]))

    def _run(self, words: list[str]) -> None:
        self.cluster.run(float(words[0]))

    def _expect(self, words: list[str]) -> None:
        """`leader is NODE`, `leader is not NODE`, `no leader`, `NODE is ROLE`, `epoch N`, `votes 0 1 2`,
        `NODE has x y` (in its log, committed or not), `NODE starts after 0`, `refused add N`."""
        leading = [node for node in self.cluster.nodes if node.is_up and isinstance(node.raft.role, Leader)]
        match words:
            case ["no", "leader"]:
                assert not leading
            case ["leader", "is", "not", name]:
                assert self.node("leader") is not self.node(name)
            case ["epoch", number]:
                assert {node.raft.epoch for node in self.cluster.nodes if node.is_up} == {int(number)}
            case ["votes", *ids]:
                assert [voter.key.id for voter in self.node("leader").raft.voters] == [int(each) for each in ids]
            case ["refused", "add", number]:
                assert not self.node("leader").add_voter(int(number))
            case [name, "is", role] if role in ROLES:
                assert type(self.node(name).raft.role).__name__.lower() == role
            case ["leader", "is", name]:
                assert self.node("leader") is self.node(name)
            case [name, "has", *values]:
                assert _values(self.node(name)) == values
            case [name, "starts", "after", "0"]:
                assert self.node(name).log.start_offset > 0
            case _:
                raise AssertionError(f"not understood: expect {' '.join(words)}")


def _values(node: Node) -> list[object]:
    return [each.value for each in node.log.whole() if _is_data(each.value)]


def _values_of(cluster: Cluster) -> list[object]:
    return [each.value for each in cluster.committed if _is_data(each.value)]


def _is_data(value: object) -> bool:
    return value != LEADER_CHANGE and not isinstance(value, VoterSet)


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story(path: Path) -> None:
    story = Story()
    for number, line in enumerate(path.read_text().splitlines(), 1):
        step = line.partition("#")[0].strip()
        if step:
            try:
                story.play(step)
            except AssertionError as error:
                raise AssertionError(f"{path.name}:{number}: {step}: {error}") from error
    story.cluster.check_log_matching()
