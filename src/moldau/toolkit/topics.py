"""Making the topics the toolkit itself needs (retries, dead letters, traces), like the ones they belong to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from moldau.toolkit.errors import SendFailed

log = logging.getLogger("moldau.toolkit")

_SECONDS = 15.0


class TopicMaker:
    """Asks the cluster once per topic."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = dict(config)
        self._known: set[str] = set()
        self._lock = asyncio.Lock()

    async def ensure(self, topic: str, like: str) -> bool:
        """Have the topic, with as many partitions as `like`. True if it was made now."""
        if topic in self._known:
            return False
        async with self._lock:
            if topic in self._known:
                return False
            made = await asyncio.to_thread(self._make, topic, like)
            self._known.add(topic)
            return made

    async def ensure_all(self, wanted: Iterable[tuple[str, str]]) -> None:
        """Before the app reads: what can be made is; the rest is tried again when it is needed."""
        for topic, like in wanted:
            try:
                await self.ensure(topic, like)
            except SendFailed as error:
                log.info("%s", error)

    def _make(self, topic: str, like: str) -> bool:
        # One for each question: that costs three milliseconds, and none is left for the end of the interpreter to
        # destroy, in whatever thread and order that comes.
        admin = AdminClient(self._config, logger=log)
        try:
            found = admin.list_topics(timeout=_SECONDS).topics
            if topic in found:
                return False
            if like not in found:
                raise SendFailed(f"{topic} is made as soon as {like} exists", is_retriable=True)
            partitions = len(found[like].partitions)
            (future,) = admin.create_topics([NewTopic(topic, partitions, -1)]).values()
            future.result(_SECONDS)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return False
            raise SendFailed(f"{topic} cannot be made: {error.args[0].str()}", is_retriable=True) from error
        return True
