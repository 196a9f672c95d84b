"""What a batch of new play events changes in the counts. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from shared.codec.plays import AcceptedEvent
from shared.ids import to_signed, track_key
from shared.plays.grouping import NEIGHBOUR_WINDOW_MS, Counts, PlayEventRow, day_counts, group


class Pair(NamedTuple):
    """One listener and one track; the key as Postgres holds it, signed."""

    tenant_id: str
    user_id: str
    track_key: int


class Window(NamedTuple):
    """The stretch of a pair's time (both ends included) whose events may be one play with the new ones."""

    pair: Pair
    from_ms: int
    to_ms: int


class Cell(NamedTuple):
    pair: Pair
    day: int
    """Days since 1970-01-01, UTC."""


_NOTHING = Counts(0, 0, 0, 0)


def signed_track_keys(track_ids: Iterable[str]) -> dict[str, int]:
    """Each track id's key as Postgres holds it."""
    return {track_id: to_signed(track_key(track_id)) for track_id in set(track_ids)}


def by_pair(events: Iterable[AcceptedEvent], keys: Mapping[str, int]) -> dict[Pair, list[PlayEventRow]]:
    """The events as ledger rows, by listener and track."""
    pairs: defaultdict[Pair, list[PlayEventRow]] = defaultdict(list)
    for tenant_id, user_id, track_id, event_id, started, played, duration, playback_id, received in events:
        row = PlayEventRow(event_id, started, played, duration, playback_id, received)
        pairs[Pair(tenant_id, user_id, keys[track_id])].append(row)
    return pairs


def windows(pairs: Mapping[Pair, Sequence[PlayEventRow]]) -> list[Window]:
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


def changes(
    new: Mapping[Pair, Sequence[PlayEventRow]], neighbours: Mapping[Pair, Sequence[PlayEventRow]]
) -> dict[Cell, Counts]:
    """What the new events add to each cell's counts, by difference: derived with them minus derived without.

    `neighbours` holds what was in the ledger before, within `windows(new)`. Cells that do not change are left out;
    a count falls where a new event joins two plays into one.
    """
    changed: dict[Cell, Counts] = {}
    for pair, rows in new.items():
        old = neighbours.get(pair)
        after = day_counts(group([*old, *rows] if old else rows))
        if not old:
            for day, counts in after.items():
                changed[Cell(pair, day)] = counts
            continue
        before = day_counts(group(old))
        for day in after.keys() | before.keys():
            difference = Counts(*map(int.__sub__, after.get(day, _NOTHING), before.get(day, _NOTHING)))
            if any(difference):
                changed[Cell(pair, day)] = difference
    return changed
