"""Offsets that live beside the effect: one Postgres transaction holds both, so that each record counts once.

It does not know where records come from: the aiokafka loop and Faust both run it. The owner's schema has this table:

    CREATE TABLE consumer_offset (
        topic text, partition int, next_offset bigint NOT NULL, cluster_id text NOT NULL,
        applied_at timestamptz NOT NULL, PRIMARY KEY (topic, partition))
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from shared.errors import Transient, Unusable
from shared.kafka.log import ADOPT, Bounds, TopicPartition
from shared.postgres import Database, Transaction


class HasOffset(Protocol):
    @property
    def offset(self) -> int: ...


R = TypeVar("R", bound=HasOffset)
Effect = Callable[[Transaction, TopicPartition, Sequence[R]], Awaitable[None]]
"""What a batch of one partition's records does, all through the given transaction. Called again after a failure."""


class Moved(Transient):
    """These records do not follow the stored offset (another owner moved it): begin again, at `StoredOffsets.begin`."""


class StoredOffsets:
    """The next offsets of one consumer, kept in its owner's schema. `timeout_s` bounds one batch's transaction."""

    def __init__(self, db: Database, cluster_id: str, *, timeout_s: float = 30.0) -> None:
        self._db = db
        self._cluster_id = cluster_id
        self._timeout_s = timeout_s
        self._reached: dict[TopicPartition, int] = {}  # where this process's records of a partition end without a gap

    async def begin(self, partition: TopicPartition, bounds: Bounds) -> int:
        """The offset to read from; a partition never seen begins at the log's start.

        `Unusable` when going on would silently lose or repeat records.
        """
        topic, number = partition
        async with self._db.transaction(self._timeout_s) as tx:
            await tx.execute(
                "INSERT INTO consumer_offset (topic, partition, next_offset, cluster_id, applied_at)"
                " VALUES ($1, $2, $3, $4, now()) ON CONFLICT DO NOTHING",
                topic,
                number,
                bounds.start,
                self._cluster_id,
            )
            row = await tx.fetchrow(
                "SELECT next_offset, cluster_id FROM consumer_offset WHERE topic = $1 AND partition = $2", topic, number
            )
        if row is None:
            raise Transient(f"The stored offset of {partition} was deleted just now: try again.")
        stored = int(row["next_offset"])
        if row["cluster_id"] != self._cluster_id:
            raise Unusable(
                f"The stored offset of {partition} belongs to Kafka cluster {row['cluster_id']}, but this is "
                f"{self._cluster_id}. Check the bootstrap servers; if it was replaced, "
                f"{ADOPT}."
            )
        if bounds.start > stored:
            raise Unusable(
                f"{partition} starts at offset {bounds.start}, above the stored offset {stored}: "
                f"{bounds.start - stored} records were deleted before they were applied. Restore them, or accept the loss "
                f"and {ADOPT}."
            )
        if bounds.end < stored:
            raise Unusable(
                f"{partition} ends at offset {bounds.end}, below the stored offset {stored}: the topic was emptied "
                f"or made anew. Check it; to go on from what it holds now, {ADOPT}."
            )
        self._reached[partition] = stored
        return stored

    async def apply(self, partition: TopicPartition, records: Sequence[R], effect: Effect[R]) -> int:
        """Run `effect` on those `records` (in offset order) not applied yet; returns the new stored offset.

        The row lock fences out any other process that still believes it owns the partition. `Transient`: call again
        with the same records, also when the commit's outcome is unknown.
        """
        topic, number = partition
        async with self._db.transaction(self._timeout_s) as tx:
            stored = await tx.fetchval(
                "SELECT next_offset FROM consumer_offset WHERE topic = $1 AND partition = $2 FOR UPDATE", topic, number
            )
            if stored is None:
                raise Unusable(f"The stored offset of {partition} is gone. Start the service again.")
            fresh = [record for record in records if record.offset >= stored]
            if fresh:
                # A hole is normal only while the offset is where we left it; else the records between were never ours.
                if fresh[0].offset > stored and self._reached.get(partition) != stored:
                    raise Moved(
                        f"Records of {partition} begin at {fresh[0].offset}, but {stored} is stored: go back to it."
                    )
                await effect(tx, partition, fresh)
                stored = fresh[-1].offset + 1
                await tx.execute(
                    "UPDATE consumer_offset SET next_offset = $3, applied_at = clock_timestamp()"
                    " WHERE topic = $1 AND partition = $2",
                    topic,
                    number,
                    stored,
                )
        self._reached[partition] = int(stored)
        return int(stored)

    async def adopt(self, partition: TopicPartition, next_offset: int) -> None:
        """Accept another cluster or a loss: go on from `next_offset` of this cluster. Only on an operator's word."""
        await self._db.execute(
            "INSERT INTO consumer_offset (topic, partition, next_offset, cluster_id, applied_at)"
            " VALUES ($1, $2, $3, $4, now()) ON CONFLICT (topic, partition)"
            " DO UPDATE SET next_offset = excluded.next_offset, cluster_id = excluded.cluster_id",
            partition.topic,
            partition.partition,
            next_offset,
            self._cluster_id,
        )
