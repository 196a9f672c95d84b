"""Between Faust and the state: where to read from, and applying what was read, until it holds or the process has to end."""

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import structlog

from shared.errors import MeiriError, Transient
from shared.kafka.log import EventLog, Headers, TopicPartition
from shared.kafka.partition import Effect, StoredOffsets
from shared.kafka.progress import Progress

log = structlog.get_logger()

_BATCH_BYTES = 512 << 10
"""Of one transaction: about 5000 plays. Smaller costs more per play, larger holds locks and memory for longer."""
_BEGIN_WITHIN_S = 60.0
_RETRY_AT_MOST_S = 5.0
_STUCK_AFTER_S = 5.0
T = TypeVar("T")


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
                self._positions[partition] = await self._retrying(partition, partial(self._begin, partition))
                self._progress.began(partition, self._positions[partition])
        for partition in self._positions.keys() - partitions:
            del self._positions[partition]
            self._progress.ended(partition)
        log.info("features.reading_from", offsets={_name(own): self._positions[own] for own in sorted(partitions)})
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
            stored = await self._retrying(partition, partial(self._offsets.apply, partition, batch, effect))
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
                    f"Records {position} to {record.offset - 1} of {_name(partition)} did not arrive before {record.offset}: "
                    "start again from the stored offset."
                )
            position = record.offset + 1

    async def _retrying(self, partition: TopicPartition, attempt: Callable[[], Awaitable[T]]) -> T:
        began = told = time.monotonic()
        delay_s, tries = 0.1, 0
        while True:
            try:
                result = await attempt()
            except Transient as error:
                now = time.monotonic()
                tries += 1
                if tries == 1 or now - told > 10.0:
                    told = now
                    log.warning("features.retrying", partition=_name(partition), tries=tries, error=str(error))
                if now - began > _STUCK_AFTER_S:
                    self._progress.stuck.add(partition)
                await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))  # noqa: S311
                delay_s = min(2 * delay_s, _RETRY_AT_MOST_S)
            else:
                if tries:
                    self._progress.stuck.discard(partition)
                    log.info("features.recovered", partition=_name(partition), tries=tries)
                return result


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


def _name(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"
