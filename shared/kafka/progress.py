"""Where a consumer is in each of its partitions: the marks that health, telemetry and lag are read from."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from shared.kafka.log import TopicPartition


@dataclass(slots=True)
class Marks:
    """Offsets of one partition, each the next one: still to fetch, to apply, to be read after a restart.

    `end` is the log's end when last asked, or None. `progressed_at` is monotonic seconds: the last time `applied` grew.
    """

    fetched: int
    applied: int
    stored: int
    end: int | None
    progressed_at: float


@dataclass
class Progress:
    """Kept by the consumer loop, read by anyone in the process. `stuck` partitions keep failing with `Transient`."""

    now: Callable[[], float] = time.monotonic
    marks: dict[TopicPartition, Marks] = field(default_factory=dict)
    stuck: set[TopicPartition] = field(default_factory=set)

    def began(self, partition: TopicPartition, offset: int) -> None:
        self.marks[partition] = Marks(offset, offset, offset, None, self.now())

    def fetched(self, partition: TopicPartition, offset: int) -> None:
        self.marks[partition].fetched = offset

    def applied(self, partition: TopicPartition, offset: int) -> None:
        marks = self.marks[partition]
        marks.applied = offset
        marks.progressed_at = self.now()

    def stored(self, partition: TopicPartition, offset: int) -> None:
        if partition in self.marks:
            self.marks[partition].stored = offset

    def ended(self, partition: TopicPartition) -> None:
        self.marks.pop(partition, None)
        self.stuck.discard(partition)

    def silent_s(self, partition: TopicPartition) -> float:
        """Seconds since the partition's last progress."""
        return self.now() - self.marks[partition].progressed_at
