"""Whose limit counts, who shares it, and what it does."""

import pytest

from moldau.broker.quotas.clients import Client, ClientQuotas
from moldau.broker.quotas.limits import PRODUCER_BYTE_RATE, AddressLimits, ClientLimits, Limit
from moldau.broker.quotas.rates import Windows
from moldau.controller.image import QuotaEntity

WINDOWS = Windows(11, 1_000.0)


def entity(**parts: str | None) -> QuotaEntity:
    return tuple(sorted((kind.replace("_", "-"), name) for kind, name in parts.items()))


# The most specific first; each with whom it is measured by, for user ann and client id app.
PRECEDENCE = [
    (entity(user="ann", client_id="app"), ("ann", "app")),
    (entity(user="ann", client_id=None), ("ann", "app")),
    (entity(user="ann"), ("ann", None)),
    (entity(user=None, client_id="app"), ("ann", "app")),
    (entity(user=None, client_id=None), ("ann", "app")),
    (entity(user=None), ("ann", None)),
    (entity(client_id="app"), (None, "app")),
    (entity(client_id=None), (None, "app")),
]


@pytest.mark.parametrize("first", range(len(PRECEDENCE)))
def test_the_most_specific_limit_counts(first: int) -> None:
    quotas = {each: {PRODUCER_BYTE_RATE: float(at)} for at, (each, _) in enumerate(PRECEDENCE) if at >= first}
    found = ClientLimits(quotas.items(), PRODUCER_BYTE_RATE).find("ann", "app")
    assert found == Limit(float(first), *PRECEDENCE[first][1])


def test_limits_of_others_and_of_other_quotas_do_not_count() -> None:
    quotas = {
        entity(user="bob"): {PRODUCER_BYTE_RATE: 1.0},
        entity(user="ann"): {"consumer_byte_rate": 1.0},
        entity(ip="10.0.0.1"): {"connection_creation_rate": 1.0},
    }
    assert ClientLimits(quotas.items(), PRODUCER_BYTE_RATE).find("ann", "app") is None


def test_addresses_have_a_limit_of_their_own_or_the_default() -> None:
    quotas = {
        entity(ip="10.0.0.1"): {"connection_creation_rate": 5.0},
        entity(ip="0:0:0:0:0:0:0:1"): {"connection_creation_rate": 6.0},
        entity(ip=None): {"connection_creation_rate": 7.0},
    }
    limits = AddressLimits(quotas.items())
    assert (limits.find("10.0.0.1"), limits.find("::1"), limits.find("10.0.0.2")) == (5.0, 6.0, 7.0)
    assert AddressLimits(()).find("10.0.0.1") is None
    assert not AddressLimits(())


def of(quotas: dict[QuotaEntity, dict[str, float]]) -> ClientQuotas:
    made = ClientQuotas(WINDOWS, WINDOWS)
    made.follow(quotas)
    return made


ANN, BOB = Client("ann", "app"), Client("bob", "app")


def test_who_shares_an_entity_shares_its_limit() -> None:
    by_client_id = of({entity(client_id="app"): {"producer_byte_rate": 1_000}})
    assert by_client_id.produced(ANN, 10_000, 0) == 0
    assert by_client_id.produced(BOB, 10_000, 0) == 10_000
    by_user = of({entity(user=None): {"producer_byte_rate": 1_000}})
    assert by_user.produced(ANN, 10_000, 0) == 0
    assert by_user.produced(BOB, 10_000, 0) == 0
    assert by_user.produced(Client("ann", "other"), 10_000, 0) == 10_000


def test_what_is_not_sent_is_not_counted() -> None:
    quotas = of({entity(user="ann"): {"consumer_byte_rate": 1_000}})
    assert quotas.fetch_bytes_max(ANN, 0) == 10_000
    assert quotas.fetch_bytes_max(BOB, 0) is None
    assert quotas.fetched(ANN, 9_000, 0) == 0
    assert quotas.fetched(ANN, 9_000, 0) == 8_000
    assert quotas.fetched(ANN, 1_000, 0) == 0, "the nine thousand were not sent"


def test_the_time_of_requests_costs_at_most_a_window() -> None:
    quotas = of({entity(user="ann"): {"request_percentage": 1}})
    assert quotas.worked(ANN, 100, 0) == 0
    assert 0 < quotas.worked(ANN, 5, 0) < 1_000
    assert quotas.worked(ANN, 10_000, 0) == 1_000


def test_mutations() -> None:
    quotas = of({entity(user="ann"): {"controller_mutation_rate": 1}})
    assert quotas.mutation_wait_ms(ANN, 0) == 0
    assert quotas.mutated(ANN, 13, 0) == 2_000
    assert quotas.mutation_wait_ms(ANN, 500) == 1_500
    assert quotas.mutation_wait_ms(BOB, 500) == 0


def test_a_changed_limit_counts_at_once_for_what_was_used_before() -> None:
    quotas = of({entity(user="ann"): {"producer_byte_rate": 1_000}})
    quotas.produced(ANN, 10_000, 0)
    quotas.follow({entity(user="ann"): {"producer_byte_rate": 500}})
    assert quotas.produced(ANN, 1_000, 0) == 2_000
    quotas.follow({})
    assert not quotas.is_active
    assert quotas.produced(ANN, 1_000_000, 0) == 0


def test_invented_client_ids_are_forgotten() -> None:
    quotas = of({entity(client_id=None): {"producer_byte_rate": 1_000}})
    for number in range(20_000):
        quotas.produced(Client("eve", f"id-{number}"), 1, number * 10.0)
    assert len(quotas._produced._buckets) < 3_000
