"""ingest.dlq.v1: a record that could not be accepted, whole, with where it came from and why."""

from meiri.ingest.v1.dead_letter_pb2 import DeadLetter

from shared.kafka.log import Headers, Outgoing, Record
from shared.topics import DEAD_LETTERS

_LARGEST_VALUE = (4 << 20) - (64 << 10)


def dead_letter(
    record: Record, reason: str, sentence: str, *, tenant_id: str, received_at_ms: int, headers: Headers
) -> Outgoing:
    """The record's dead letter. It keeps its partition number, so that redriving keeps order. `tenant_id` "": unknown."""
    letter = DeadLetter(
        value=record.value or b"",
        key=record.key or b"",
        source_topic=record.topic,
        source_partition=record.partition,
        source_offset=record.offset,
        tenant_id=tenant_id,
        reason=reason,
        sentence=sentence,
    )
    letter.received_at.FromMilliseconds(received_at_ms)
    if len(letter.value) > _LARGEST_VALUE:  # it filled a record by itself, so no record can hold it and its origin
        letter.ClearField("value")
        letter.sentence += " Its value is too large for a dead letter: read it where it came from."
    return Outgoing(
        DEAD_LETTERS, record.partition % DEAD_LETTERS.partitions, record.key, letter.SerializeToString(), headers
    )
