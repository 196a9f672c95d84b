"""Where records go that features cannot count: the dead-letter topic, whole, with where they came from and why."""

import structlog
from meiri.ingest.v1.dead_letter_pb2 import DeadLetter

from shared.errors import Permanent
from shared.kafka.log import Publisher, Record
from shared.topics import DEAD_LETTERS

log = structlog.get_logger()

_LARGEST_VALUE = (4 << 20) - (64 << 10)


class DeadLetters:
    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher

    async def send(self, record: Record, refusal: Permanent) -> None:
        """Return once Kafka has the dead letter. Transient: it may not have it, so the record must not be passed."""
        letter = DeadLetter(
            value=record.value or b"",
            key=record.key or b"",
            source_topic=record.topic,
            source_partition=record.partition,
            source_offset=record.offset,
            reason=refusal.reason,
            sentence=str(refusal),
        )
        if len(letter.value) > _LARGEST_VALUE:  # it filled a record by itself, so no record can hold it and its origin
            letter.ClearField("value")
            letter.sentence += " Its value is too large for a dead letter: read it where it came from."
        partition = record.partition % DEAD_LETTERS.partitions
        await self._publisher.send(DEAD_LETTERS, partition, record.key, letter.SerializeToString(), record.headers)
        log.warning(
            "record.dead_lettered",
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            reason=refusal.reason,
        )
