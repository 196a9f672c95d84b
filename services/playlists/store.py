"""The lists in Postgres, one row per (tenant, user, playlist date)."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date

from shared.postgres import Database, Transaction


@dataclass(frozen=True, slots=True)
class StoredList:
    """A published list and the facts its row is found by. `message` is the DailyPlaylist's bytes."""

    tenant_id: str
    user_id: str
    playlist_date: date
    version: int
    message: bytes


KEEP_NEWEST = """
INSERT INTO daily_playlist AS kept (tenant_id, user_id, playlist_date, version, message)
SELECT * FROM unnest($1::text[], $2::text[], $3::date[], $4::integer[], $5::bytea[])
ON CONFLICT (tenant_id, user_id, playlist_date) DO UPDATE
SET version = excluded.version, message = excluded.message
WHERE excluded.version > kept.version
"""

ONE = """
SELECT message FROM daily_playlist
WHERE tenant_id = $1 AND user_id = $2 AND ($3::date IS NULL OR playlist_date = $3)
ORDER BY playlist_date DESC LIMIT 1
"""


async def keep_newest(tx: Transaction, lists: Iterable[StoredList]) -> None:
    """Store lists; a version that is not higher than the stored one changes nothing, so that a repeat is harmless."""
    newest: dict[tuple[str, str, date], StoredList] = {}
    for item in lists:
        key = (item.tenant_id, item.user_id, item.playlist_date)
        if key not in newest or newest[key].version < item.version:
            newest[key] = item
    rows = [newest[key] for key in sorted(newest)]
    await tx.execute(
        KEEP_NEWEST,
        [row.tenant_id for row in rows],
        [row.user_id for row in rows],
        [row.playlist_date for row in rows],
        [row.version for row in rows],
        [row.message for row in rows],
    )


async def find(db: Database, tenant_id: str, user_id: str, playlist_date: date | None) -> bytes | None:
    """The list of that date, or the newest; None if there is none."""
    row = await db.fetchrow(ONE, tenant_id, user_id, playlist_date)
    return None if row is None else bytes(row["message"])
