"""What an operator can set about transactions, under Kafka's names, with the defaults of Kafka 4.3.

Each field says which key it is. Values are validated where they are parsed (broker config); this room takes them as
they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

_DAY_MS = 24 * 60 * 60 * 1_000


@dataclass(slots=True, frozen=True)
class TransactionConfig:
    """Settings of the transaction coordinator of a broker."""

    max_timeout_ms: int = 900_000
    """transaction.max.timeout.ms: a producer may not ask for more"""
    transactional_id_expiration_ms: int = 7 * _DAY_MS
    """transactional.id.expiration.ms: an idle transactional id is forgotten after this time"""
    abort_timed_out_interval_ms: int = 10_000
    """transaction.abort.timed.out.transaction.cleanup.interval.ms"""
    remove_expired_interval_ms: int = 3_600_000
    """transaction.remove.expired.transaction.cleanup.interval.ms"""
    two_phase_commit_enable: bool = False
    """transaction.two.phase.commit.enable (KIP-939)"""

    request_timeout_ms: int = 30_000
    """request.timeout.ms: how long the broker waits for tombstones to be replicated"""

    retry_backoff_ms: int = 100
    """Not configurable in Kafka either: the pause before markers, or the record that ends a transaction, are tried
    again"""


def transaction_config(get_int: Callable[[str], int]) -> TransactionConfig:
    """What an operator has set, by Kafka's keys."""
    return TransactionConfig(
        max_timeout_ms=get_int("transaction.max.timeout.ms"),
        transactional_id_expiration_ms=get_int("transactional.id.expiration.ms"),
        abort_timed_out_interval_ms=get_int("transaction.abort.timed.out.transaction.cleanup.interval.ms"),
        remove_expired_interval_ms=get_int("transaction.remove.expired.transaction.cleanup.interval.ms"),
        request_timeout_ms=get_int("request.timeout.ms"),
    )
