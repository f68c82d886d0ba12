"""What an operator sets reaches the coordinator and the verifier; what nobody set is as Kafka has it."""

from dataclasses import replace

from moldau.broker.config import load_broker_config
from moldau.transactions.config import TransactionConfig, transaction_config


def test_the_defaults_are_kafkas() -> None:
    assert transaction_config(load_broker_config({}).get_int) == TransactionConfig()


def test_every_setting_counts() -> None:
    settings = {
        "transaction.max.timeout.ms": "1",
        "transactional.id.expiration.ms": "2",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "3",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "4",
        "request.timeout.ms": "7",
    }
    assert transaction_config(load_broker_config(settings).get_int) == replace(
        TransactionConfig(),
        max_timeout_ms=1,
        transactional_id_expiration_ms=2,
        abort_timed_out_interval_ms=3,
        remove_expired_interval_ms=4,
        request_timeout_ms=7,
    )
