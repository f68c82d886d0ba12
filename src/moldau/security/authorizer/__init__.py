"""What a principal may do: Kafka's StandardAuthorizer.

`rules.py` arranges the ACLs of the metadata and answers by Kafka's rules; `authorizer.py` adds super users, remembers
answers, and follows the metadata; `operations.py` says which operations a kind of resource has. No sockets, no clock.
"""

from moldau.security.authorizer.authorizer import Authorizer
from moldau.security.authorizer.operations import ALL_OPERATIONS, operation_bits
from moldau.security.authorizer.rules import Rules

__all__ = ["ALL_OPERATIONS", "Authorizer", "Rules", "operation_bits"]
