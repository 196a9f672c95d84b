"""What features is asked, in Postgres: reads. Rows come as packed columns: 512 users are over 100,000 rows."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shared.postgres import Database

TRENDING_DAYS = 7

# One sorted pass over the covering index; array_send packs a whole column into one value.
_HISTORIES = """
SELECT array_send(array_agg(place)), array_send(array_agg(track_key)), array_send(array_agg(plays)),
    array_send(array_agg(listens)), array_send(array_agg(skips)), array_send(array_agg(last_day))
FROM (
    SELECT u.place::int AS place, c.*
    FROM unnest($2::text[]) WITH ORDINALITY AS u (user_id, place)
    CROSS JOIN LATERAL (
        SELECT track_key, sum(plays)::int AS plays, sum(listens)::int AS listens, sum(skips)::int AS skips, max(day) AS last_day
        FROM cells WHERE tenant_id = $1 AND user_id = u.user_id
        GROUP BY track_key
    ) AS c
) AS rows
"""

_FEEDBACK = """
SELECT u.place::int - 1 AS place, f.kind, f.target_type, f.target_id
FROM unnest($2::text[]) WITH ORDINALITY AS u (user_id, place)
CROSS JOIN LATERAL (
    SELECT * FROM feedback WHERE tenant_id = $1 AND user_id = u.user_id AND kind <> $3 OFFSET 0
) AS f
ORDER BY u.place, f.kind, f.target_type, f.target_id
"""

_USERS = "SELECT user_id FROM users WHERE tenant_id = $1 AND user_id > $2 ORDER BY user_id LIMIT $3"

# The newest days that have any listen, one index step each, then their sums.
_TRENDING = """
WITH RECURSIVE days (day, n) AS (
    SELECT max(day), 1 FROM trending WHERE tenant_id = $1 AND listens > 0
    UNION ALL
    SELECT (SELECT max(t.day) FROM trending AS t WHERE t.tenant_id = $1 AND t.day < d.day AND t.listens > 0), n + 1
    FROM days AS d WHERE n < $2 AND d.day IS NOT NULL
)
SELECT track_key, sum(listens)::bigint AS listens
FROM trending WHERE tenant_id = $1 AND day IN (SELECT day FROM days WHERE day IS NOT NULL) AND listens > 0
GROUP BY track_key
ORDER BY listens DESC, track_key < 0, track_key
LIMIT $3
"""

_COUNTS = """
SELECT coalesce(sum(play_events), 0)::bigint AS play_events, count(*) FILTER (WHERE play_events > 0) AS users,
    (SELECT coalesce(sum(d.play_events), 0)::bigint FROM duplicates AS d) AS duplicates
FROM users WHERE tenant_id = $1
"""


class Histories(NamedTuple):
    """Users' tracks: user u owns rows splits[u] to splits[u+1], in unsigned track_key order."""

    splits: NDArray[np.int64]
    track_key: NDArray[np.uint64]
    plays: NDArray[np.uint32]
    listens: NDArray[np.uint32]
    skips: NDArray[np.uint32]
    last_played_day: NDArray[np.int32]


async def histories(db: Database, tenant_id: str, user_ids: Sequence[str], *, timeout_s: float) -> Histories:
    row = await db.fetchrow(_HISTORIES, tenant_id, list(user_ids), timeout_s=timeout_s)
    place, track_key, plays, listens, skips, last_day = (_elements(value) for value in row or [None] * 6)
    keys = track_key.astype(np.int64).view(np.uint64)
    order = np.lexsort((keys, place))
    splits = np.zeros(len(user_ids) + 1, np.int64)
    np.cumsum(np.bincount(place - 1, minlength=len(user_ids)), out=splits[1:])
    return Histories(
        splits,
        keys[order],
        plays[order].astype(np.uint32),
        listens[order].astype(np.uint32),
        skips[order].astype(np.uint32),
        last_day[order].astype(np.int32),
    )


def _elements(sent: bytes | None) -> NDArray[Any]:
    """The elements of a one-dimensional integer array without nulls, in Postgres's binary form (array_send)."""
    if sent is None:
        return np.zeros(0, np.int64)
    # Header: dimensions, has-nulls, element type, length, lower bound; then each element behind its own size.
    size = int.from_bytes(sent[20:24], "big")
    elements = np.frombuffer(sent, np.dtype([("size", ">i4"), ("value", f">i{size}")]), offset=20)
    return elements["value"].astype(np.int64)


class HeldFeedback(NamedTuple):
    place: int
    """The user's place in the request, from 0."""
    kind: int
    target_type: int
    target_id: str


async def feedback(
    db: Database, tenant_id: str, user_ids: Sequence[str], *, undo: int, timeout_s: float
) -> list[HeldFeedback]:
    """What holds now, in user, kind and target order; rows of kind `undo` hold nothing."""
    rows = await db.fetch(_FEEDBACK, tenant_id, list(user_ids), undo, timeout_s=timeout_s)
    return [HeldFeedback(*row) for row in rows]


async def users(db: Database, tenant_id: str, after: str, limit: int, *, timeout_s: float) -> list[str]:
    return [row["user_id"] for row in await db.fetch(_USERS, tenant_id, after, limit, timeout_s=timeout_s)]


async def trending(
    db: Database, tenant_id: str, limit: int, *, timeout_s: float
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Track keys and their listens, most first, ties by (unsigned) key."""
    rows = await db.fetch(_TRENDING, tenant_id, TRENDING_DAYS, limit, timeout_s=timeout_s)
    keys = np.array([row["track_key"] for row in rows], np.int64).view(np.uint64)
    return keys, np.array([row["listens"] for row in rows], np.int64)


class LedgerCounts(NamedTuple):
    play_events: int
    duplicates: int
    users: int


async def ledger_counts(db: Database, tenant_id: str, *, timeout_s: float) -> LedgerCounts:
    row = await db.fetchrow(_COUNTS, tenant_id, timeout_s=timeout_s)
    return LedgerCounts(row["play_events"], row["duplicates"], row["users"]) if row else LedgerCounts(0, 0, 0)
