"""IP addresses as rules and quotas name them, in the one form in which connections are known."""

from __future__ import annotations

from ipaddress import IPv6Address


def plain_address(name: str) -> str:
    """IPv6 addresses have many spellings, and Java writes `0:0:0:0:0:0:0:1` for what is `::1` here. What is no such
    address stays as it is."""
    if ":" not in name:
        return name
    try:
        address = IPv6Address(name.partition("%")[0])
    except ValueError:
        return name
    return str(address.ipv4_mapped or address)
