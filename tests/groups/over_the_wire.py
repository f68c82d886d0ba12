"""The scenarios against a running broker: Apache Kafka, to learn that they are true, or Moldau, to learn that it
keeps to them.

`differences(path, address)` plays a scenario file over real connections and returns where the broker answered
otherwise. Records are not seen over the wire, so only answers are compared, in any order. Time is real: scenarios
with long waits are left out of `SCENARIOS`, and the broker needs `PROPERTIES`.
"""

from __future__ import annotations

import copy
import queue
import re
import socket
import struct
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from moldau.wire import messages as m
from moldau.wire.apis import Api, apis
from moldau.wire.codec import decode, encode
from moldau.wire.errors import ErrorCode
from moldau.wire.headers import decode_response_header, encode_request_header
from moldau.wire.message import Message
from tests.groups.driver import LogEntry, topic_id
from tests.groups.scenario import Options, Scenario

PROPERTIES = {
    "group.initial.rebalance.delay.ms": "1000",
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.min.assignment.interval.ms": "0",
}
SCENARIOS = (
    "admin",
    "classic_commit_during_rebalance",
    "classic_cooperative",
    "classic_static_bounce",
    "consumer_reconciliation",
    "consumer_regex",
    "migration_static_downgrade",
)
"""Not `migration_upgrade_downgrade`: in Kafka, who gives up a partition there depends on random member ids."""
_PARKED = (m.JoinGroupRequest, m.SyncGroupRequest)
_BY_NAME = {f"{api.name}Request": api for api in apis().values()}


class _Exchange:
    """One request on a connection of its own: a JoinGroup that waits must not hold up the client's next request."""

    def __init__(self, address: tuple[str, int], request: Message, version: int, client_id: str) -> None:
        self._api: Api = _BY_NAME[type(request).__name__]
        self._version = version
        self.socket = socket.create_connection(address)
        frame = encode_request_header(self._api, version, 1, client_id) + encode(request, version)
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)

    def answer(self) -> Message:
        with self.socket, self.socket.makefile("rb") as stream:
            (size,) = struct.unpack(">i", stream.read(4))
            frame = stream.read(size)
        _, position = decode_response_header(frame, header_version=self._api.response_header_version(self._version))
        return decode(self._api.response, self._version, frame[position:])


class WireDriver:
    """Stands in for `Driver` in a scenario. Groups get a prefix, so that scenarios do not meet."""

    def __init__(self, address: tuple[str, int], prefix: str) -> None:
        self._address = address
        self._prefix = prefix
        self._arrived: queue.Queue[tuple[object, Message]] = queue.Queue()
        self._answers: list[tuple[object, Message]] = []
        self._open: list[socket.socket] = []
        self._counts: dict[str, int] = {}
        self._ids: dict[str, bytes] = {}
        self._names: dict[bytes, str] = {}
        self.log: list[LogEntry] = []

    @property
    def image(self) -> _NamesById:
        return _NamesById()

    def close(self) -> None:
        self.set_topics({})
        for connection in self._open:
            connection.close()

    def send(self, request: Message, *, tag: object = None, version: int, client_id: str = "client") -> None:
        if isinstance(request, m.OffsetFetchRequest):
            version = 9  # version 10 names topics by id; handlers translate, scenarios do not
        outgoing = self._with_real_names(copy.deepcopy(request))
        exchange = _Exchange(self._address, outgoing, version, client_id)
        self._open.append(exchange.socket)
        threading.Thread(target=self._receive, args=(exchange, tag), daemon=True).start()
        self._wait(0.4, first_is_enough=not isinstance(request, _PARKED))

    def advance(self, delta_ms: int) -> None:
        # Scenarios with an initial delay of 0 wait here for the broker's real one.
        self._wait(max(delta_ms / 1000, 1.4))

    def take_answers(self) -> list[tuple[object, Message]]:
        answers, self._answers = self._answers, []
        return answers

    def set_topics(self, counts: dict[str, int]) -> None:
        for name in [name for name in self._counts if name not in counts]:
            request = m.DeleteTopicsRequest
            self._ask(request(topics=[request.DeleteTopicState(name=name)], timeout_ms=10_000), 6)
            del self._counts[name], self._ids[name]
        for name, count in counts.items():
            if name not in self._counts:
                self._create(name, count)
            elif self._counts[name] != count:
                grow = m.CreatePartitionsRequest
                topic = grow.CreatePartitionsTopic(name=name, count=count, assignments=None)
                self._ask(grow(topics=[topic], timeout_ms=10_000), 3)
        self._counts = dict(counts)
        self._wait(0.5)  # the coordinator learns of it from the metadata log

    def delete_topic_offsets(self, names: list[str]) -> None:
        """The broker does that itself."""

    def _create(self, name: str, count: int) -> None:
        request = m.CreateTopicsRequest
        topic = request.CreatableTopic(name=name, num_partitions=count, replication_factor=1)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            answer = self._ask(request(topics=[topic], timeout_ms=10_000), 7)
            created = answer.topics[0]
            if created.error_code == ErrorCode.NONE:
                self._ids[name] = created.topic_id
                self._names[created.topic_id] = name
                return
            self._wait(0.2)  # a topic of that name is still being deleted
        raise AssertionError(f"topic {name} cannot be created: {ErrorCode(created.error_code).name}")

    def _ask(self, request: Message, version: int) -> Any:
        return _Exchange(self._address, request, version, "admin").answer()

    def _receive(self, exchange: _Exchange, tag: object) -> None:
        try:
            answer = exchange.answer()
        except (OSError, struct.error, ValueError):
            return  # closed at the end of the scenario, while it still waited
        self._arrived.put((tag, self._with_scenario_names(answer)))

    def _wait(self, seconds: float, *, first_is_enough: bool = False) -> None:
        """Collect answers for a while. An answer that is sure to come may take longer; others may come right behind
        it.
        """
        deadline = time.monotonic() + (10 if first_is_enough else seconds)
        while (left := deadline - time.monotonic()) > 0:
            try:
                self._answers.append(self._arrived.get(timeout=left))
            except queue.Empty:
                return
            if first_is_enough:
                first_is_enough = False
                deadline = time.monotonic() + 0.15

    def _with_real_names(self, request: Any) -> Message:
        if hasattr(request, "group_id") and request.group_id:
            request.group_id = self._prefix + request.group_id
        if isinstance(request, m.OffsetFetchRequest):
            for group in request.groups:
                group.group_id = self._prefix + group.group_id
        for name in ("group_ids", "groups_names") + (
            ("groups",) if isinstance(request, m.DescribeGroupsRequest) else ()
        ):
            if hasattr(request, name):
                setattr(request, name, [self._prefix + group_id for group_id in getattr(request, name)])
        if isinstance(request, m.ConsumerGroupHeartbeatRequest):
            for topic in request.topic_partitions or ():
                topic.topic_id = self._ids.get(topic.topic_id.rstrip(b"\0").decode(), topic.topic_id)
        result: Message = request
        return result

    def _with_scenario_names(self, answer: Any) -> Message:
        if isinstance(answer, m.ListGroupsResponse):
            answer.groups = [group for group in answer.groups if group.group_id.startswith(self._prefix)]
        for group in (*getattr(answer, "groups", ()), *getattr(answer, "results", ())):
            group.group_id = group.group_id.removeprefix(self._prefix)
        if isinstance(answer, m.ConsumerGroupHeartbeatResponse) and answer.assignment is not None:
            self._rename(answer.assignment.topic_partitions)
        if isinstance(answer, m.ConsumerGroupDescribeResponse):
            for described in answer.groups:
                for member in described.members:
                    self._rename(member.assignment.topic_partitions)
                    self._rename(member.target_assignment.topic_partitions)
        result: Message = answer
        return result

    def _rename(self, topics: Iterable[Any]) -> None:
        for topic in topics:
            topic.topic_id = topic_id(self._names[topic.topic_id])


class _NamesById:
    """What a leader needs to write an assignment: the ids of scenarios are the names."""

    def topic_by_id(self, identifier: bytes) -> Any:
        return _NamedTopic(identifier.rstrip(b"\0").decode())


class _NamedTopic:
    def __init__(self, name: str) -> None:
        self.name = name


class _WireScenario(Scenario):
    def do_config(self, words: list[str], options: Options) -> None:
        """The broker has its configuration already."""


def differences(path: Path, address: tuple[str, int]) -> list[str]:
    """Where the broker's answers differ from the file's: one text per step."""
    driver = WireDriver(address, f"{path.stem.replace('_', '-')}.")
    scenario = _WireScenario()
    scenario.driver = driver  # type: ignore[assignment]  # the same methods, as far as a scenario uses them
    found = []
    try:
        for block in path.read_text().strip().split("\n\n"):
            events, _, told = block.partition("\n----\n")
            lines = [line for line in events.split("\n") if not line.startswith("#")]
            happened = [shown for line in lines for shown in scenario.run(line).split("\n")]
            expected, answered = _answers_in(told.split("\n")), _answers_in(happened)
            if expected != answered:
                found.append("\n".join([*lines, f"  expected {expected}", f"  answered {answered}"]))
    finally:
        driver.close()
    return found


def _answers_in(lines: Iterable[str]) -> list[str]:
    """Answers in any order, lists within them in order: brokers list members and groups as their tables have them."""
    answers = []
    for line in lines:
        if " <- " in line:
            head, _, listed = line.partition(" members ")
            members = ",".join(sorted(re.split(r"[, ]", listed)))
            who, _, what = head.partition(" <- ")
            verb, _, items = what.partition(" ")
            if verb in {"groups", "deleted"} or "; " in what:
                items = " ".join(sorted(re.split(r"[;,]? ", items)))
            answers.append(f"{who} <- {verb} {items} {members}")
    return sorted(answers)


def await_coordinator(address: tuple[str, int], *, seconds: float = 30) -> None:
    """Have the broker create its offsets topic, and wait until it coordinates groups."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = _ask(address, m.FindCoordinatorRequest(key_type=0, coordinator_keys=["any"]), 4)
        listed = _ask(address, m.DescribeGroupsRequest(["any"]), 5)
        if found.coordinators[0].error_code == listed.groups[0].error_code == ErrorCode.NONE:
            return
    raise TimeoutError(f"no group coordinator at {address}")


def _ask(address: tuple[str, int], request: Message, version: int) -> Any:
    return _Exchange(address, request, version, "over-the-wire").answer()
