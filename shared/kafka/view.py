"""A compacted topic as a dictionary in memory: read to its end without a group, then followed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, ItemsView, Sequence
from contextlib import asynccontextmanager
from typing import Generic, Self, TypeVar

import structlog

from shared.errors import Transient
from shared.kafka.log import EventLog, Reader, Record, TopicPartition
from shared.kafka.loop import topics_exist
from shared.topics import Topic

log = structlog.get_logger()

_BATCH = 5000
_POLL_S = 0.5
K = TypeVar("K")
V = TypeVar("V")


class TopicView(Generic[K, V]):
    """The newest value of every key. Open with `TopicView.open(...)`; memory is bounded by the topic alone.

    A record that cannot be decoded is skipped and counted in `undecodable`; its key keeps the value it had. If following
    the topic fails, every later call raises that error. Partitions added while it runs are seen by the next process.
    """

    def __init__(
        self,
        topic: Topic,
        decode_key: Callable[[bytes], K],
        decode_value: Callable[[bytes], V],
        on_change: Callable[[K, V | None, V | None], None] | None,
    ) -> None:
        self._topic = topic
        self._decode_key = decode_key
        self._decode_value = decode_value
        self._on_change = on_change
        self._values: dict[K, V] = {}
        self._behind: set[TopicPartition] = set()
        self._ready = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        self.undecodable = 0

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        event_log: EventLog,
        topic: Topic,
        *,
        decode_key: Callable[[bytes], K],
        decode_value: Callable[[bytes], V],
        on_change: Callable[[K, V | None, V | None], None] | None = None,
    ) -> AsyncIterator[Self]:
        """Start reading. `on_change(key, old, new)` is called in record order from the first record on; None is absent."""
        view = cls(topic, decode_key, decode_value, on_change)
        view._following = asyncio.create_task(view._follow(event_log))
        view._following.add_done_callback(view._ended)
        try:
            yield view
        finally:
            view._following.cancel()
            await asyncio.wait([view._following])

    async def ready(self, timeout_s: float = 300.0) -> None:
        """Return when everything the topic held at the start has been read; `Transient` if that takes longer."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._ready.wait()
        except TimeoutError:
            raise Transient(
                f"Topic {self._topic.name} is not read to its end within {timeout_s:g} s: wait longer."
            ) from None
        self._check()

    @property
    def is_ready(self) -> bool:
        return self._ready.is_set() and self._following is not None and not self._following.done()

    async def failed(self) -> None:
        """Wait until following the topic fails, and raise its error: give this to whoever owns the process's tasks."""
        if self._following is not None:
            await asyncio.wait([self._following])
        self._check()

    def get(self, key: K) -> V | None:
        self._check()
        return self._values.get(key)

    def items(self) -> ItemsView[K, V]:
        """A live view: do not await while iterating."""
        self._check()
        return self._values.items()

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: K) -> bool:
        return self.get(key) is not None

    def _check(self) -> None:
        if self._following is not None and self._following.done() and not self._following.cancelled():
            self._following.result()

    def _ended(self, following: asyncio.Task[None]) -> None:
        if not following.cancelled() and (error := following.exception()):
            log.error("view.failed", topic=self._topic.name, error=type(error).__name__)
        self._ready.set()  # whoever waits is told

    async def _follow(self, event_log: EventLog) -> None:
        await topics_exist(event_log, [self._topic], asyncio.Event())
        count = (await _patiently(event_log.topics))[self._topic.name]
        partitions = [TopicPartition(self._topic.name, number) for number in range(count)]
        bounds = await _patiently(lambda: event_log.bounds(partitions))
        self._behind = set(partitions)
        async with event_log.read({partition: bounds[partition].start for partition in partitions}) as reader:
            tasks = [
                asyncio.create_task(self._follow_partition(reader, partition, bounds[partition].end))
                for partition in partitions
            ]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)

    async def _follow_partition(self, reader: Reader, partition: TopicPartition, end: int) -> None:
        while True:
            if partition in self._behind and await _patiently(lambda: reader.position(partition)) >= end:
                self._behind.discard(partition)
                if not self._behind:
                    log.info("view.ready", topic=self._topic.name, keys=len(self._values), undecodable=self.undecodable)
                    self._ready.set()
            self._take(await reader.poll(partition, _BATCH, _POLL_S))
            await asyncio.sleep(0)  # a long catch-up leaves the loop to others between batches

    def _take(self, records: Sequence[Record]) -> None:
        for record in records:
            try:
                key = self._decode_key(record.key or b"")
                value = self._decode_value(record.value) if record.value else None
            except Exception as error:  # noqa: BLE001 - whatever a decoder raises, one bad record must not blind the view
                self.undecodable += 1
                if self.undecodable == 1:
                    log.error(
                        "view.undecodable",
                        topic=record.topic,
                        partition=record.partition,
                        offset=record.offset,
                        error=type(error).__name__,
                    )
                continue
            old = self._values.get(key)
            if value is None:
                self._values.pop(key, None)
            else:
                self._values[key] = value
            if self._on_change is not None and not (old is None and value is None):
                self._on_change(key, old, value)


T = TypeVar("T")


async def _patiently(question: Callable[[], Awaitable[T]]) -> T:
    """Ask until brokers answer: a view outlives their restarts."""
    while True:
        try:
            return await question()
        except Transient:
            await asyncio.sleep(0.5)
