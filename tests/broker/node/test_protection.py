"""A node that cannot protect itself as configured does not start."""

import pytest

from moldau.broker.config import InvalidConfig
from moldau.testing import Broker


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (
            {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"},
            r"StandardAuthorizer for configuration authorizer\.class\.name: .* leave it out",
        ),
        (
            {
                "listeners": "PLAINTEXT://127.0.0.1:0,SAFE://127.0.0.1:1",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SAFE:SASL_PLAINTEXT",
                "sasl.enabled.mechanisms": "PLAIN",
            },
            r"SAFE \(SASL_PLAINTEXT\) for configuration listeners: .* PLAINTEXT listeners only",
        ),
        (
            {
                "listeners": "PLAINTEXT://127.0.0.1:0,SAFE://127.0.0.1:1",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SAFE:SSL",
            },
            r"SAFE \(SSL\) for configuration listeners: .* PLAINTEXT listeners only",
        ),
    ],
)
def test_what_would_be_ignored_is_refused(settings: dict[str, str], complaint: str) -> None:
    with pytest.raises(InvalidConfig, match=complaint), Broker(settings):
        pytest.fail("it started, open to everybody")
