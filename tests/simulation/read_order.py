"""What a reader with `read_committed` is given, as one sequence: in the order of the offsets, every producer's records
in the order in which they were written, nothing of a transaction that is open or was aborted; and, seen from the end,
everything that is committed up to where it came: nothing was passed over.
"""

from __future__ import annotations

from tests.simulation.history import History, Outcome, Partition

_UNDECIDED = (Outcome.OPEN, Outcome.ABORTED)


class CommittedReader:
    """One reader of one partition, from its beginning on."""

    def __init__(self, history: History, name: str, partition: Partition) -> None:
        self._history = history
        self._name = name
        self.partition = partition
        self.given: list[tuple[int, bytes]] = []
        self._last: dict[str, int] = {}

    def read(self, offset: int, value: bytes) -> None:
        if self.given and offset <= self.given[-1][0]:
            self._violated(f"{value!r} at {offset} after {self.given[-1]}")
        self.given.append((offset, value))
        write = self._history.writes.get(value)
        if write is None:
            return  # comes from nowhere, which the history says
        if write.sequence < self._last.get(write.producer, -1):
            self._violated(f"{value!r} at {offset} after number {self._last[write.producer]} of {write.producer}")
        self._last[write.producer] = write.sequence
        transaction = write.transaction
        if transaction is not None and transaction.outcome in _UNDECIDED:
            self._history.violated(
                "a reader of committed records gets nothing else",
                f"{self._name}: {value!r} at {offset} of {self.partition}, {transaction.outcome.value}",
            )

    def judge(self, committed: list[tuple[int, bytes]]) -> None:
        """`committed` is what is there at the end."""
        if not self.given:
            return
        upto = self.given[-1][0]
        expected = [each for each in committed if each[0] <= upto]
        if self.given != expected:
            missing = [each for each in expected if each not in set(self.given)]
            more = [each for each in self.given if each not in set(expected)]
            self._violated(f"passed over {missing[:3]}, was given {more[:3]} beside what is there")

    def _violated(self, what: str) -> None:
        self._history.violated(
            "a reader of committed records gets them in order", f"{self._name} of {self.partition}: {what}"
        )
