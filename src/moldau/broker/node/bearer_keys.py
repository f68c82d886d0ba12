"""Keeps the keys of OAUTHBEARER's tokens: fetched when the node starts, from time to time, and when an unknown one is
named (but not more often than clients should be able to make us ask).

Until keys were had, tokens are refused; the node itself comes up, since others get in by other ways.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from moldau.broker.supervision import begin
from moldau.security.bearer_tokens import KeysUnavailable, TokenVerifier, fetch_keys

if TYPE_CHECKING:
    from moldau.broker.parts import HasConfig, HasLoop, HasTime

    class Needs(HasConfig, HasLoop, HasTime, Protocol):
        """What this file may touch."""


_log = logging.getLogger(__name__)
_ASK_AGAIN_MS = 10_000.0
_LOOK_MS = 1_000.0


class BearerKeys:
    """Belongs to the event loop."""

    def __init__(self, broker: Needs, url: str, verifier: TokenVerifier) -> None:
        self._broker = broker
        self._url = url
        self._verifier = verifier
        self._failures = 0
        self._fetched_ms = float("-inf")
        self._fetching: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._fetch()
        self._watch()

    def _watch(self) -> None:
        broker = self._broker
        now_ms = broker.clock.monotonic_ms()
        broker.wheel.add(now_ms + _LOOK_MS, self._watch)
        waited_ms = now_ms - self._fetched_ms
        is_due = waited_ms >= broker.config.get_int("sasl.oauthbearer.jwks.endpoint.refresh.ms")
        is_wanted = self._verifier.wants_keys and waited_ms >= _ASK_AGAIN_MS
        is_missing = self._failures > 0 and waited_ms >= self._backoff_ms()
        if self._fetching is None and (is_due or is_wanted or is_missing):
            self._fetch()

    def _backoff_ms(self) -> float:
        config = self._broker.config
        first = config.get_int("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms")
        longest = config.get_int("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms")
        return float(min(longest, first * 2 ** min(self._failures, 20)))

    def _fetch(self) -> None:
        self._fetched_ms = self._broker.clock.monotonic_ms()
        self._fetching = begin(self._broker.loop, "fetching the keys of bearer tokens", self._fetch_now())

    async def _fetch_now(self) -> None:
        broker = self._broker
        try:
            data = await broker.loop.run_in_executor(broker.executor, fetch_keys, self._url)
            self._verifier.load(data)
        except KeysUnavailable as error:
            if not self._failures:
                _log.error("the keys of bearer tokens (sasl.oauthbearer.jwks.endpoint.url) are not renewed: %s", error)
            self._failures += 1
        else:
            self._failures = 0
        finally:
            self._fetching = None
