"""The two ways a service consumes. Both drain and return when `stop` is set; any error but `Transient` ends them.

`consume_at_least_once`: the handler awaits its own effects (produces, files), then the group's offset is committed.
`consume_stored`: the effect and the next offset are one Postgres transaction; the group's offset is only a mirror.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from shared.kafka.log import EventLog, Record, TopicPartition
from shared.kafka.loop import Loop
from shared.kafka.partition import Effect, StoredOffsets
from shared.kafka.progress import Progress
from shared.topics import Topic

Handler = Callable[[TopicPartition, Sequence[Record]], Awaitable[None]]
"""Takes a batch of one partition. To return says that its effects are safe; `Transient` asks for the same batch again."""


async def consume_at_least_once(
    log: EventLog,
    group: str,
    topics: Sequence[Topic],
    handler: Handler,
    *,
    stop: asyncio.Event,
    pattern: str | None = None,
    max_records: int = 1000,
    max_wait_s: float = 0.02,
    progress: Progress | None = None,
    stuck_after_s: float = 5.0,
    deaf_after_s: float = 60.0,
    commit_every_s: float = 0.5,
    drain_s: float = 10.0,
) -> None:
    """Handle batches of `topics` and of the topics that match `pattern`, from the earliest record on.

    A batch has at most `max_records`, and waits at most `max_wait_s` for company. One partition's batches come one after
    another, different partitions' at the same time. A partition whose batch has failed for `stuck_after_s` is in
    `progress.stuck` until that is over. When records are there but none arrive for `deaf_after_s`, it raises.
    """
    await Loop(
        log,
        group,
        topics,
        _AtLeastOnce(handler),
        stop=stop,
        pattern=pattern,
        max_records=max_records,
        max_wait_s=max_wait_s,
        progress=progress or Progress(),
        stuck_after_s=stuck_after_s,
        deaf_after_s=deaf_after_s,
        commit_every_s=commit_every_s,
        drain_s=drain_s,
        reset="earliest",
    ).run()


async def consume_stored(
    log: EventLog,
    group: str,
    topics: Sequence[Topic],
    offsets: StoredOffsets,
    effect: Effect[Record],
    *,
    stop: asyncio.Event,
    max_records: int = 1000,
    max_wait_s: float = 0.02,
    progress: Progress | None = None,
    stuck_after_s: float = 5.0,
    deaf_after_s: float = 60.0,
    drain_s: float = 10.0,
) -> None:
    """Apply each record of `topics` exactly once to the database behind `offsets`; see `StoredOffsets`."""
    await Loop(
        log,
        group,
        topics,
        _Stored(log, offsets, effect),
        stop=stop,
        pattern=None,
        max_records=max_records,
        max_wait_s=max_wait_s,
        progress=progress or Progress(),
        stuck_after_s=stuck_after_s,
        deaf_after_s=deaf_after_s,
        commit_every_s=1.0,
        drain_s=drain_s,
        reset="none",
    ).run()


class _AtLeastOnce:
    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def begin(self, _: TopicPartition) -> None:
        return None

    async def apply(self, partition: TopicPartition, records: Sequence[Record]) -> int:
        await self._handler(partition, records)
        return records[-1].offset + 1


class _Stored:
    def __init__(self, log: EventLog, offsets: StoredOffsets, effect: Effect[Record]) -> None:
        self._log = log
        self._offsets = offsets
        self._effect = effect

    async def begin(self, partition: TopicPartition) -> int:
        return await self._offsets.begin(partition, (await self._log.bounds([partition]))[partition])

    async def apply(self, partition: TopicPartition, records: Sequence[Record]) -> int:
        return await self._offsets.apply(partition, records, self._effect)
