"""Group the play events of ONE user and ONE track into plays, and count plays by UTC day. Pure.

Two events belong to one play when they
* start within 2 s of each other, or overlap in time by more than 2 s (one song cannot play twice at once on one
  account: it is the same play by two routes; a loop's passes only touch, so they stay separate plays), or
* share a `playback_id` and start at most 24 h apart (pause and resume).
"Belong together" is transitive, so a set of events has exactly one grouping: order and repeats do not matter.

**How far neighbours reach.** An event covers at most 24 h, so one link spans at most 24 h between two starts. Chains of
links are bounded too: linked events whose starts lie more than 24 h apart (a bot that starts a song every minute for a
week) are no play of anybody's; such a chain is cut at UTC midnights, which are fixed points, so a cut never moves the
cuts beside it. Hence adding or removing an event at `t` changes only plays that lie within 48 h of `t`, and whether
those are chains shows within 72 h:

    group(everything + e) - group(everything)  ==  group(window + e) - group(window)

for any `window` that holds at least the events that start within `NEIGHBOUR_WINDOW_MS` of `e` (both ends included).
For several new events the window is the union of theirs.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

DAY_MS = 86_400_000
NEIGHBOUR_WINDOW_MS = 3 * DAY_MS

_TOLERANCE_MS = 2_000
_LONGEST_EVENT_MS = DAY_MS
_LONGEST_PAUSE_MS = DAY_MS
_LONGEST_PLAY_MS = DAY_MS  # between the first and the last start
_LISTEN_MS = 240_000
_LISTEN_OF_UNKNOWN_DURATION_MS = 30_000


class PlayEventRow(NamedTuple):
    """One ledger row. A pause/resume part carries its own start and the time heard in that part alone."""

    event_id: bytes  # 16 bytes
    started_at_ms: int  # since the epoch, UTC
    played_ms: int | None  # time heard; None: the source does not tell (absent is not 0)
    duration_ms: int | None  # the track's length as the source knows it
    playback_id: str | None  # one per press of play; None: the source has none
    received_at_ms: int


class Play(NamedTuple):
    started_at_ms: int  # the earliest event's
    played_ms: int | None  # None: no event of it tells
    duration_ms: int | None  # the longest that its events tell
    listen: bool
    skip: bool  # heard for a known time that is too short for a listen
    event_ids: tuple[bytes, ...]  # ascending


class Counts(NamedTuple):
    plays: int
    listens: int
    skips: int
    played_ms: int  # known time heard, each play at most its track's length; a play of unknown time adds nothing


def is_listen(played_ms: int | None, duration_ms: int | None) -> bool:
    """Half the track or 240 s; 30 s where its length is unknown. A scrobble tells no time: its source has judged."""
    if played_ms is None:
        return True
    if not duration_ms:
        return played_ms >= _LISTEN_OF_UNKNOWN_DURATION_MS
    return played_ms >= _LISTEN_MS or 2 * played_ms >= duration_ms


def group(events: Sequence[PlayEventRow]) -> list[Play]:
    """Plays by ascending start. O(n log n); one event, by far the most frequent case, takes the short way."""
    if len(events) == 1:
        (event,) = events
        return [_play(event.started_at_ms, event.played_ms, event.duration_ms, (event.event_id,))]
    plays: list[Play] = []
    rows = _distinct(events)
    if not _any_link(rows):
        return [_play(row.started_at_ms, row.played_ms, row.duration_ms, (row.event_id,)) for row in rows]
    for chain in _linked(rows):
        if chain[-1].started_at_ms - chain[0].started_at_ms <= _LONGEST_PLAY_MS:
            plays.append(_fold(chain))
        else:
            plays.extend(_fold(linked) for day in _by_day(chain) for linked in _linked(day))
    plays.sort(key=lambda play: (play.started_at_ms, play.event_ids))
    return plays


def day_counts(plays: Iterable[Play]) -> dict[int, Counts]:
    """Counts by UTC day (days since the epoch). A play belongs whole to the day of its start."""
    days: dict[int, Counts] = {}
    for play in plays:
        day = play.started_at_ms // DAY_MS
        old = days.get(day, _NOTHING)
        heard = play.played_ms or 0
        if play.duration_ms and heard > play.duration_ms:
            heard = play.duration_ms
        days[day] = Counts(
            old.plays + 1,
            old.listens + play.listen,
            old.skips + play.skip,
            old.played_ms + heard,
        )
    return days


_NOTHING = Counts(0, 0, 0, 0)


def _play(started_at_ms: int, played_ms: int | None, duration_ms: int | None, event_ids: tuple[bytes, ...]) -> Play:
    listen = is_listen(played_ms, duration_ms)
    return Play(started_at_ms, played_ms, duration_ms, listen, not listen, event_ids)


def _distinct(events: Iterable[PlayEventRow]) -> list[PlayEventRow]:
    """Each event_id once, by ascending start. Should an id ever stand for two contents, the first received wins."""
    by_id: dict[bytes, PlayEventRow] = {}
    for event in events:
        known = by_id.setdefault(event.event_id, event)
        if known != event and _precedence(event) < _precedence(known):
            by_id[event.event_id] = event
    return sorted(by_id.values(), key=lambda event: (event.started_at_ms, event.event_id))


def _precedence(event: PlayEventRow) -> tuple[int, int, int, int, str]:
    played = -1 if event.played_ms is None else event.played_ms
    duration = -1 if event.duration_ms is None else event.duration_ms
    return (event.received_at_ms, event.started_at_ms, played, duration, event.playback_id or "")


def _reach_ms(event: PlayEventRow) -> int:
    """An event that starts before this instant (and not before this event) is the same play."""
    length = event.played_ms if event.played_ms is not None else event.duration_ms
    if length is None:
        length = _LISTEN_OF_UNKNOWN_DURATION_MS  # two listens cannot start closer than that
    return event.started_at_ms + max(min(length, _LONGEST_EVENT_MS) - _TOLERANCE_MS, _TOLERANCE_MS)


def _any_link(rows: list[PlayEventRow]) -> bool:
    """Cheaper than `_linked`, and most often False: plays of one track are hours apart."""
    reach = rows[0].started_at_ms if rows else 0
    parts: set[str] = set()
    for row in rows:
        if row.started_at_ms < reach or row.playback_id in parts:
            return True
        reach = _reach_ms(row)
        if row.playback_id:
            parts.add(row.playback_id)
    return False


def _linked(rows: list[PlayEventRow]) -> list[list[PlayEventRow]]:
    """Connected sets of rows; rows ascend by start, in and out. One sweep, with union-find for the playback ids."""
    parent = list(range(len(rows)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    last_part: dict[str, int] = {}
    reach = 0
    for index, row in enumerate(rows):
        if index and row.started_at_ms < reach:
            parent[index] = root(index - 1)  # the row before lies in the same run of overlaps, whoever reaches so far
            reach = max(reach, _reach_ms(row))
        else:
            reach = _reach_ms(row)
        if row.playback_id:
            before = last_part.get(row.playback_id)
            if before is not None and row.started_at_ms - rows[before].started_at_ms <= _LONGEST_PAUSE_MS:
                parent[root(index)] = root(before)
            last_part[row.playback_id] = index
    sets: dict[int, list[PlayEventRow]] = {}
    for index, row in enumerate(rows):
        sets.setdefault(root(index), []).append(row)
    return list(sets.values())


def _by_day(rows: list[PlayEventRow]) -> list[list[PlayEventRow]]:
    days: dict[int, list[PlayEventRow]] = {}
    for row in rows:
        days.setdefault(row.started_at_ms // DAY_MS, []).append(row)
    return list(days.values())


def _fold(rows: list[PlayEventRow]) -> Play:
    """One play of linked rows (ascending by start)."""
    if len(rows) == 1:
        (row,) = rows
        return _play(row.started_at_ms, row.played_ms, row.duration_ms, (row.event_id,))
    durations = [row.duration_ms for row in rows if row.duration_ms is not None]
    return _play(
        rows[0].started_at_ms,
        _played_ms(rows),
        max(durations) if durations else None,
        tuple(sorted(row.event_id for row in rows)),
    )


def _played_ms(rows: list[PlayEventRow]) -> int | None:
    """Parts of one playback add up; another route that tells the same play does not add, the longest report counts.

    Reports of one playback that overlap each other are one part told twice (a bridge that sends its backlog again).
    """
    routes: dict[str, list[PlayEventRow]] = {}
    told = [row.played_ms for row in rows if row.played_ms is not None and not row.playback_id]
    for row in rows:
        if row.playback_id and row.played_ms is not None:
            routes.setdefault(row.playback_id, []).append(row)
    for parts in routes.values():
        total = longest = reach = 0
        for part in parts:
            played = part.played_ms or 0
            if part.started_at_ms < reach:
                longest = max(longest, played)
                reach = max(reach, _reach_ms(part))
            else:
                total += longest
                longest = played
                reach = _reach_ms(part)
        told.append(total + longest)
    return max(told) if told else None
