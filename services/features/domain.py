"""What a batch of new play events changes in the counts. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from shared.codec.plays import AcceptedEvent
from shared.ids import to_signed, track_key
from shared.plays.grouping import NEIGHBOUR_WINDOW_MS, Counts, PlayEventRow, day_counts, group

Pair: TypeAlias = tuple[str, str, int]
"""(tenant_id, user_id, track_key): one listener and one track; the key as Postgres holds it, signed."""
Cell: TypeAlias = tuple[str, str, int, int]
"""A pair, and days since 1970-01-01 (UTC)."""
Rows: TypeAlias = Mapping[Pair, list[PlayEventRow]]


class Window(NamedTuple):
    """The stretch of a pair's time (both ends included) whose events may be one play with the new ones."""

    pair: Pair
    from_ms: int
    to_ms: int


class Said(NamedTuple):
    """What a listener said of a target: one row of the table feedback, in its column order."""

    tenant_id: str
    user_id: str
    target_type: int
    target_id: str
    kind: int
    given_at_us: int
    event_id: bytes
    received_at_ms: int | None


_NOTHING = Counts(0, 0, 0, 0)
_EVENT_ID = AcceptedEvent._fields.index("event_id")  # from here on, an accepted event's fields are a ledger row's


def signed_track_keys(track_ids: Iterable[str]) -> dict[str, int]:
    """Each track id's key as Postgres holds it."""
    return {track_id: to_signed(track_key(track_id)) for track_id in set(track_ids)}


def pair_of(event: AcceptedEvent, keys: Mapping[str, int]) -> Pair:
    return event.tenant_id, event.user_id, keys[event.track_id]


def by_pair(events: Iterable[AcceptedEvent], keys: Mapping[str, int]) -> dict[Pair, list[PlayEventRow]]:
    """The events as ledger rows, by listener and track."""
    pairs: defaultdict[Pair, list[PlayEventRow]] = defaultdict(list)
    row_of = PlayEventRow._make
    for event in events:
        pairs[event[0], event[1], keys[event[2]]].append(row_of(event[_EVENT_ID:]))
    return pairs


def by_event_id(rows: Rows) -> dict[Pair, set[bytes]]:
    return {pair: {row.event_id for row in own} for pair, own in rows.items()}


def without(rows: Rows, known: Mapping[Pair, set[bytes]]) -> Rows:
    """Leave out the rows with these event ids, and pairs that have none left."""
    left = {pair: own for pair, own in rows.items() if pair not in known}
    for pair, event_ids in known.items():
        if own := [row for row in rows.get(pair, ()) if row.event_id not in event_ids]:
            left[pair] = own
    return left


def windows(pairs: Rows) -> list[Window]:
    """Where to look for neighbours of new events: windows that overlap are one, so that no row is met twice."""
    found: list[Window] = []
    for pair, rows in pairs.items():
        if len(rows) == 1:
            start = rows[0].started_at_ms
            found.append(Window(pair, start - NEIGHBOUR_WINDOW_MS, start + NEIGHBOUR_WINDOW_MS))
            continue
        starts = sorted(map(attrgetter("started_at_ms"), rows))
        first = last = starts[0]
        for start in starts:
            if start - last > 2 * NEIGHBOUR_WINDOW_MS:
                found.append(Window(pair, first - NEIGHBOUR_WINDOW_MS, last + NEIGHBOUR_WINDOW_MS))
                first = start
            last = start
        found.append(Window(pair, first - NEIGHBOUR_WINDOW_MS, last + NEIGHBOUR_WINDOW_MS))
    return found


def changes(new: Rows, neighbours: Mapping[Pair, Sequence[PlayEventRow]]) -> dict[Cell, Counts]:
    """What the new events add to each cell's counts, by difference: derived with them minus derived without.

    `neighbours` holds what was in the ledger before, within `windows(new)`. Cells that do not change are left out;
    a count falls where a new event joins two plays into one.
    """
    changed: dict[Cell, Counts] = {}
    for pair, rows in new.items():
        old = neighbours.get(pair)
        after = day_counts(group([*old, *rows] if old else rows))
        before = day_counts(group(old)) if old else {}
        for day in after.keys() | before.keys() if before else after:
            counts = after.get(day, _NOTHING)
            if day in before:
                counts = Counts(*map(int.__sub__, counts, before[day]))
            if any(counts):
                changed[*pair, day] = counts
    return changed
