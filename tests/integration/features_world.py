"""What the tests of features share: events that are hard to count, a plain recount of them, and records made of them."""

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence

from services.features.source import Delivered
from shared.codec.plays import AcceptedEvent, encode_plays
from shared.ids import partition_of, to_signed, track_key
from shared.plays.grouping import Counts, PlayEventRow, day_counts, group
from shared.topics import PLAYS

DAY_MS = 86_400_000
NEW_YEAR_MS = 1_798_761_600_000  # 2027-01-01T00:00:00Z


def hard_events(
    seed: int, count: int, *, tenants: Sequence[str] = ("aurora", "birch"), users: int = 4, tracks: int = 3
) -> list[AcceptedEvent]:
    """Few users and tracks, times that crowd around midnights, parts, overlaps, unknown lengths, two routes."""
    rng = random.Random(seed)
    events = []
    for _ in range(count):
        start = NEW_YEAR_MS + rng.randrange(5) * DAY_MS + int(rng.gauss(0, 3_600_000))
        events.append(
            AcceptedEvent(
                rng.choice(tenants),
                f"user-{rng.randrange(users)}",
                f"track-{rng.randrange(tracks)}",
                rng.randbytes(16),
                start,
                rng.choice([None, 0, 5_000, 100_000, 200_000, 7_200_000]),
                rng.choice([None, 180_000, 240_000]),
                rng.choice([None, None, f"playback-{rng.randrange(10)}"]),
                start + rng.randrange(100_000),
            )
        )
    return events


def records_of(
    events: Sequence[AcceptedEvent], *, size: int = 20, first: dict[int, int] | None = None
) -> list[Delivered]:
    """The events, in this order, as records of their partitions. `first` holds each partition's next offset, and moves it."""
    offsets = {} if first is None else first
    partitions: defaultdict[int, list[AcceptedEvent]] = defaultdict(list)
    for event in events:
        partitions[partition_of(event.tenant_id, event.user_id, PLAYS.partitions)].append(event)
    records = []
    for partition, own in partitions.items():
        for place in range(0, len(own), size):
            offset = offsets.get(partition, 0)
            offsets[partition] = offset + 1
            records.append(
                Delivered(PLAYS.name, partition, offset, 0, None, encode_plays(own[place : place + size]), ())
            )
    return records


def recount(events: Iterable[AcceptedEvent]) -> dict[tuple[str, str, int, int], Counts]:
    """(tenant_id, user_id, signed track key, day) → counts, from nothing but the events."""
    rows: defaultdict[tuple[str, str, str], list[PlayEventRow]] = defaultdict(list)
    for event in {(event.tenant_id, event.user_id, event.event_id): event for event in events}.values():
        rows[event.tenant_id, event.user_id, event.track_id].append(PlayEventRow(*event[3:]))
    return {
        (tenant_id, user_id, to_signed(track_key(track_id)), day): counts
        for (tenant_id, user_id, track_id), own in rows.items()
        for day, counts in day_counts(group(own)).items()
    }
