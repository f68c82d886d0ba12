"""One request and its quotas."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from moldau.broker.quotas.clients import Client, ClientQuotas
from moldau.broker.quotas.meter import Meter
from moldau.broker.quotas.rates import Windows
from moldau.controller.errors import ApiError
from moldau.security.principal import Principal
from moldau.wire import ErrorCode

ANN = Client("ann", "app")
INT_MAX = (1 << 31) - 1


def metered(quotas: ClientQuotas) -> tuple[Meter, Any, list[float]]:
    """One request of ann's, and until when she is silenced."""
    mutes: list[float] = []
    call = cast(
        "Any",
        SimpleNamespace(
            session=SimpleNamespace(principal=Principal.user("ann")),
            client_id="app",
            connection=SimpleNamespace(mute_until=mutes.append),
        ),
    )
    return Meter(quotas, cast("Any", SimpleNamespace(monotonic_ms=lambda: 1_000.0)), call), call, mutes


@pytest.mark.parametrize("limit", [1.0, 1e-310])
def test_silence_is_never_longer_than_an_answer_can_say(limit: float) -> None:
    quotas = ClientQuotas(Windows(), Windows())
    quotas.follow({(("user", "ann"),): {"producer_byte_rate": limit, "controller_mutation_rate": limit}})
    meter, call, mutes = metered(quotas)
    meter.produced(call, 100_000_000)
    meter.charge(call, 100_000_000, is_strict=False)
    answer = SimpleNamespace(throttle_time_ms=0)
    assert meter.throttle(call, answer) == answer.throttle_time_ms == INT_MAX
    assert mutes[-1] <= 1_000.0 + INT_MAX


@pytest.mark.parametrize("is_strict", [True, False])
def test_what_is_rehearsed_and_paid_is_what_would_have_been_charged(is_strict: bool) -> None:
    """A command that a thread decides, maybe twice, costs what it costs when it is decided at once."""

    def tried(charge: Callable[[int], None]) -> list[ErrorCode]:
        taken = []
        for partitions in (5, 10, 1, 1):  # 11 may come at once
            try:
                charge(partitions)
            except ApiError as error:
                taken.append(error.code)
            else:
                taken.append(ErrorCode.NONE)
        return taken

    found = []
    for is_rehearsed in (False, True):
        quotas = ClientQuotas(Windows(), Windows())
        quotas.follow({(("user", "ann"),): {"controller_mutation_rate": 1}})
        meter, call, mutes = metered(quotas)
        if is_rehearsed:
            given_up = meter.rehearse(call, is_strict=is_strict)
            tried(given_up.charge)
            assert not mutes, "nothing counts before it is paid"
            rehearsal = meter.rehearse(call, is_strict=is_strict)
            taken = tried(rehearsal.charge)
            rehearsal.pay()
        else:
            taken = tried(partial(meter.charge, call, is_strict=is_strict))
        found.append((taken, quotas.mutation_wait_ms(ANN, 1_000.0), mutes[-1]))
    assert found[0] == found[1]
    taken_of_two = [ErrorCode.NONE] * 2 + [ErrorCode.THROTTLING_QUOTA_EXCEEDED] * 2
    assert found[0][0] == (taken_of_two if is_strict else [ErrorCode.NONE] * 4)
