"""Due instants, leases and the lists themselves in Postgres.

A batch goes through here in this order: `claim` → `stored` (lists that are there already) → `recommended` → `store` →
publish → `finish`. Every write names the lease's epoch, so a worker that lost its lease writes nothing; only that a list was
published is true whoever published it. `purge` goes beside it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime

from services.materialiser.domain import Kept
from shared.postgres import Database

LEASE_S = 20.0
"""A lease that its worker did not renew for so long goes to the next one that asks."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to make one user's list, until another epoch; `zone` is the IANA name of the user's zone."""

    user_id: str
    zone: str
    epoch: int


@dataclass(frozen=True, slots=True)
class MadeList:
    """A list as it is stored and published. `message` is the DailyPlaylist's bytes; `track_keys` are signed.

    `inputs` (inputs.py) is what it was made of: None of a list that was read back, whose inputs stay where they are.
    """

    user_id: str
    playlist_date: date
    version: int
    message: bytes
    track_keys: list[int]
    fallback: int
    trace_id: str
    published: bool = False
    inputs: bytes | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    """What the operator is told; `dates` are (playlist date, lists, fallbacks), newest first."""

    users: int
    due: int
    dates: list[tuple[date, int, int]]


# A user not seen before is due now; so is one whose zone changed, since it may have begun another day.
WATCH = """
INSERT INTO due (tenant_id, user_id, zone, due_at)
SELECT $1, user_id, zone, $4 FROM unnest($2::text[], $3::text[]) AS seen (user_id, zone) ORDER BY user_id
ON CONFLICT (tenant_id, user_id) DO UPDATE
SET zone = excluded.zone, due_at = least(due.due_at, excluded.due_at) WHERE due.zone <> excluded.zone
"""

CLAIM = """
WITH picked AS (
    SELECT user_id FROM due
    WHERE tenant_id = $1 AND due_at <= $2 AND lease_until < clock_timestamp()
    ORDER BY due_at, user_id LIMIT $3 FOR UPDATE SKIP LOCKED
)
UPDATE due SET lease_until = clock_timestamp() + $4 * interval '1 second', epoch = epoch + 1
FROM picked WHERE due.tenant_id = $1 AND due.user_id = picked.user_id
RETURNING due.user_id, due.zone, due.epoch
"""

HOLD = """
UPDATE due SET lease_until = clock_timestamp() + $4 * interval '1 second'
FROM unnest($2::text[], $3::bigint[]) AS held (user_id, epoch)
WHERE due.tenant_id = $1 AND due.user_id = held.user_id AND due.epoch = held.epoch
"""

# A list of the date that exists already was made by a worker that died: its bytes are published, not new ones. So are
# those of an earlier date that nobody lived to publish.
STORED = """
SELECT user_id, playlist_date, version, message, track_keys, fallback, trace_id, published
FROM daily_list JOIN unnest($2::text[], $3::date[]) AS wanted (user_id, playlist_date) USING (user_id, playlist_date)
WHERE tenant_id = $1
UNION ALL
SELECT user_id, playlist_date, version, message, track_keys, fallback, trace_id, published
FROM daily_list JOIN unnest($2::text[], $3::date[]) AS wanted (user_id, wanted_date) USING (user_id)
WHERE tenant_id = $1 AND NOT published AND playlist_date <> wanted_date
"""

STORE = """
INSERT INTO daily_list (tenant_id, user_id, playlist_date, version, message, track_keys, fallback, trace_id, inputs)
SELECT $1, made.user_id, made.playlist_date, made.version, made.message,
       string_to_array(made.track_keys, ',')::bigint[], made.fallback, made.trace_id, made.inputs
FROM unnest(
    $2::text[], $3::date[], $4::integer[], $5::bytea[], $6::text[], $7::integer[], $8::text[], $9::bytea[], $10::bigint[]
) AS made (user_id, playlist_date, version, message, track_keys, fallback, trace_id, inputs, epoch)
JOIN due ON due.tenant_id = $1 AND due.user_id = made.user_id AND due.epoch = made.epoch
ORDER BY made.user_id
ON CONFLICT DO NOTHING
RETURNING user_id
"""

PUBLISHED = """
UPDATE daily_list AS list SET published = true
FROM unnest($2::text[], $3::date[]) AS done (user_id, playlist_date)
WHERE list.tenant_id = $1 AND list.user_id = done.user_id AND list.playlist_date = done.playlist_date
"""

# A user whose zone changed meanwhile stays due: the instant was computed for the zone before.
ADVANCE = """
UPDATE due SET due_at = CASE WHEN due.zone = done.zone THEN done.due_at ELSE due.due_at END, lease_until = '-infinity'
FROM unnest($2::text[], $3::text[], $4::bigint[], $5::timestamptz[]) AS done (user_id, zone, epoch, due_at)
WHERE due.tenant_id = $1 AND due.user_id = done.user_id AND due.epoch = done.epoch
"""

RECOMMENDED = """
SELECT user_id, playlist_date, track_keys FROM daily_list
WHERE tenant_id = $1 AND user_id = ANY($2) AND playlist_date >= $3
"""

# Each takes so many of the oldest as one statement should; what another worker is at is left to it.
FORGET_INPUTS = """
UPDATE daily_list SET inputs = NULL WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM daily_list WHERE playlist_date < $1 AND inputs IS NOT NULL
    ORDER BY playlist_date LIMIT $2 FOR UPDATE SKIP LOCKED
))
"""

# A list that nobody published yet is still owed.
DELETE_LISTS = """
DELETE FROM daily_list WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM daily_list WHERE playlist_date < $1 AND published
    ORDER BY playlist_date LIMIT $2 FOR UPDATE SKIP LOCKED
))
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

    async def watch(self, tenant_id: str, zones: Mapping[str, str], now: datetime) -> None:
        """Make lists for these users from now on, by the dates of these zones (user id → IANA name)."""
        await self._db.execute(WATCH, tenant_id, list(zones), list(zones.values()), now)

    async def claim(self, tenant_id: str, now: datetime, limit: int) -> list[Lease]:
        rows = await self._db.fetch(CLAIM, tenant_id, now, limit, LEASE_S)
        return sorted((Lease(**dict(row)) for row in rows), key=lambda lease: lease.user_id)

    async def hold(self, tenant_id: str, leases: Sequence[Lease], seconds: float = LEASE_S) -> None:
        """Renew the leases that are still ours; 0 gives them back."""
        users, epochs = [lease.user_id for lease in leases], [lease.epoch for lease in leases]
        await self._db.execute(HOLD, tenant_id, users, epochs, seconds)

    async def stored(self, tenant_id: str, dates: Mapping[str, date]) -> list[MadeList]:
        """The lists that exist already for these users' dates, and older ones that were not published."""
        rows = await self._db.fetch(STORED, tenant_id, list(dates), list(dates.values()))
        return [MadeList(**dict(row)) for row in rows]

    async def recommended(
        self, tenant_id: str, user_ids: Sequence[str], since: date
    ) -> dict[str, list[tuple[date, list[int]]]]:
        """What was recommended to each user from `since` on: (playlist date, signed track keys)."""
        found: dict[str, list[tuple[date, list[int]]]] = {user_id: [] for user_id in user_ids}
        for row in await self._db.fetch(RECOMMENDED, tenant_id, list(user_ids), since):
            found[row["user_id"]].append((row["playlist_date"], row["track_keys"]))
        return found

    async def store(self, tenant_id: str, lists: Sequence[MadeList], epochs: Mapping[str, int]) -> set[str]:
        """Keep the bytes, unpublished. Returns the users whose list this is: the others have one, or the lease is lost."""
        rows = await self._db.fetch(
            STORE,
            tenant_id,
            [made.user_id for made in lists],
            [made.playlist_date for made in lists],
            [made.version for made in lists],
            [made.message for made in lists],
            [",".join(map(str, made.track_keys)) for made in lists],
            [made.fallback for made in lists],
            [made.trace_id for made in lists],
            [made.inputs for made in lists],
            [epochs[made.user_id] for made in lists],
        )
        return {row["user_id"] for row in rows}

    async def finish(
        self,
        tenant_id: str,
        published: Collection[MadeList],
        leases: Sequence[Lease],
        due: Mapping[str, datetime],
    ) -> None:
        """After the acknowledgement: mark the lists published and move the users' due instants, in one step."""
        async with self._db.transaction() as tx:
            await tx.execute(
                PUBLISHED,
                tenant_id,
                [item.user_id for item in published],
                [item.playlist_date for item in published],
            )
            await tx.execute(
                ADVANCE,
                tenant_id,
                [lease.user_id for lease in leases],
                [lease.zone for lease in leases],
                [lease.epoch for lease in leases],
                [due[lease.user_id] for lease in leases],
            )

    async def purge(self, kept: Kept, limit: int) -> tuple[int, int]:
        """Every tenant's old inputs and lists, `limit` of each at most. Returns how many of each went."""
        inputs = await self._db.execute(FORGET_INPUTS, kept.inputs_from, limit)
        lists = await self._db.execute(DELETE_LISTS, kept.lists_from, limit)
        return int(inputs.split()[-1]), int(lists.split()[-1])

    async def counts(self, tenant_id: str, now: datetime) -> Counts:
        (row,) = await self._db.fetch(COUNTS, tenant_id, now)
        dates = await self._db.fetch(DATES, tenant_id)
        return Counts(row["users"], row["due"], [(d["playlist_date"], d["lists"], d["fallbacks"]) for d in dates])
