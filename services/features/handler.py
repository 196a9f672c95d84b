"""Play events: the path of a batch from decoded records to counts, top to bottom.

The caller (`shared.kafka.partition.StoredOffsets.apply`) opens the transaction, holds the lock on the partition's stored offset,
drops what was applied before, and stores the next offset in the same transaction.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence

import structlog

from services.features import store
from services.features.dead_letters import DeadLetters
from services.features.domain import Rows, by_event_id, by_pair, changes, pair_of, signed_track_keys, windows, without
from shared.codec.plays import AcceptedEvent, decode_plays
from shared.errors import Permanent
from shared.ids import partition_of
from shared.kafka.log import Record, TopicPartition, trace_of
from shared.postgres import Transaction
from shared.telemetry import bound_trace
from shared.topics import PLAYS

log = structlog.get_logger()

_LIMIT_MS = 253_402_300_800_000  # the year 10000


class PlaysHandler:
    """Adds batches of accepted play events to the ledger and to what is derived from it."""

    def __init__(self, dead_letters: DeadLetters) -> None:
        self._dead_letters = dead_letters

    async def __call__(self, tx: Transaction, source: TopicPartition, records: Sequence[Record]) -> None:
        # Decode. A record that is no batch of this partition's plays goes to the dead letters whole; the rest goes on.
        sent: list[AcceptedEvent] = []
        for record in records:
            try:
                sent += read(record)
            except Permanent as refusal:
                await self._dead_letters.send(record, refusal)

        # Leave out what the ledger has: repeats within the batch, then what the neighbours show, then what a key meets.
        events = without_repeats(sent)
        keys = signed_track_keys(event.track_id for event in events)
        new: Rows = by_pair(events, keys)
        old = await store.neighbours(tx, windows(new)) if new else {}
        if known := by_event_id(old):
            events = [event for event in events if event.event_id not in known.get(pair_of(event, keys), ())]
            new = without(new, known)
        if events and (places := await store.insert(tx, events, keys)):
            new = without(new, by_event_id(by_pair((events[place] for place in places), keys)))
            events = [event for place, event in enumerate(events) if place not in places]

        # Count what is new.
        changed = changes(new, old)
        if changed:
            await store.add_to_cells(tx, changed)
        if events:
            await store.add_to_users(tx, Counter((event.tenant_id, event.user_id) for event in events))
        listens: defaultdict[tuple[str, int, int], int] = defaultdict(int)
        for (tenant_id, _, track_key, day), difference in changed.items():
            listens[tenant_id, day, track_key] += difference.listens
        if trending := {key: count for key, count in listens.items() if count}:
            await store.add_to_trending(tx, source.partition, trending)
        if duplicates := len(sent) - len(events):
            await store.add_duplicates(tx, source.partition, duplicates)

        with bound_trace(trace_of(records[0])):
            log.info(
                "plays.counted",
                partition=source.partition,
                offset=records[0].offset,
                records=len(records),
                play_events=len(events),
                duplicates=duplicates,
                cells=len(changed),
            )


def read(record: Record) -> list[AcceptedEvent]:
    """The events of one record. Raises Permanent when it is no batch, or one that may not be counted from this partition."""
    events = decode_plays(record.value or b"")
    texts: set[str | None] = set()
    for tenant_id, user_id in {(event.tenant_id, event.user_id) for event in events}:
        texts |= {tenant_id, user_id}
        # Another partition's transaction may be counting for the same user at this moment.
        if partition_of(tenant_id, user_id, PLAYS.partitions) != record.partition:
            raise Permanent(
                "wrong_partition",
                "A user of this batch belongs to another partition: send it to crc32(tenant|user) modulo 4.",
            )
    if not all(
        0 <= event.started_at_ms < _LIMIT_MS
        and (event.played_ms or 0) < _LIMIT_MS
        and (event.duration_ms or 0) < _LIMIT_MS
        and 0 <= event.received_at_ms < _LIMIT_MS
        for event in events
    ):
        raise Permanent("time_out_of_range", "A time of this batch is before 1970 or after 9999: correct it.")
    texts |= {event.track_id for event in events} | {event.playback_id for event in events}
    if any(text is not None and "\0" in text for text in texts):
        raise Permanent(
            "zero_byte", "An id of this batch has a zero byte, which Postgres cannot keep: send it without."
        )
    return events


def without_repeats(events: list[AcceptedEvent]) -> list[AcceptedEvent]:
    """The first of each event id of a user."""
    if len({event.event_id for event in events}) == len(events):
        return events
    first = {(event.tenant_id, event.user_id, event.event_id): event for event in reversed(events)}
    return [first[key] for key in dict.fromkeys((e.tenant_id, e.user_id, e.event_id) for e in events)]
