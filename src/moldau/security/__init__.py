"""Who a client is (authentication) and what it may do (`authorizer`): nothing here knows sockets or messages' handlers.

Read `principal.py` first, then `sasl/` for how a client proves who it is and `tls.py` for certificates.
"""
