"""The ledger and what is derived from it, in Postgres: writes. Each function is one statement of the caller's transaction.

The caller holds the lock on the stored offset of the partition, and a user's events are all in one partition: so nobody else
writes the rows of the same users at the same time. In the table users, plays and feedback of one user may meet: both take
its rows in key order.
"""

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter

from services.features.domain import Cell, Pair, Said, Window
from shared.codec.plays import AcceptedEvent
from shared.plays.grouping import Counts, PlayEventRow
from shared.postgres import Transaction

_STATEMENT_S = 30.0

# OFFSET 0 keeps each look-up an index probe, whatever the planner believes of a table that was empty a minute ago.
_NEIGHBOURS = """
SELECT w.place, l.event_id, l.started_at_ms, l.played_ms, l.duration_ms, l.playback_id, l.received_at_ms
FROM unnest($1::text[], $2::text[], $3::text::bigint[], $4::text::bigint[], $5::text::bigint[])
    WITH ORDINALITY AS w (tenant_id, user_id, track_key, from_ms, to_ms, place)
CROSS JOIN LATERAL (
    SELECT * FROM ledger
    WHERE tenant_id = w.tenant_id AND user_id = w.user_id AND track_key = w.track_key
        AND started_at_ms BETWEEN w.from_ms AND w.to_ms
    OFFSET 0
) AS l
"""

_INSERT = """
INSERT INTO ledger (tenant_id, user_id, event_id, track_key, track_id, started_at_ms, played_ms, duration_ms, playback_id,
    received_at_ms)
SELECT * FROM unnest($1::text[], $2::text[], $3::bytea[], $4::text::bigint[], $5::text[], $6::text::bigint[],
    $7::text::bigint[], $8::text::bigint[], $9::text[], $10::text::bigint[])
ON CONFLICT DO NOTHING
"""

_OTHERWISE_KNOWN = """
SELECT e.place - 1 AS place
FROM unnest($1::text[], $2::text[], $3::bytea[], $4::text::bigint[], $5::text::bigint[])
    WITH ORDINALITY AS e (tenant_id, user_id, event_id, track_key, started_at_ms, place)
WHERE EXISTS (
    SELECT FROM ledger AS l
    WHERE l.tenant_id = e.tenant_id AND l.user_id = e.user_id AND l.event_id = e.event_id
        AND (l.track_key <> e.track_key OR l.started_at_ms <> e.started_at_ms)
    OFFSET 0
)
"""

_ADD_TO_CELLS = """
INSERT INTO cells AS c (tenant_id, user_id, track_key, day, plays, listens, skips, played_ms)
SELECT * FROM unnest($1::text[], $2::text[], $3::text::bigint[], $4::text::int[], $5::text::int[], $6::text::int[],
    $7::text::int[], $8::text::bigint[])
ON CONFLICT (tenant_id, user_id, track_key, day) DO UPDATE SET
    plays = c.plays + excluded.plays,
    listens = c.listens + excluded.listens,
    skips = c.skips + excluded.skips,
    played_ms = c.played_ms + excluded.played_ms
"""

_DELETE_EMPTIED = """
DELETE FROM cells AS c
USING unnest($1::text[], $2::text[], $3::text::bigint[], $4::text::int[]) AS e (tenant_id, user_id, track_key, day)
WHERE c.tenant_id = e.tenant_id AND c.user_id = e.user_id AND c.track_key = e.track_key AND c.day = e.day AND c.plays = 0
"""

_ADD_TO_USERS = """
INSERT INTO users AS u (tenant_id, user_id, play_events)
SELECT * FROM unnest($1::text[], $2::text[], $3::text::bigint[])
ON CONFLICT (tenant_id, user_id) DO UPDATE SET play_events = u.play_events + excluded.play_events
"""

_ADD_TO_TRENDING = """
INSERT INTO trending AS t (tenant_id, day, track_key, partition, listens)
SELECT tenant_id, day, track_key, $5, listens
FROM unnest($1::text[], $2::text::int[], $3::text::bigint[], $4::text::bigint[]) AS e (tenant_id, day, track_key, listens)
ON CONFLICT (tenant_id, day, track_key, partition) DO UPDATE SET listens = t.listens + excluded.listens
"""

_ADD_DUPLICATES = """
INSERT INTO duplicates AS d (partition, play_events) VALUES ($1, $2)
ON CONFLICT (partition) DO UPDATE SET play_events = d.play_events + excluded.play_events
"""


def _ints(values: Iterable[int | None]) -> str:
    """An integer array as Postgres writes it: asyncpg takes five times as long over a list of integers as over text."""
    return f"{{{str(list(values))[1:-1]}}}".replace("None", "NULL")


async def neighbours(tx: Transaction, windows: Sequence[Window]) -> dict[Pair, list[PlayEventRow]]:
    """What the ledger holds in each window; a pair without any is left out."""
    pairs, from_ms, to_ms = zip(*windows, strict=True)
    tenants, users, tracks = zip(*pairs, strict=True)
    rows = await tx.fetch(
        _NEIGHBOURS, tenants, users, _ints(tracks), _ints(from_ms), _ints(to_ms), timeout_s=_STATEMENT_S
    )
    found: dict[Pair, list[PlayEventRow]] = {}
    for row in rows:
        place, *event = row
        found.setdefault(windows[place - 1].pair, []).append(PlayEventRow(*event))
    return found


async def insert(tx: Transaction, events: Sequence[AcceptedEvent], keys: Mapping[str, int]) -> set[int]:
    """Add events to the ledger; returns the places of those that it already holds with another track or start."""
    tenants, users, tracks, event_ids, started, played, durations, playback_ids, received = zip(*events, strict=True)
    track_keys, starts = _ints(map(keys.__getitem__, tracks)), _ints(started)
    tag = await tx.execute(
        _INSERT,
        tenants,
        users,
        event_ids,
        track_keys,
        tracks,
        starts,
        _ints(played),
        _ints(durations),
        playback_ids,
        _ints(received),
        timeout_s=_STATEMENT_S,
    )
    if int(tag.rpartition(" ")[2]) == len(events):
        return set()
    rows = await tx.fetch(_OTHERWISE_KNOWN, tenants, users, event_ids, track_keys, starts, timeout_s=_STATEMENT_S)
    return {row["place"] for row in rows}


async def add_to_cells(tx: Transaction, changes: Mapping[Cell, Counts]) -> None:
    """Add differences to the counts, in key order. A cell that has no play left is deleted."""
    ordered = sorted(changes.items())
    cells, counts = zip(*ordered, strict=True)
    tenants, users, tracks, days = zip(*cells, strict=True)
    numbers = (tracks, days, *zip(*counts, strict=True))
    await tx.execute(_ADD_TO_CELLS, tenants, users, *map(_ints, numbers), timeout_s=_STATEMENT_S)
    if lessened := [cell for cell, difference in ordered if difference.plays < 0]:
        tenants, users, tracks, days = zip(*lessened, strict=True)
        await tx.execute(_DELETE_EMPTIED, tenants, users, _ints(tracks), _ints(days))


async def add_to_users(tx: Transaction, events: Mapping[tuple[str, str], int]) -> None:
    """Count the ledger's rows of each (tenant, user); 0 makes the user known."""
    users, counts = zip(*sorted(events.items()), strict=True)
    await tx.execute(_ADD_TO_USERS, *zip(*users, strict=True), _ints(counts), timeout_s=_STATEMENT_S)


async def add_to_trending(tx: Transaction, partition: int, listens: Mapping[tuple[str, int, int], int]) -> None:
    """Add listens of (tenant, day, track key)."""
    keys, counts = zip(*sorted(listens.items()), strict=True)
    tenants, days, tracks = zip(*keys, strict=True)
    await tx.execute(
        _ADD_TO_TRENDING, tenants, _ints(days), _ints(tracks), _ints(counts), partition, timeout_s=_STATEMENT_S
    )


async def add_duplicates(tx: Transaction, partition: int, play_events: int) -> None:
    await tx.execute(_ADD_DUPLICATES, partition, play_events)


_PUT_FEEDBACK = """
INSERT INTO feedback AS f (tenant_id, user_id, target_type, target_id, kind, given_at_us, event_id, received_at_ms)
SELECT * FROM unnest($1::text[], $2::text[], $3::text::smallint[], $4::text[], $5::text::smallint[], $6::text::bigint[],
    $7::bytea[], $8::text::bigint[])
ON CONFLICT (tenant_id, user_id, target_type, target_id) DO UPDATE SET
    kind = excluded.kind,
    given_at_us = excluded.given_at_us,
    event_id = excluded.event_id,
    received_at_ms = excluded.received_at_ms
WHERE (excluded.given_at_us, excluded.event_id) > (f.given_at_us, f.event_id)
"""


async def put_feedback(tx: Transaction, said: Iterable[Said]) -> int:
    """Keep each where it is newer than what is there; returns how many were. At most one per target."""
    tenants, users, types, targets, kinds, given, event_ids, received = zip(
        *sorted(said, key=itemgetter(slice(4))), strict=True
    )
    tag = await tx.execute(
        _PUT_FEEDBACK, tenants, users, _ints(types), targets, _ints(kinds), _ints(given), event_ids, _ints(received)
    )
    return int(tag.rpartition(" ")[2])
