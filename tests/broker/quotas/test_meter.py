"""One request and its quotas."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from moldau.broker.quotas.clients import Client, ClientQuotas
from moldau.broker.quotas.meter import Meter, RehearsedCharges
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
    charges = meter.rehearse(call, is_strict=False)
    charges.charge(100_000_000)
    charges.pay()
    answer = SimpleNamespace(throttle_time_ms=0)
    assert meter.throttle(call, answer) == answer.throttle_time_ms == INT_MAX
    assert mutes[-1] <= 1_000.0 + INT_MAX


@pytest.mark.parametrize("is_strict", [True, False])
def test_a_command_is_paid_once_and_costs_nothing_before(is_strict: bool) -> None:
    """It may be decided twice. Beyond the quota, the strict are told, and the others are silenced for longer."""

    def tried(rehearsal: RehearsedCharges) -> list[ErrorCode]:
        taken = []
        for partitions in (5, 10, 1, 1):  # 11 may come at once
            try:
                rehearsal.charge(partitions)
            except ApiError as error:
                taken.append(error.code)
            else:
                taken.append(ErrorCode.NONE)
        return taken

    quotas = ClientQuotas(Windows(), Windows())
    quotas.follow({(("user", "ann"),): {"controller_mutation_rate": 1}})
    meter, call, mutes = metered(quotas)
    tried(meter.rehearse(call, is_strict=is_strict))
    assert not mutes
    assert quotas.mutation_wait_ms(ANN, 1_000.0) == 0
    rehearsal = meter.rehearse(call, is_strict=is_strict)
    refused = ErrorCode.THROTTLING_QUOTA_EXCEEDED if is_strict else ErrorCode.NONE
    assert tried(rehearsal) == [ErrorCode.NONE, ErrorCode.NONE, refused, refused]
    rehearsal.pay()
    charged = 15 if is_strict else 17
    assert quotas.mutation_wait_ms(ANN, 1_000.0) == pytest.approx((charged - 11) * 1_000)
    assert mutes[-1] == pytest.approx(1_000 + (charged - 11) * 1_000)
