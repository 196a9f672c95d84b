"""Feedback: the path of a batch from records to what holds now, top to bottom. The newest `given_at` of a target wins."""

from collections.abc import Sequence

import structlog
from google.protobuf.message import DecodeError
from meiri.feedback.v1.feedback_event_pb2 import FeedbackEvent, FeedbackKind

from services.features import store
from services.features.dead_letters import DeadLetters
from services.features.domain import Said
from shared.errors import Permanent
from shared.kafka.log import Record, TopicPartition, trace_of
from shared.postgres import Transaction
from shared.telemetry import bound_trace

log = structlog.get_logger()

TRACK, ARTIST = 1, 2
_TARGETS = {"track": TRACK, "artist": ARTIST}
_LIMIT_S = 253_402_300_800  # the year 10000
_KINDS = frozenset(FeedbackKind.values()) - {FeedbackKind.FEEDBACK_KIND_UNSPECIFIED}


class FeedbackHandler:
    def __init__(self, dead_letters: DeadLetters) -> None:
        self._dead_letters = dead_letters

    async def __call__(self, tx: Transaction, source: TopicPartition, records: Sequence[Record]) -> None:
        newest: dict[tuple[str, str, int, str], Said] = {}
        for record in records:
            if not record.value:  # the topic's word for "forget this key"; the row stays until the user is erased
                continue
            try:
                said = read(record)
            except Permanent as refusal:
                await self._dead_letters.send(record, refusal)
                continue
            known = newest.setdefault(said[:4], said)
            if (said.given_at_us, said.event_id) > (known.given_at_us, known.event_id):
                newest[said[:4]] = said
        if newest:
            await store.add_to_users(tx, {target[:2]: 0 for target in newest})
            changed = await store.put_feedback(tx, newest.values())
            with bound_trace(trace_of(records[0])):
                log.info("feedback.kept", partition=source.partition, records=len(records), changed=changed)


def read(record: Record) -> Said:
    """What the record says. Raises Permanent when it is no feedback event, or its key tells another story than its value.

    The key tells the tenant and the user: the gateway made it from the caller's token.
    """
    try:
        event = FeedbackEvent.FromString(record.value or b"")
        tenant_id, user_id, target = (record.key or b"").decode().split("|", 2)
    except (DecodeError, ValueError):  # UnicodeDecodeError is a ValueError
        raise Permanent("not_feedback", "The record is no FeedbackEvent with a key tenant|user|target.") from None
    kind_of_target, _, target_id = target.partition(":")
    told_id = event.track_id if event.HasField("track_id") else event.artist_id
    if event.WhichOneof("target") != f"{kind_of_target}_id" or told_id != target_id or not target_id:
        raise Permanent("target_mismatch", "The target in the record's key is not the one in its value.")
    if not tenant_id or not user_id or event.user_id not in ("", user_id):
        raise Permanent("user_mismatch", "The user in the record's key is not the one in its value.")
    if event.kind not in _KINDS or len(event.event_id) != 16 or not event.HasField("given_at"):
        raise Permanent("incomplete_feedback", "Feedback needs a kind, an event_id of 16 bytes and given_at.")
    if not -_LIMIT_S < event.given_at.seconds < _LIMIT_S or not -_LIMIT_S < event.received_at.seconds < _LIMIT_S:
        raise Permanent("time_out_of_range", "A time of this feedback is not between the years 1 and 9999: correct it.")
    if any("\0" in text for text in (tenant_id, user_id, target_id)):
        raise Permanent("zero_byte", "An id has a zero byte, which Postgres cannot keep: send it without.")
    received = event.received_at.ToMilliseconds() if event.HasField("received_at") else None
    return Said(
        tenant_id,
        user_id,
        _TARGETS[kind_of_target],
        target_id,
        event.kind,
        event.given_at.ToMicroseconds(),
        event.event_id,
        received,
    )
