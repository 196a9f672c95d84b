"""The event log in memory, for tests: Kafka's promises within one process. It is both `EventLog` and `Publisher`."""

import asyncio
import re
import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

from shared.errors import Permanent, Transient, Unusable
from shared.kafka.log import ADOPT, Bounds, Headers, OnPartitions, Outgoing, Record, TopicPartition
from shared.telemetry import TRACE_HEADER, trace_id
from shared.topics import Topic


@dataclass(frozen=True, slots=True)
class MemoryRecord:
    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


@dataclass
class _Partition:
    records: list[MemoryRecord] = field(default_factory=list)
    start: int = 0
    end: int = 0


@dataclass
class _Group:
    members: list["_MemoryMember"] = field(default_factory=list)
    committed: dict[TopicPartition, int] = field(default_factory=dict)
    rebalancing: asyncio.Lock = field(default_factory=asyncio.Lock)


class MemoryLog:
    """While `refuse` is true every send fails with `Transient`, as with brokers that are away.

    While `mute` is true no poll gets anything, as with a client that has died inside.
    """

    def __init__(self, topics: Sequence[Topic] = (), cluster_id: str = "memory") -> None:
        self._cluster_id = cluster_id
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._groups: dict[str, _Group] = {}
        self._grown = asyncio.Event()
        self.refuse = False
        self.mute = False
        self._create(topics)

    # Publisher

    async def send(
        self, topic: Topic, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()
    ) -> int:
        await asyncio.sleep(0)
        if self.refuse:
            raise Transient("The event log refuses records: try again.")
        log = self._partitions.get(TopicPartition(topic.name, partition))
        if log is None:
            raise Permanent("unknown_partition", f"Topic {topic.name} has no partition {partition}: create the topic.")
        if (trace := trace_id.get()) and all(name != TRACE_HEADER for name, _ in headers):
            headers = (*headers, (TRACE_HEADER, trace.encode()))
        now_ms = time.time_ns() // 1_000_000
        log.records.append(MemoryRecord(topic.name, partition, log.end, now_ms, key, value, tuple(headers)))
        log.end += 1
        self._wake()
        return log.end - 1

    async def send_many(self, records: Sequence[Outgoing]) -> None:
        for record in records:
            await self.send(record.topic, record.partition, record.key, record.value, record.headers)

    # EventLog

    async def cluster_id(self) -> str:
        return self._cluster_id

    async def topics(self) -> Mapping[str, int]:
        counts: dict[str, int] = {}
        for topic, _ in self._partitions:
            counts[topic] = counts.get(topic, 0) + 1
        return counts

    async def create(self, topics: Sequence[Topic]) -> None:
        self._create(topics)
        for group in self._groups.values():
            await self._rebalance(group)

    async def bounds(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Bounds]:
        return {tp: Bounds(self._partitions[tp].start, self._partitions[tp].end) for tp in partitions}

    async def committed(self, group: str, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        known = self._groups.setdefault(group, _Group()).committed
        return {tp: known[tp] for tp in partitions if tp in known}

    @asynccontextmanager
    async def join(
        self,
        group: str,
        topics: Sequence[Topic],
        *,
        pattern: str | None = None,
        on_assigned: OnPartitions,
        on_revoked: OnPartitions,
        reset: Literal["earliest", "none"] = "earliest",
    ) -> AsyncIterator["_MemoryMember"]:
        joined = self._groups.setdefault(group, _Group())
        names = "|".join([*(f"^{re.escape(topic.name)}$" for topic in topics), *([pattern] if pattern else [])])
        member = _MemoryMember(self, joined, re.compile(names), on_assigned, on_revoked, reset)
        joined.members.append(member)
        try:
            await self._rebalance(joined)
            yield member
        finally:
            joined.members.remove(member)
            member.positions.clear()
            await self._rebalance(joined)

    @asynccontextmanager
    async def read(self, starts: Mapping[TopicPartition, int]) -> AsyncIterator["_MemoryReader"]:
        yield _MemoryReader(self, dict(starts), "earliest")

    # What a test may do to a log

    def compact(self, topic: Topic) -> None:
        """Keep the last record of each key and forget deleted keys: leaves holes, as the cleaner does."""
        for tp, log in self._partitions.items():
            if tp.topic == topic.name:
                last = {record.key: record for record in log.records}
                log.records = [record for record in last.values() if record.value]

    def truncate(self, partition: TopicPartition, start: int) -> None:
        """Forget the records below `start`, as retention does."""
        log = self._partitions[partition]
        log.start = start
        log.end = max(log.end, start)
        log.records = [record for record in log.records if record.offset >= start]

    def records(self, topic: Topic) -> list[MemoryRecord]:
        """Everything the topic holds, by partition and offset."""
        return [
            record
            for tp in sorted(self._partitions)
            if tp.topic == topic.name
            for record in self._partitions[tp].records
        ]

    def _create(self, topics: Sequence[Topic]) -> None:
        for topic in topics:
            for number in range(topic.partitions):
                self._partitions.setdefault(TopicPartition(topic.name, number), _Partition())

    def _wake(self) -> None:
        self._grown.set()
        self._grown = asyncio.Event()

    async def _rebalance(self, group: _Group) -> None:
        async with group.rebalancing:
            owners: dict[_MemoryMember, set[TopicPartition]] = {member: set() for member in group.members}
            for index, tp in enumerate(sorted(self._partitions)):
                interested = [member for member in group.members if member.names.search(tp.topic)]
                if interested:
                    owners[interested[index % len(interested)]].add(tp)
            for member in group.members:
                await member.on_revoked(member, member.partitions())
                member.positions.clear()
            for member, owned in owners.items():
                member.positions = {tp: group.committed.get(tp, self._partitions[tp].start) for tp in owned}
                await member.on_assigned(member, frozenset(owned))


class _MemoryReader:
    def __init__(self, log: MemoryLog, positions: dict[TopicPartition, int], reset: str) -> None:
        self._log = log
        self.positions = positions
        self._reset = reset

    def partitions(self) -> frozenset[TopicPartition]:
        return frozenset(self.positions)

    async def poll(self, partition: TopicPartition, max_records: int, wait_s: float) -> Sequence[Record]:
        deadline = time.monotonic() + wait_s
        while True:
            grown = self._log._grown  # noqa: SLF001 - the two are one adapter
            if partition not in self.positions or self._log.mute:
                await asyncio.sleep(wait_s)
                return ()
            log = self._log._partitions[partition]  # noqa: SLF001
            at = self.positions[partition]
            if not log.start <= at <= log.end:
                if self._reset == "none":
                    raise Unusable(
                        f"Offset {at} of {partition} is no longer in the log: records were "
                        f"deleted. Look at what was lost; to go on from the log's start, {ADOPT}."
                    )
                at = log.start
            first = bisect_left(log.records, at, key=lambda record: record.offset)
            if found := log.records[first : first + max_records]:
                self.positions[partition] = found[-1].offset + 1
                return found
            self.positions[partition] = log.end
            left = deadline - time.monotonic()
            if left <= 0:
                return ()
            try:
                async with asyncio.timeout(left):
                    await grown.wait()
            except TimeoutError:
                return ()

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self.positions[partition] = offset

    async def position(self, partition: TopicPartition) -> int:
        return self.positions[partition]


class _MemoryMember(_MemoryReader):
    def __init__(
        self,
        log: MemoryLog,
        group: _Group,
        names: re.Pattern[str],
        on_assigned: OnPartitions,
        on_revoked: OnPartitions,
        reset: str,
    ) -> None:
        super().__init__(log, {}, reset)
        self._group = group
        self.names = names
        self.on_assigned = on_assigned
        self.on_revoked = on_revoked

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> bool:
        await asyncio.sleep(0)
        if not offsets.keys() <= self.positions.keys():
            return False
        self._group.committed.update(offsets)
        return True

    def check(self) -> None:
        return
