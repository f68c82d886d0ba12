"""Scenarios as text: a command behind `>`, below it everything the shard then wants done.

    > init a                      InitProducerId; `old` speaks like a client before KIP-890, `5s` is a timeout,
                                  `0/3` the producer id and epoch that the producer believes to have
    > add a 0/3 t-0 t-1           AddPartitionsToTxn; `verify` only asks; `offsets a 0/3 7` is AddOffsetsToTxn
    > commit a 0/3, abort a 0/3   EndTxn
    > appended                    the oldest append is committed, or failed: `appended REQUEST_TIMED_OUT`, `… kept` if
                                  it reached the log all the same
    > marked a t-0 t-1=NOT_LEADER_OR_FOLLOWER     results of markers; `deleted a t-0`: the partition is gone
    > wait 10s                    time passes; `failover`, `load` in two steps: another coordinator takes over
    > state a, describe a, list   questions
    > cluster, at a 0/3           a new cluster with other settings; an id put into the log by hand

With `auto` appends commit by themselves. Lines with # are comments.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from moldau.groups.regex import Regex
from moldau.groups.regex_syntax import InvalidRegex
from moldau.transactions import (
    Append,
    Effects,
    Response,
    TopicPartition,
    TransactionConfig,
    TransactionMetadata,
    TransactionState,
    TxnMarker,
)
from moldau.transactions import records as txn_records
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode
from tests.transactions.harness import NEW_CLIENT, OLD_CLIENT, Broker, add, allocator, end, error_of, init, partitions

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def duration_ms(text: str) -> int:
    unit = text.lstrip("0123456789")
    return int(text.removesuffix(unit)) * _UNITS_MS[unit]


class Scenario:
    """Runs commands and writes down the effects."""

    def __init__(self) -> None:
        self.broker = Broker()
        self.is_auto = False
        self.names: dict[int, str] = {}
        self.tokens: dict[str, TxnMarker] = {}
        self.shown = 0
        self.lines: list[str] = []
        self.commands: dict[str, Callable[[list[str]], None]] = {
            "cluster": self.cluster,
            "auto": self.auto,
            "at": self.at,
            "init": self.init,
            "add": self.add,
            "verify": self.verify,
            "offsets": self.offsets,
            "commit": lambda words: self.end(words, committed=True),
            "abort": lambda words: self.end(words, committed=False),
            "appended": self.appended,
            "marked": self.marked,
            "deleted": self.deleted,
            "wait": lambda words: self.broker.wait(duration_ms(words[0])),
            "failover": self.failover,
            "load": lambda _words: self.show(self.broker.shard.finish_load(self.broker.now)),
            "state": self.state,
            "describe": self.describe,
            "list": self.list,
        }

    def run(self, command: str) -> list[str]:
        verb, *words = command.split()
        self.lines = []
        self.commands[verb](words)
        self.show_new()
        while self.is_auto and self.broker.appends:
            self.broker.append_all()
            self.show_new()
        return self.lines

    def show_new(self) -> None:
        for effects in self.broker.effects[self.shown :]:
            self.show(effects, is_taken=True)
        self.shown = len(self.broker.effects)

    # ---- commands ----

    def cluster(self, words: list[str]) -> None:
        options = dict(word.split("=") for word in words)
        config = TransactionConfig(two_phase_commit_enable=options.get("2pc") == "yes")
        ids = allocator(int(options.get("first", 0)), int(options.get("ids", 1_000)))
        self.broker = Broker(config, ids, int(options.get("version", 2)))
        self.shown = len(self.broker.effects)

    def auto(self, words: list[str]) -> None:
        self.is_auto = words == ["on"]

    def at(self, words: list[str]) -> None:
        producer_id, epoch = map(int, words[1].split("/"))
        metadata = TransactionMetadata(words[0], producer_id, epoch, 60_000, TransactionState.EMPTY)
        self.broker.log.append(txn_records.encode(metadata, self.broker.transaction_version))

    def _versions(self, words: list[str]) -> dict[str, int]:
        if "old" in words:
            words.remove("old")
            return OLD_CLIENT
        return NEW_CLIENT

    def init(self, words: list[str]) -> None:
        version = self._versions(words)["init"]
        request = init(words[0])
        for word in words[1:]:
            if word == "2pc":
                request.enable2_pc, version = True, 6
            elif "/" in word:
                request.producer_id, request.producer_epoch = map(int, word.split("/"))
            else:
                request.transaction_timeout_ms = duration_ms(word)
        self.names[self.broker.request_id + 1] = f"init {words[0]}"
        self.broker.send(request, version)

    def _add(self, words: list[str], verb: str, *, verify_only: bool) -> None:
        version = self._versions(words)["add"]
        producer_id, epoch = map(int, words[1].split("/"))
        self.names[self.broker.request_id + 1] = f"{verb} {words[0]}"
        request = add(producer_id, epoch, *words[2:], transactional_id=words[0], verify_only=verify_only)
        self.broker.send(request, version)

    def add(self, words: list[str]) -> None:
        self._add(words, "add", verify_only=False)

    def verify(self, words: list[str]) -> None:
        self._add(words, "verify", verify_only=True)

    def offsets(self, words: list[str]) -> None:
        version = self._versions(words)["offsets"]
        producer_id, epoch = map(int, words[1].split("/"))
        request = m.AddOffsetsToTxnRequest(
            transactional_id=words[0], producer_id=producer_id, producer_epoch=epoch, group_id="g"
        )
        self.names[self.broker.request_id + 1] = f"offsets {words[0]}"
        self.broker.send(request, version, offsets_partition=int(words[2]))

    def end(self, words: list[str], *, committed: bool) -> None:
        version = self._versions(words)["end"]
        producer_id, epoch = map(int, words[1].split("/"))
        self.names[self.broker.request_id + 1] = f"{'commit' if committed else 'abort'} {words[0]}"
        self.broker.send(end(producer_id, epoch, committed=committed, transactional_id=words[0]), version)

    def appended(self, words: list[str]) -> None:
        error = ErrorCode[words[0]] if words else ErrorCode.NONE
        self.broker.settle_append(min(self.broker.appends), error, is_kept=True if "kept" in words else None)

    def marked(self, words: list[str]) -> None:
        results: dict[TopicPartition, ErrorCode] = {}
        for word in words[1:]:
            name, _, error = word.partition("=")
            (partition,) = partitions(name)
            results[partition] = ErrorCode[error or "NONE"]
        self.broker.mark(self.tokens[words[0]], results)

    def deleted(self, words: list[str]) -> None:
        token = self.tokens[words[0]].token
        gone = partitions(*words[1:])
        self.broker.take(self.broker.shard.on_partitions_deleted(words[0], token, gone, self.broker.now))

    def failover(self, words: list[str]) -> None:
        self.broker.fail_over(is_load_finished=words != ["loading"])

    def state(self, words: list[str]) -> None:
        metadata = self.broker.shard.metadata(words[0])
        if metadata is None:
            self.lines.append(f"{words[0]} unknown")
            return
        text = f"{words[0]} {metadata.state.label} {metadata.producer_id}/{metadata.producer_epoch}"
        self.lines.append(text + _names(metadata.partitions))

    def describe(self, words: list[str]) -> None:
        answer = self.broker.shard.describe(words[0])
        if answer.error_code:
            self.lines.append(ErrorCode(answer.error_code).name)
            return
        names = [TopicPartition(topic.topic, p) for topic in answer.topics for p in topic.partitions]
        self.lines.append(
            f"{answer.transactional_id} {answer.transaction_state} {answer.producer_id}/{answer.producer_epoch}"
            f" timeout={answer.transaction_timeout_ms}{_names(names)}"
        )

    def list(self, words: list[str]) -> None:
        request = m.ListTransactionsRequest()
        for word in words:
            key, _, value = word.partition("=")
            match key:
                case "state":
                    request.state_filters.append(value)
                case "producer":
                    request.producer_id_filters.append(int(value))
                case "longer":
                    request.duration_filter = duration_ms(value)
                case "like":
                    request.transactional_id_pattern = value
        shard = self.broker.shard
        matches = None
        if request.transactional_id_pattern:
            alphabet = frozenset[str]().union(*shard.transactional_ids)
            try:
                matches = Regex(request.transactional_id_pattern, alphabet).matches
            except InvalidRegex:
                self.lines.append(ErrorCode.INVALID_REGULAR_EXPRESSION.name)
                return
        answer = shard.list_transactions(request, self.broker.now, matches)
        if answer.error_code:
            self.lines.append(ErrorCode(answer.error_code).name)
        self.lines += [f"unknown state {name}" for name in answer.unknown_state_filters]
        self.lines += [f"{s.transactional_id} {s.transaction_state} {s.producer_id}" for s in answer.transaction_states]

    # ---- effects ----

    def show(self, effects: Effects, *, is_taken: bool = False) -> None:
        if not is_taken:
            self.broker.take(effects)
            return
        self.lines += [self._response(response) for response in effects.responses]
        self.lines += [self._append(append) for append in effects.appends]
        for marker in effects.markers:
            self.tokens[marker.transactional_id] = marker
            self.lines.append(_marker(marker))
        self.lines += [
            f"abandoned {transactional_id}: {topic}-{partition} {error.name}"
            for transactional_id, (topic, partition), error in effects.abandoned
        ]

    def _response(self, response: Response) -> str:
        message = response.message
        name = self.names[response.request_id]
        if isinstance(message, m.AddPartitionsToTxnResponse.AddPartitionsToTxnResult):
            codes = {
                f"{topic.name}-{p.partition_index}": ErrorCode(p.partition_error_code).name
                for topic in message.topic_results
                for p in topic.results_by_partition
            }
            if len(set(codes.values())) > 1:
                return f"{name}: " + " ".join(f"{key}={code}" for key, code in codes.items())
        error = error_of(message).name
        if isinstance(message, m.InitProducerIdResponse | m.EndTxnResponse) and message.producer_id >= 0:
            return f"{name}: {error} {message.producer_id}/{message.producer_epoch}"
        return f"{name}: {error}"

    def _append(self, append: Append) -> str:
        texts = []
        for record in append.records:
            loaded = txn_records.decode(record.key, record.value)
            assert loaded is not None
            new = loaded.metadata
            if new is None:
                texts.append(f"{loaded.transactional_id} tombstone")
                continue
            text = f"{loaded.transactional_id} {new.state.label} {new.producer_id}/{new.producer_epoch}"
            if new.next_producer_id >= 0:
                text += f" next={new.next_producer_id}"
            texts.append(text + _names(new.partitions))
        return "append " + ", ".join(texts)


def _names(names: frozenset[TopicPartition] | list[TopicPartition]) -> str:
    return "".join(f" {topic}-{partition}" for topic, partition in sorted(names))


def _marker(marker: TxnMarker) -> str:
    verb = "COMMIT" if marker.committed else "ABORT"
    return (
        f"markers {marker.transactional_id}: {verb} {marker.producer_id}/{marker.producer_epoch}"
        f" coordinator={marker.coordinator_epoch}{_names(list(marker.partitions))}"
    )


def replay_file(path: Path) -> str:
    """The file as it should be: its commands with what they bring about now."""
    scenario = Scenario()
    lines: list[str] = []
    for line in path.read_text().splitlines():
        if line.startswith("  "):
            continue
        lines.append(line)
        if line.startswith("> "):
            lines += [f"  {shown}" for shown in scenario.run(line[2:])]
    return "\n".join(lines) + "\n"
