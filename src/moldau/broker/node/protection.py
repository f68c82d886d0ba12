"""Settings that promise a protection this node cannot give yet are refused at the start, never quietly ignored.

Whoever configures an authorizer, or a listener with TLS or SASL, relies on it: a node that came up open to everybody
would be worse than one that does not come up.
"""

from moldau.broker.config import BrokerConfig, InvalidConfig

_PLAINTEXT = "PLAINTEXT"


def refuse_missing_protection(config: BrokerConfig) -> None:
    for endpoint in config.listeners:
        if endpoint.security_protocol != _PLAINTEXT:
            raise InvalidConfig.for_value(
                "listeners",
                f"{endpoint.listener} ({endpoint.security_protocol})",
                "Moldau serves PLAINTEXT listeners only: leave it out, or put a TLS proxy in front of the broker",
            )
    authorizer = config.get_str("authorizer.class.name")
    if authorizer:
        raise InvalidConfig.for_value(
            "authorizer.class.name",
            authorizer,
            "Moldau does not enforce ACLs yet: leave it out, and keep the port closed",
        )
