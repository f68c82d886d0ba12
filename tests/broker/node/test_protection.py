"""A node that cannot protect itself as configured does not start."""

import pytest

from moldau.broker.config import InvalidConfig
from moldau.testing import Broker


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (
            {
                "listeners": "PLAINTEXT://127.0.0.1:0,SAFE://127.0.0.1:1",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SAFE:SASL_PLAINTEXT",
                "sasl.enabled.mechanisms": "PLAIN",
            },
            r"listener\.name\.safe\.plain\.sasl\.jaas\.config must name the users of PLAIN",
        ),
        (
            {
                "listeners": "PLAINTEXT://127.0.0.1:0,SAFE://127.0.0.1:1",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SAFE:SSL",
            },
            r"ssl\.keystore\.location: a TLS listener needs a key",
        ),
    ],
)
def test_what_would_be_ignored_is_refused(settings: dict[str, str], complaint: str) -> None:
    with pytest.raises(InvalidConfig, match=complaint), Broker(settings):
        pytest.fail("it started, open to everybody")
