"""Scenarios as text: a command behind `>`, below it what happened.

    > replicas 1 2 3 min=2        a new partition: the first leads, all are in sync
    > produce 1 a b               to a node, with acks=all
    > fetch 2, fetch 2 max=1      one fetch of a follower, from whom it takes for the leader
    > crash 1 lose=1, restart 1   a node dies; with `lose`, records it had not flushed are gone
    > flush 1                     the node's log is safe from that
    > elect 2 isr=2,3 told=2      the controller's word, to all nodes or only to those named; `unclean`
    > tell 1                      the node hears what it missed
    > expand 3, shrink            the leader looks whether the ISR should change, and asks for it
    > commit, refuse ERROR        the controller's answer to what was asked last; `commit lost`: it does not arrive
    > delete 2, reassign 2 3      the leader drops records before offset 2; other replicas
    > wait 500                    milliseconds
    > state                       everything
    > excuse                      all replicas failed at once: what was acknowledged so far may be lost
    > check                       no acknowledged record is missing, replicas agree below their high watermarks

Lines with # are comments.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from moldau.replication.leader import IsrChange
from moldau.wire import ErrorCode
from tests.replication.world import World


class Scenario:
    def __init__(self, *, truncate_by_high_watermark: bool = False) -> None:
        self._truncate_by_high_watermark = truncate_by_high_watermark
        self._change: IsrChange | None = None
        self.world: World
        self.commands: dict[str, Callable[[list[str], dict[str, str]], str]] = {
            name: getattr(self, name)
            for name in (
                "replicas", "produce", "fetch", "crash", "restart", "flush", "elect", "tell", "expand", "shrink",
                "commit", "refuse", "delete", "reassign", "wait", "state", "excuse", "check",
            )
        }  # fmt: skip

    def run(self, text: str) -> str:
        out = []
        for line in text.splitlines():
            if line.startswith(">"):
                out.append(line)
                name, *words = line[1:].split()
                options = dict(word.split("=") for word in words if "=" in word)
                shown = self.commands[name]([word for word in words if "=" not in word], options)
                out += [f"  {each}" for each in shown.splitlines()]
            elif not line.startswith("  "):
                out.append(line)
        return "\n".join([*out, ""])

    def replicas(self, words: list[str], options: dict[str, str]) -> str:
        self.world = World(
            [int(each) for each in words],
            min_isr=int(options.get("min", 1)),
            truncate_by_high_watermark=self._truncate_by_high_watermark,
        )
        return ""

    def produce(self, words: list[str], options: dict[str, str]) -> str:
        error = self.world.produce(int(words[0]), *words[1:])
        return error.name if error else self._marks(int(words[0]))

    def fetch(self, words: list[str], options: dict[str, str]) -> str:
        node_id = int(words[0])
        leader_id = self.world.nodes[node_id].leader_id
        before = self._marks(leader_id)
        said = f"{node_id} {self.world.fetch(node_id, int(options.get('max', 100)))}; {self._marks(node_id)}"
        after = self._marks(leader_id)
        return said if after == before else f"{said}\n{after}"

    def _marks(self, node_id: int) -> str:
        log = self.world.nodes[node_id].log
        return f"{node_id}: high watermark {log.high_watermark}, end {log.end_offset}"

    def crash(self, words: list[str], options: dict[str, str]) -> str:
        self.world.crash(int(words[0]), lose=int(options.get("lose", 0)))
        return ""

    def restart(self, words: list[str], options: dict[str, str]) -> str:
        self.world.restart(int(words[0]))
        return ""

    def flush(self, words: list[str], options: dict[str, str]) -> str:
        log = self.world.nodes[int(words[0])].log
        log.flushed_offset = log.end_offset
        return ""

    def elect(self, words: list[str], options: dict[str, str]) -> str:
        isr = [int(each) for each in options["isr"].split(",")] if "isr" in options else None
        told = [int(each) for each in options["told"].split(",")] if "told" in options else []
        self.world.elect(int(words[0]), isr, *told, unclean="unclean" in words)
        return f"epoch {self.world.role.leader_epoch}"

    def tell(self, words: list[str], options: dict[str, str]) -> str:
        self.world.tell(*(int(each) for each in words))
        return ""

    def expand(self, words: list[str], options: dict[str, str]) -> str:
        return self._asked(self.world.expand(int(words[0])))

    def shrink(self, words: list[str], options: dict[str, str]) -> str:
        return self._asked(self.world.shrink())

    def _asked(self, change: IsrChange | None) -> str:
        self._change = change or self._change
        return "nothing to ask" if change is None else "asks for ISR " + ", ".join(str(each) for each, _ in change.isr)

    def commit(self, words: list[str], options: dict[str, str]) -> str:
        assert self._change is not None
        error = self.world.commit(self._change, is_told="lost" not in words)
        return error.name if error else self._marks(self.world.leader_id)

    def refuse(self, words: list[str], options: dict[str, str]) -> str:
        lead = self.world.nodes[self.world.leader_id].lead
        assert lead is not None
        assert self._change is not None
        self._change = lead.on_refused(self._change, ErrorCode[words[0]])
        if self._change is not None:
            return "asks again"
        return "gives it up" if lead.pending is None else "waits for the image"

    def delete(self, words: list[str], options: dict[str, str]) -> str:
        self.world.nodes[self.world.leader_id].log.delete_before(int(words[0]))
        return ""

    def reassign(self, words: list[str], options: dict[str, str]) -> str:
        self.world.reassign([int(each) for each in words])
        return ""

    def wait(self, words: list[str], options: dict[str, str]) -> str:
        self.world.now_ms += float(words[0])
        return ""

    def state(self, words: list[str], options: dict[str, str]) -> str:
        lines = []
        for node in self.world.nodes.values():
            role = "down" if not node.is_up else "follows" if node.lead is None else "leads"
            if node.lead is not None:
                role += f" in epoch {node.leader_epoch} with ISR {','.join(map(str, sorted(node.lead.isr)))}"
            lines.append(
                f"{node.id} {role}: {node.log}; {self._marks(node.id)[3:]}, epochs "
                + " ".join(f"{epoch}:{offset}" for epoch, offset in node.log.epochs.entries)
            )
        return "\n".join(lines)

    def excuse(self, words: list[str], options: dict[str, str]) -> str:
        self.world.excuse()
        return ""

    def check(self, words: list[str], options: dict[str, str]) -> str:
        self.world.check()
        return "holds"


def replay_file(path: Path, *, truncate_by_high_watermark: bool = False) -> str:
    return Scenario(truncate_by_high_watermark=truncate_by_high_watermark).run(path.read_text())
