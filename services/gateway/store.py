"""Tenants, users and tracks as they are now. The row is its own outbox: what was not published yet, the relay publishes."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shared.postgres import Database, Transaction
from shared.topics import Topic


class Unpublished(NamedTuple):
    """A state that its topic does not have yet."""

    key: str
    value: bytes
    revision: int


class StateStore:
    """`written` is set whenever there may be something to publish."""

    def __init__(self, db: Database) -> None:
        self.written = asyncio.Event()
        self._db = db

    async def put(self, topic: Topic, states: Mapping[str, bytes]) -> None:
        """Store all, or none with Transient. A state that is stored as it is gets no new revision."""
        if not states:
            return
        keys = sorted(states)  # in one order everywhere: otherwise two calls can wait for each other
        await self._db.execute(
            "INSERT INTO state AS now (topic, key, value)"
            ' SELECT $1, key, value FROM unnest($2::text[], $3::bytea[]) AS new (key, value) ORDER BY key COLLATE "C"'
            " ON CONFLICT (topic, key) DO UPDATE SET value = excluded.value, revision = now.revision + 1"
            " WHERE now.value <> excluded.value",
            topic.name,
            keys,
            [states[key] for key in keys],
        )
        self.written.set()

    async def has(self, topic: Topic, key: str) -> bool:
        return await self._db.fetchval("SELECT 1 FROM state WHERE topic = $1 AND key = $2", topic.name, key) is not None


async def take_topic(tx: Transaction, topic: Topic) -> bool:
    """Make this transaction the only one that publishes the topic; False: another replica does just now."""
    row = await tx.fetchrow("SELECT 1 FROM state_topic WHERE topic = $1 FOR UPDATE SKIP LOCKED", topic.name)
    return row is not None


async def unpublished(tx: Transaction, topic: Topic, limit: int) -> Sequence[Unpublished]:
    rows = await tx.fetch(
        "SELECT key, value, revision FROM state WHERE topic = $1 AND published_revision < revision ORDER BY key LIMIT $2",
        topic.name,
        limit,
    )
    return [Unpublished(*row) for row in rows]


async def mark_published(tx: Transaction, topic: Topic, states: Sequence[Unpublished]) -> None:
    """Their revisions are in the topic; what was written since stays unpublished."""
    await tx.execute(
        "UPDATE state SET published_revision = new.revision"
        " FROM unnest($2::text[], $3::bigint[]) AS new (key, revision) WHERE topic = $1 AND state.key = new.key",
        topic.name,
        [state.key for state in states],
        [state.revision for state in states],
    )
