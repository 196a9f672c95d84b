"""The ports to the event log: what may be relied on, whether Kafka or memory is behind.

An event log has topics; a topic has partitions; a partition is records in append order, each with an offset. Offsets
only grow; holes between records are normal (compaction, transaction markers). A record may be delivered again: after a
crash, after a partition moved, after a commit that did not arrive. Callers may assume order only within one partition.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from shared.telemetry import TRACE_HEADER
from shared.topics import Topic

Headers = Sequence[tuple[str, bytes]]

ADOPT = "run the service once with the argument adopt-offsets"
"""What an operator does who accepts that records are lost (`shared.kafka.adopt`)."""


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Bounds(NamedTuple):
    """The first offset a partition still holds, and the offset its next record will get."""

    start: int
    end: int


class Record(Protocol):
    """One record as delivered. `timestamp` is in unix milliseconds; no value deletes the key of a compacted topic."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Headers: ...


def trace_of(record: Record) -> str:
    """The trace id the record came with, or nothing."""
    for name, value in record.headers:
        if name == TRACE_HEADER:
            return value.decode("ascii", "replace")
    return ""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One record to publish. The partition is always the caller's choice (`shared.ids.partition_of`)."""

    topic: Topic
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class Publisher(Protocol):
    """Writes records. Both calls return only after the log has acknowledged every record.

    `Transient`: not (all) acknowledged, some may be there nevertheless: send all again; receivers drop what they know.
    `Permanent`: refused for what it is (too large, no such partition); sending again cannot help.
    """

    async def send(
        self, topic: Topic, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()
    ) -> int:
        """Append one record; returns its offset (-1 where the log does not know it after a repeated delivery)."""

    async def send_many(self, records: Sequence[Outgoing]) -> None:
        """Append many; records of one partition keep their order among themselves."""


class Reader(Protocol):
    """Reads partitions in offset order. Tasks share it only so that each polls a partition of its own."""

    def partitions(self) -> frozenset[TopicPartition]:
        """What this reader reads now."""

    async def poll(self, partition: TopicPartition, max_records: int, wait_s: float) -> Sequence[Record]:
        """The next records of one partition, at most `max_records`; empty when none came within `wait_s`.

        Raises `Unusable` when the position is outside the log and no reset was asked for.
        """

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """The next poll of the partition starts at the first record with this offset or a higher one."""

    async def position(self, partition: TopicPartition) -> int:
        """The offset the next poll starts from; past the holes and markers already read."""


class Member(Reader, Protocol):
    """One member of a consumer group."""

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> bool:
        """Store the group's next offsets. False: some are no longer this member's. `Transient`: nobody answered."""

    def check(self) -> None:
        """Raise what went wrong in the background; say that this member is alive. Call it about once a second."""


OnPartitions = Callable[[Member, frozenset[TopicPartition]], Awaitable[None]]


class EventLog(Protocol):
    """One cluster."""

    async def cluster_id(self) -> str: ...

    async def topics(self) -> Mapping[str, int]:
        """Every topic with its number of partitions."""

    async def create(self, topics: Sequence[Topic]) -> None:
        """Create what does not exist; what exists is left as it is."""

    async def bounds(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Bounds]: ...

    async def committed(self, group: str, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """A group's next offsets, for lag; a partition it never committed is absent."""

    def join(
        self,
        group: str,
        topics: Sequence[Topic],
        *,
        pattern: str | None = None,
        on_assigned: OnPartitions,
        on_revoked: OnPartitions,
        reset: Literal["earliest", "none"] = "earliest",
    ) -> AbstractAsyncContextManager[Member]:
        """Join `group` for `topics` and every topic, present or future, that matches `pattern`.

        `on_revoked` is awaited before a partition goes to another member; polls must have ended when it returns.
        """

    def read(self, starts: Mapping[TopicPartition, int]) -> AbstractAsyncContextManager[Reader]:
        """Read these partitions from these offsets, without a group."""
