"""A task's transaction by our own client, columns at a time: for one topic, rows without headers, usual settings."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from moldau.client.cluster import Committed, TopicPartition
from moldau.client.connection import BrokerError, ClientError
from moldau.client.transactions import Transaction, TransactionOver
from moldau.spark.broker_outage import Waiting
from moldau.spark.column_sender import ColumnSender, opened_for_transaction
from moldau.spark.producing import DeliveryFailed
from moldau.spark.sink_columns import refuse_negative
from moldau.spark.sink_options import SinkOptions
from moldau.spark.transactions import advice_for, fenced

_ABORT_SECONDS = 10.0


def chosen(options: SinkOptions, transactional_id: str, first: Any) -> "ColumnWriting | None":
    """For a task whose first batch this is; None where librdkafka is to write."""
    sender = opened_for_transaction(options, first, transactional_id)
    return None if sender is None else ColumnWriting(options, sender)


class ColumnWriting:
    """See `transactions.Writing`."""

    def __init__(self, options: SinkOptions, sender: ColumnSender) -> None:
        assert sender.transaction is not None, "opened for one"
        self._options = options
        self._sender = sender
        self._transaction: Transaction = sender.transaction

    @property
    def rows(self) -> int:
        return self._sender.rows

    @property
    def size_bytes(self) -> int:
        return self._sender.size_bytes

    def fence(self) -> None:
        with self._explaining("starting a transactional producer"):
            self._sender.fence(self._options.transaction_timeout_ms)

    def begin(self) -> None:
        """The coordinator hears of it with the first partition."""

    def send(self, batch: Any) -> None:
        if not batch.num_rows:
            return
        with self._explaining("writing in the transaction"):
            if not self._sender.send(batch):
                self._refuse(batch.column("partition"))

    def _refuse(self, numbers: Any) -> None:
        refuse_negative(numbers)
        import pyarrow.compute as pc

        place = f"{self._options.topic}-{pc.max(numbers).as_py()}"
        raise DeliveryFailed(f"there is no partition {place}: the topic has {self._sender.partitions}")

    def finish(self) -> Iterable[str]:
        with self._explaining("writing in the transaction"):
            self._sender.finish()
        return (self._options.topic or "",)

    def note(self, group: str, offsets: Mapping[TopicPartition, Committed]) -> None:
        with self._explaining("noting the batch in the transaction"):
            self._transaction.note(group, offsets)

    def commit(self) -> None:
        with self._explaining("committing the transaction"):
            self._transaction.end(commit=True)

    def abort(self) -> None:
        with contextlib.suppress(ClientError):  # over, or out of reach: the coordinator aborts by itself
            self._transaction.end(commit=False, patience=Waiting(_ABORT_SECONDS))

    def close(self) -> None:
        self._sender.close()

    @contextlib.contextmanager
    def _explaining(self, what: str) -> Iterator[None]:
        """What an error of the client means here, and what to do."""
        try:
            yield
        except TransactionOver as failure:
            raise fenced(self._transaction.transactional_id, self._options) from failure
        except ClientError as failure:
            advice = advice_for(failure.code) if isinstance(failure, BrokerError) else ""
            name = self._transaction.transactional_id
            raise DeliveryFailed(f"{what} {name!r} failed: {failure}{advice}") from failure
