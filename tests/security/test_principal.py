"""Principals, and that a forwarded command keeps the client's."""

from __future__ import annotations

import pytest

from moldau.security.principal import ANONYMOUS, Principal


def test_a_principal_is_its_type_and_name() -> None:
    alice = Principal.parse("User:alice:of:vltava")
    assert alice == Principal("User", "alice:of:vltava", token_authenticated=True)
    assert hash(alice) == hash(Principal.user("alice:of:vltava"))
    assert str(alice) == "User:alice:of:vltava"
    assert str(ANONYMOUS) == "User:ANONYMOUS"


@pytest.mark.parametrize("text", ["alice", ":alice", ""])
def test_what_is_no_principal_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="User:name"):
        Principal.parse(text)
