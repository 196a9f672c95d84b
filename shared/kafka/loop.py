"""The loop under every consumer: one task per partition, so that a slow partition holds up nobody but itself."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

import structlog

from shared.errors import Transient, Unusable
from shared.kafka.log import EventLog, Member, Record, TopicPartition
from shared.kafka.partition import Moved
from shared.kafka.progress import Progress
from shared.kafka.retrying import Halted, retrying
from shared.topics import Topic

log = structlog.get_logger()

_POLL_S = 0.5
T = TypeVar("T")


class Steps(Protocol):
    """What one partition's task does. `Transient` from either is retried for ever; any other error ends the loop."""

    async def begin(self, partition: TopicPartition) -> int | None:
        """Where to read from; None is the group's own offset."""

    async def apply(self, partition: TopicPartition, records: Sequence[Record]) -> int:
        """Make the records count; returns the next offset, which may now be committed to the group."""


class _Worker:
    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.halt = asyncio.Event()
        self.busy = False
        self.polling_since = time.monotonic()
        self.task: asyncio.Task[None] | None = None


class Loop:
    """Reads as a member of `group` until `stop` is set (drains) or a step fails (drains what it can, and raises)."""

    def __init__(
        self,
        log: EventLog,
        group: str,
        topics: Sequence[Topic],
        steps: Steps,
        *,
        stop: asyncio.Event,
        pattern: str | None,
        max_records: int,
        max_wait_s: float,
        progress: Progress,
        stuck_after_s: float,
        deaf_after_s: float,
        commit_every_s: float,
        drain_s: float,
        reset: Literal["earliest", "none"],
    ) -> None:
        self._log = log
        self._group = group
        self._topics = topics
        self._steps = steps
        self._stop = stop
        self._pattern = pattern
        self._max_records = max_records
        self._max_wait_s = max_wait_s
        self._progress = progress
        self._stuck_after_s = stuck_after_s
        self._deaf_after_s = deaf_after_s
        self._commit_every_s = commit_every_s
        self._drain_s = drain_s
        self._reset: Literal["earliest", "none"] = reset
        self._workers: dict[TopicPartition, _Worker] = {}
        self._done: dict[TopicPartition, int] = {}  # next offsets that may be committed and are not yet
        self._failed: asyncio.Future[None]

    async def run(self) -> None:
        if not await topics_exist(self._log, self._topics, self._stop):
            return
        self._failed = asyncio.get_running_loop().create_future()
        async with self._log.join(
            self._group,
            self._topics,
            pattern=self._pattern,
            on_assigned=self._assigned,
            on_revoked=self._revoked,
            reset=self._reset,
        ) as member:
            side: list[asyncio.Future[Any]] = [
                asyncio.create_task(self._watch(member)),
                asyncio.create_task(self._commits(member)),
                asyncio.create_task(self._stop.wait()),
            ]
            try:
                await asyncio.wait([*side, self._failed], return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in side:
                    task.cancel()
                await self._drain(member, list(self._workers.values()))
                self._failed.cancel()
        for ended in (self._failed, *side):
            if ended.done() and not ended.cancelled():
                ended.result()
        log.info("consumer.stopped", group=self._group)

    async def _assigned(self, member: Member, partitions: frozenset[TopicPartition]) -> None:
        log.info("consumer.assigned", group=self._group, partitions=_names(partitions))
        for partition in partitions:
            worker = self._workers[partition] = _Worker(partition)
            worker.task = asyncio.create_task(self._work(member, worker))
            worker.task.add_done_callback(self._ended)

    async def _revoked(self, member: Member, partitions: frozenset[TopicPartition]) -> None:
        await self._drain(member, [worker for tp, worker in self._workers.items() if tp in partitions])

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) and not self._failed.done():
            self._failed.set_exception(error)

    async def _work(self, member: Member, worker: _Worker) -> None:
        """One partition's path: begin, then fetch, apply, mark, again and again."""
        try:
            while not worker.halt.is_set():
                await self._begin(member, worker)
                with suppress(Moved):
                    await self._follow(member, worker)
        except Halted:
            pass

    async def _begin(self, member: Member, worker: _Worker) -> None:
        partition = worker.partition
        offset = await self._retrying(worker, partial(self._steps.begin, partition))
        if offset is None:
            offset = await self._retrying(worker, partial(member.position, partition))
        else:
            member.seek(partition, offset)
        self._progress.began(partition, offset)

    async def _follow(self, member: Member, worker: _Worker) -> None:
        partition = worker.partition
        while not worker.halt.is_set():
            records = await self._fetch(member, worker)
            if not records:
                continue
            worker.busy = True
            self._progress.fetched(partition, records[-1].offset + 1)
            try:
                done = await self._retrying(worker, partial(self._steps.apply, partition, records))
            finally:
                worker.busy = False
                worker.polling_since = time.monotonic()
            self._progress.applied(partition, done)
            self._done[partition] = done

    async def _fetch(self, member: Member, worker: _Worker) -> Sequence[Record]:
        """A batch: full, or what came within `max_wait_s` of its first record."""
        partition = worker.partition
        batch = list(await member.poll(partition, self._max_records, _POLL_S))
        deadline = time.monotonic() + self._max_wait_s
        while batch and len(batch) < self._max_records and (left := deadline - time.monotonic()) > 0:
            batch += await member.poll(partition, self._max_records - len(batch), left)
        return batch

    async def _retrying(self, worker: _Worker, attempt: Callable[[], Awaitable[T]]) -> T:
        return await retrying(
            attempt, worker.partition, self._progress, halt=worker.halt, stuck_after_s=self._stuck_after_s
        )

    async def _drain(self, member: Member, workers: Sequence[_Worker]) -> None:
        """Let each of `workers` finish the batch it holds, at most `drain_s`, then commit and forget them."""
        tasks = []
        for worker in workers:
            assert worker.task is not None  # noqa: S101
            worker.halt.set()
            if not worker.busy:  # a poll would wait for the rebalance that waits for us
                worker.task.cancel()
            tasks.append(worker.task)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self._drain_s)
            for task in late:
                task.cancel()
            if late:
                log.warning("consumer.drain_cut_off", group=self._group, batches=len(late))
                await asyncio.wait(late, timeout=2.0)
            await self._commit(member)
        for worker in workers:
            self._progress.ended(worker.partition)
            self._done.pop(worker.partition, None)
            if self._workers.get(worker.partition) is worker:
                del self._workers[worker.partition]

    async def _commits(self, member: Member) -> None:
        while True:
            await asyncio.sleep(self._commit_every_s)
            await self._commit(member)

    async def _commit(self, member: Member) -> None:
        owned = member.partitions()
        offsets = {partition: offset for partition, offset in self._done.items() if partition in owned}
        if not offsets:
            return
        try:
            committed = await member.commit(offsets)
        except Transient as error:
            log.warning("consumer.commit_failed", group=self._group, error=str(error))
            return
        if not committed:  # the next owner reads these records again
            log.info("consumer.commit_refused", group=self._group, partitions=_names(offsets))
        for partition, offset in offsets.items():
            if committed:
                self._progress.stored(partition, offset)
            if self._done.get(partition) == offset:
                del self._done[partition]

    async def _watch(self, member: Member) -> None:
        """Raise what died in the background, and notice a client that has gone deaf: only a new process helps then."""
        checked = time.monotonic()
        while True:
            await asyncio.sleep(min(1.0, self._deaf_after_s / 4))
            with suppress(Transient):
                member.check()
            if time.monotonic() - checked < self._deaf_after_s / 4:
                continue
            checked = time.monotonic()
            with suppress(Transient):
                await self._check_deaf(member)

    async def _check_deaf(self, member: Member) -> None:
        owned = [tp for tp in member.partitions() if tp in self._progress.marks]
        for partition, bounds in (await self._log.bounds(owned)).items():
            worker, marks = self._workers.get(partition), self._progress.marks.get(partition)
            if worker is None or marks is None:
                continue
            marks.end = bounds.end
            deaf = not worker.busy and time.monotonic() - worker.polling_since > self._deaf_after_s
            if deaf and bounds.end > await member.position(partition):
                raise RuntimeError(f"{partition} has records that do not arrive: the Kafka client is stuck")


async def topics_exist(log_: EventLog, topics: Iterable[Topic], stop: asyncio.Event, wait_s: float = 60.0) -> bool:
    """Wait until every topic exists. False: `stop` came first. `Unusable` with a sentence after `wait_s`."""
    deadline = time.monotonic() + wait_s
    told = False
    missing: list[str] = []
    while not stop.is_set():
        with suppress(Transient):
            known = await log_.topics()
            missing = [topic.name for topic in topics if topic.name not in known]
            if not missing:
                return True
        if time.monotonic() > deadline:
            raise Unusable(
                f"Kafka has no topic {', '.join(missing) or '(no answer)'}. Create the topics, then start again."
            )
        if not told:
            told = True
            log.warning("kafka.topics_missing", topics=missing)
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await stop.wait()
    return False


def _names(partitions: Iterable[TopicPartition]) -> list[str]:
    return sorted(map(str, partitions))
