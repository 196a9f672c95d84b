"""One batch of published lists: decode → keep the newest, in the transaction that moves the offset."""

from collections.abc import Sequence
from datetime import date

import structlog
from google.protobuf.message import DecodeError
from meiri.playlist.v1.daily_playlist_pb2 import DailyPlaylist
from shared.postgres import Transaction

from services.playlists.store import StoredList, keep_newest

log = structlog.get_logger()


async def keep(tx: Transaction, values: Sequence[bytes]) -> None:
    """The effect of one run of records. One that is no list is logged and skipped: the materialiser alone writes."""
    lists: list[StoredList] = []
    unreadable = 0
    for value in values:
        try:
            message = DailyPlaylist.FromString(value)
            day = date.fromisoformat(message.playlist_date)
        except (DecodeError, ValueError):
            unreadable += 1
            continue
        lists.append(StoredList(message.tenant_id, message.user_id, day, message.version, value))
    if lists:
        await keep_newest(tx, lists)
    log.info("playlists.kept", lists=len(lists))
    if unreadable:
        log.error("playlists.unreadable", records=unreadable)
