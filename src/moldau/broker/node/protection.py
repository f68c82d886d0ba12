"""Settings that promise a protection this node cannot give yet are refused at the start, never quietly ignored.

Whoever configures an authorizer relies on it: a node that came up open to everybody would be worse than one that does
not come up. How listeners are protected is in `security.py`.
"""

from moldau.broker.config import BrokerConfig, InvalidConfig


def refuse_missing_protection(config: BrokerConfig) -> None:
    authorizer = config.get_str("authorizer.class.name")
    if authorizer:
        raise InvalidConfig.for_value(
            "authorizer.class.name",
            authorizer,
            "Moldau does not enforce ACLs yet: leave it out, and keep the port closed",
        )
