"""Publishes what the store holds and the topics do not have yet: take a topic, read, send, acknowledged, mark."""

import asyncio
from contextlib import suppress

import structlog

from services.gateway.store import StateStore, mark_published, take_topic, unpublished
from shared.codec.state import key_partition
from shared.errors import Transient
from shared.kafka.log import Outgoing, Publisher
from shared.postgres import Database
from shared.topics import TENANTS, TRACKS, USERS, Topic

log = structlog.get_logger()

TOPICS = (TENANTS, USERS, TRACKS)
BATCH = 1000
WAKE_EVERY_S = 1.0
TRANSACTION_S = 25.0
"""Longer than the producer waits for an acknowledgement: no send may land after another replica took the topic over."""


class Relay:
    """Any number of replicas may run: a row lock lets one at a time publish a topic, so that a key's revisions keep their
    order. Writers are never blocked by it. A crash before the mark publishes again, which changes nothing.
    """

    def __init__(self, db: Database, store: StateStore, publisher: Publisher) -> None:
        self._db = db
        self._store = store
        self._publisher = publisher

    async def run(self) -> None:
        while True:
            try:
                for topic in TOPICS:
                    while await self.publish(topic) == BATCH:
                        pass
            except Transient as error:
                log.warning("gateway.relay_failed", error=str(error))
                await asyncio.sleep(WAKE_EVERY_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(WAKE_EVERY_S):
                    await self._store.written.wait()
            self._store.written.clear()

    async def publish(self, topic: Topic) -> int:
        """One batch; returns how many states it published."""
        async with self._db.transaction(TRANSACTION_S) as tx:
            if not await take_topic(tx, topic):
                return 0
            states = await unpublished(tx, topic, BATCH)
            if not states:
                return 0
            await self._publisher.send_many(
                [
                    Outgoing(topic, key_partition(key, topic.partitions), key, state.value)
                    for state in states
                    for key in (state.key.encode(),)
                ]
            )
            await mark_published(tx, topic, states)
        log.info("gateway.state_published", topic=topic.name, states=len(states))
        return len(states)
