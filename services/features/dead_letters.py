"""Where records go that features cannot count: the dead-letter topic."""

import structlog

from shared.clock import Clock
from shared.codec.dead_letters import dead_letter
from shared.errors import Permanent
from shared.kafka.log import Publisher, Record

log = structlog.get_logger()


class DeadLetters:
    def __init__(self, publisher: Publisher, clock: Clock) -> None:
        self._publisher = publisher
        self._clock = clock

    async def send(self, record: Record, refusal: Permanent) -> None:
        """Return once Kafka has the dead letter. Transient: it may not have it, so the record must not be passed."""
        tenant_id, separator, _ = (record.key or b"").partition(b"|")  # feedback's key; a batch of plays has none
        letter = dead_letter(
            record,
            refusal.reason,
            str(refusal),
            tenant_id=tenant_id.decode("utf-8", "replace") if separator else "",
            received_at_ms=record.timestamp + self._clock.ahead_ms(),
            headers=record.headers,
        )
        await self._publisher.send(letter.topic, letter.partition, letter.key, letter.value, letter.headers)
        log.error(
            "record.dead_lettered",
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            reason=refusal.reason,
        )
