"""SASL: how a client proves who it is. No sockets, no clock: tokens in, tokens out.

`authenticator.py` is one connection's side of Kafka's handshake; `plain.py`, `scram.py` and `oauthbearer.py` are the
mechanisms as a server speaks them; `client.py` has the other side of each.
"""
