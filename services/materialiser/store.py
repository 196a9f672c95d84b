"""Due instants, leases and the lists themselves in Postgres.

A batch goes through here in this order: `claim` → `unpublished` (lists an earlier worker stored and did not publish) →
`recommended` → `store` → publish → `finish`. Every write names the lease's epoch, so a worker that lost its lease writes
nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime

from shared.postgres import Database

LEASE_S = 20
"""How long a worker may take for a batch before another may take it over; batches take a second or two."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to make one user's list, until another epoch."""

    user_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class MadeList:
    """A list as it is stored and published. `message` is the DailyPlaylist's bytes; `track_keys` are signed."""

    user_id: str
    playlist_date: date
    version: int
    message: bytes
    track_keys: list[int]
    fallback: int
    trace_id: str


@dataclass(frozen=True, slots=True)
class Counts:
    """What the operator is told; `dates` are (playlist date, lists, fallbacks), newest first."""

    users: int
    due: int
    dates: list[tuple[date, int, int]]


CLAIM = """
WITH picked AS (
    SELECT user_id FROM due
    WHERE tenant_id = $1 AND due_at <= $2 AND lease_until < clock_timestamp()
    ORDER BY due_at, user_id LIMIT $3 FOR UPDATE SKIP LOCKED
)
UPDATE due SET lease_until = clock_timestamp() + $4 * interval '1 second', epoch = epoch + 1
FROM picked WHERE due.tenant_id = $1 AND due.user_id = picked.user_id
RETURNING due.user_id, due.epoch
"""

ADD_USERS = """
INSERT INTO due (tenant_id, user_id, due_at)
SELECT $1, user_id, $3 FROM unnest($2::text[]) AS user_id ORDER BY user_id
ON CONFLICT DO NOTHING
"""

# A list that exists already was made by a worker that died: its bytes are published, not new ones.
STORED = """
SELECT list.user_id, list.playlist_date, list.version, list.message, list.track_keys, list.fallback, list.trace_id
FROM daily_list AS list JOIN unnest($2::text[], $3::date[]) AS wanted (user_id, playlist_date)
  ON list.tenant_id = $1 AND list.user_id = wanted.user_id AND list.playlist_date = wanted.playlist_date
"""

STORE = """
INSERT INTO daily_list (tenant_id, user_id, playlist_date, version, message, track_keys, fallback, trace_id)
SELECT $1, made.user_id, made.playlist_date, made.version, made.message,
       string_to_array(made.track_keys, ',')::bigint[], made.fallback, made.trace_id
FROM unnest($2::text[], $3::date[], $4::integer[], $5::bytea[], $6::text[], $7::integer[], $8::text[], $9::bigint[])
  AS made (user_id, playlist_date, version, message, track_keys, fallback, trace_id, epoch)
JOIN due ON due.tenant_id = $1 AND due.user_id = made.user_id AND due.epoch = made.epoch
ORDER BY made.user_id
ON CONFLICT DO NOTHING
"""

PUBLISHED = """
UPDATE daily_list AS list SET published = true
FROM unnest($2::text[], $3::date[]) AS done (user_id, playlist_date)
WHERE list.tenant_id = $1 AND list.user_id = done.user_id AND list.playlist_date = done.playlist_date
"""

ADVANCE = """
UPDATE due SET due_at = done.due_at, lease_until = '-infinity'
FROM unnest($2::text[], $3::timestamptz[], $4::bigint[]) AS done (user_id, due_at, epoch)
WHERE due.tenant_id = $1 AND due.user_id = done.user_id AND due.epoch = done.epoch
"""

RECOMMENDED = """
SELECT user_id, max(playlist_date) AS playlist_date, track_key
FROM daily_list, unnest(track_keys) AS track_key
WHERE tenant_id = $1 AND user_id = ANY($2) AND playlist_date >= $3
GROUP BY user_id, track_key ORDER BY user_id, track_key
"""

COUNTS = """
SELECT count(*) AS users, count(*) FILTER (WHERE due_at <= $2) AS due FROM due WHERE tenant_id = $1
"""

DATES = """
SELECT playlist_date, count(*) AS lists, count(*) FILTER (WHERE fallback <> 0) AS fallbacks FROM daily_list
WHERE tenant_id = $1 AND published GROUP BY playlist_date ORDER BY playlist_date DESC LIMIT 14
"""


class Store:
    """One tenant's rows at a time; `now` is the services' clock."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def add_users(self, tenant_id: str, user_ids: Sequence[str], now: datetime) -> None:
        """Users not seen before are due now; the others stay as they are."""
        await self._db.execute(ADD_USERS, tenant_id, list(user_ids), now)

    async def due_again(self, tenant_id: str, user_id: str, now: datetime) -> None:
        """A changed zone may begin a new day: look at the user now."""
        await self._db.execute(
            "UPDATE due SET due_at = least(due_at, $3) WHERE tenant_id = $1 AND user_id = $2", tenant_id, user_id, now
        )

    async def claim(self, tenant_id: str, now: datetime, limit: int) -> list[Lease]:
        rows = await self._db.fetch(CLAIM, tenant_id, now, limit, LEASE_S)
        return sorted((Lease(row["user_id"], row["epoch"]) for row in rows), key=lambda lease: lease.user_id)

    async def stored(self, tenant_id: str, dates: dict[str, date]) -> dict[str, MadeList]:
        """The lists that exist already for these users' dates."""
        rows = await self._db.fetch(STORED, tenant_id, list(dates), list(dates.values()))
        return {row["user_id"]: MadeList(**dict(row)) for row in rows}

    async def recommended(
        self, tenant_id: str, user_ids: Sequence[str], since: date
    ) -> dict[str, list[tuple[int, date]]]:
        """What was recommended to each user from `since` on: (signed track key, newest playlist date)."""
        found: dict[str, list[tuple[int, date]]] = {user_id: [] for user_id in user_ids}
        for row in await self._db.fetch(RECOMMENDED, tenant_id, list(user_ids), since):
            found[row["user_id"]].append((row["track_key"], row["playlist_date"]))
        return found

    async def store(self, tenant_id: str, lists: Sequence[MadeList], epochs: dict[str, int]) -> None:
        """Keep the bytes unpublished. Where a list of the date exists, or the lease is lost, nothing is written."""
        await self._db.execute(
            STORE,
            tenant_id,
            [made.user_id for made in lists],
            [made.playlist_date for made in lists],
            [made.version for made in lists],
            [made.message for made in lists],
            [",".join(map(str, made.track_keys)) for made in lists],
            [made.fallback for made in lists],
            [made.trace_id for made in lists],
            [epochs[made.user_id] for made in lists],
        )

    async def finish(
        self, tenant_id: str, dates: dict[str, date], due: dict[str, datetime], epochs: dict[str, int]
    ) -> None:
        """After the acknowledgement: mark the lists of `dates` published and move the users' due instants, in one step."""
        users = sorted(due)
        async with self._db.transaction() as tx:
            await tx.execute(PUBLISHED, tenant_id, list(dates), list(dates.values()))
            await tx.execute(ADVANCE, tenant_id, users, [due[user] for user in users], [epochs[user] for user in users])

    async def counts(self, tenant_id: str, now: datetime) -> Counts:
        row = await self._db.fetchrow(COUNTS, tenant_id, now)
        dates = await self._db.fetch(DATES, tenant_id)
        return Counts(row["users"], row["due"], [(d["playlist_date"], d["lists"], d["fallbacks"]) for d in dates])
