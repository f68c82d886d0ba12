"""One request and its quotas."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from moldau.broker.quotas.clients import ClientQuotas
from moldau.broker.quotas.meter import Meter
from moldau.broker.quotas.rates import Windows
from moldau.security.principal import Principal

INT_MAX = (1 << 31) - 1


@pytest.mark.parametrize("limit", [1.0, 1e-310])
def test_silence_is_never_longer_than_an_answer_can_say(limit: float) -> None:
    quotas = ClientQuotas(Windows(), Windows())
    quotas.follow({(("user", "ann"),): {"producer_byte_rate": limit, "controller_mutation_rate": limit}})
    mutes: list[float] = []
    call = cast(
        "Any",
        SimpleNamespace(
            session=SimpleNamespace(principal=Principal.user("ann")),
            client_id="app",
            connection=SimpleNamespace(mute_until=mutes.append),
        ),
    )
    meter = Meter(quotas, cast("Any", SimpleNamespace(monotonic_ms=lambda: 1_000.0)), call)
    meter.produced(call, 100_000_000)
    meter.charge(call, 100_000_000, is_strict=False)
    answer = SimpleNamespace(throttle_time_ms=0)
    assert meter.throttle(call, answer) == answer.throttle_time_ms == INT_MAX
    assert mutes[-1] <= 1_000.0 + INT_MAX
