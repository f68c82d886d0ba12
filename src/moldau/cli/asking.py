"""Requests that `moldau.client` sends as they are, for commands about rules and limits: one question, one answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from moldau.cli.failure import code_of, fail

if TYPE_CHECKING:
    from moldau.cli.frame import Target
    from moldau.wire import Message

R = TypeVar("R", bound="Message")


def ask(target: Target, request: Message, answer: type[R]) -> R:
    with target.admin() as admin:
        return admin.ask(request, answer)


def fail_on(code: int, message: str | None) -> None:
    """If the broker refused."""
    from moldau.client.connection import BrokerError

    if code and message:
        fail(message, code_of(code))
    if code:
        raise BrokerError(code, "refused")
