"""Between Faust and the state: where to read from, and applying what was read, until it holds or the process has to end."""

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import structlog

from shared.errors import MeiriError
from shared.kafka.log import EventLog, Headers, TopicPartition
from shared.kafka.partition import Effect, StoredOffsets
from shared.kafka.progress import Progress
from shared.kafka.retrying import retrying

log = structlog.get_logger()

_BATCH_BYTES = 512 << 10
"""Of one transaction: about 5000 plays. Smaller costs more per play, larger holds locks and memory for longer."""
_BEGIN_WITHIN_S = 60.0


class Delivered(NamedTuple):
    """One record, as Faust delivered it."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Follows(Protocol):
    def __call__(self, partition: TopicPartition, offset: int, position: int) -> bool:
        """Whether the log holds no record between `position` and `offset`."""


class SkippedRecordsError(MeiriError):
    """Faust handed over a record that does not follow the one before: only reading again from the stored offset helps."""


class Source:
    """Applies records through `StoredOffsets`, one transaction a batch of a partition, partitions at the same time.

    `Transient` is tried again for as long as it takes; a partition for which that has lasted is in `progress.stuck` until it
    is over. Any other error comes out of `apply` and must end the process: Faust acknowledges what failed, too.
    """

    def __init__(
        self,
        event_log: EventLog,
        offsets: StoredOffsets,
        effects: Mapping[str, Effect[Any]],
        *,
        progress: Progress,
    ) -> None:
        self._event_log = event_log
        self._offsets = offsets
        self._effects = effects
        self._progress = progress
        self._positions: dict[TopicPartition, int] = {}

    async def begin(self, partitions: frozenset[TopicPartition]) -> dict[TopicPartition, int]:
        """Tell where to read each partition from: the stored offset, else the log's start."""
        async with asyncio.timeout(_BEGIN_WITHIN_S):
            for partition in sorted(partitions):
                self._positions[partition] = await retrying(partial(self._begin, partition), partition, self._progress)
                self._progress.began(partition, self._positions[partition])
        for partition in self._positions.keys() - partitions:
            del self._positions[partition]
            self._progress.ended(partition)
        log.info("features.reading_from", offsets={str(own): self._positions[own] for own in sorted(partitions)})
        return dict(self._positions)

    async def _begin(self, partition: TopicPartition) -> int:
        return await self._offsets.begin(partition, (await self._event_log.bounds([partition]))[partition])

    async def apply(self, records: Sequence[Delivered], follows: Follows) -> dict[TopicPartition, int]:
        """Make the records count; returns the stored offsets of their partitions."""
        by_partition: defaultdict[TopicPartition, list[Delivered]] = defaultdict(list)
        for record in records:
            by_partition[TopicPartition(record.topic, record.partition)].append(record)
        async with asyncio.TaskGroup() as group:
            for partition, own in by_partition.items():
                group.create_task(self._apply_partition(partition, own, follows))
        return {partition: self._positions[partition] for partition in by_partition if partition in self._positions}

    async def _apply_partition(self, partition: TopicPartition, records: list[Delivered], follows: Follows) -> None:
        effect = self._effects[partition.topic]
        for batch in _batches(records):
            if (
                partition not in self._positions
            ):  # given to another process meanwhile, which reads it from the stored offset
                return
            self._check_gapless(partition, batch, follows)
            stored = await retrying(partial(self._offsets.apply, partition, batch, effect), partition, self._progress)
            if partition in self._positions:
                self._positions[partition] = stored
                self._progress.fetched(partition, records[-1].offset + 1)
                self._progress.applied(partition, stored)
                self._progress.stored(partition, stored)

    def _check_gapless(self, partition: TopicPartition, batch: Sequence[Delivered], follows: Follows) -> None:
        position = self._positions[partition]
        for record in batch:
            if record.offset < position:  # applied before: the stored offset drops it
                continue
            if not follows(partition, record.offset, position):
                raise SkippedRecordsError(
                    f"Records {position} to {record.offset - 1} of {partition} did not arrive before {record.offset}: "
                    "start again from the stored offset."
                )
            position = record.offset + 1


def _batches(records: Sequence[Delivered]) -> Iterator[list[Delivered]]:
    batch: list[Delivered] = []
    size = 0
    for record in records:
        batch.append(record)
        size += len(record.value or b"")
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
