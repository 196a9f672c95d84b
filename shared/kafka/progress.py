"""Where a consumer is in each of its partitions: the marks that health, telemetry and lag are read from."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from shared.kafka.log import TopicPartition

log = structlog.get_logger()

WINDOW_S = 60.0


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

    def facts(self) -> dict[str, dict[str, int | float | None]]:
        """The marks by "topic-partition", as they are logged."""
        return {
            f"{topic}-{number}": {
                "fetched": marks.fetched,
                "applied": marks.applied,
                "stored": marks.stored,
                "end": marks.end,
                "silent_s": round(self.now() - marks.progressed_at, 1),
            }
            for (topic, number), marks in sorted(self.marks.items())
        }

    async def tell(self) -> None:
        """Log the marks once a minute, until cancelled."""
        while True:
            await asyncio.sleep(WINDOW_S)
            log.info("consumer.marks", partitions=self.facts(), stuck=sorted(map(str, self.stuck)))
