"""SASL as our own clients speak it: see `moldau.security.sasl.client`."""

from moldau.security.sasl.client import Credentials, Exchange
from moldau.security.sasl.client import LoginRefused as AuthenticationFailed
from moldau.security.sasl.client import exchange as exchange_of

__all__ = ["AuthenticationFailed", "Credentials", "Exchange", "exchange", "exchange_of"]


def exchange(mechanism: str, username: str, password: str) -> Exchange:
    return exchange_of(Credentials(mechanism, username, password))
