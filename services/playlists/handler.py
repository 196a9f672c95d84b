"""One batch of published lists: decode → keep the newest, in the transaction that moves the offset."""

from collections.abc import Sequence
from datetime import date

import structlog
from google.protobuf.message import DecodeError
from meiri.playlist.v1.daily_playlist_pb2 import DailyPlaylist

from services.playlists.store import StoredList, keep_newest
from shared.kafka.log import Record, TopicPartition, trace_of
from shared.postgres import Transaction

log = structlog.get_logger()


async def keep(tx: Transaction, partition: TopicPartition, records: Sequence[Record]) -> None:
    """The effect of one run of records. One that is no list is logged and skipped: only the materialiser writes here."""
    lists: list[StoredList] = []
    unreadable = 0
    for record in records:
        value = record.value or b""
        try:
            message = DailyPlaylist.FromString(value)
            day = date.fromisoformat(message.playlist_date)
        except (DecodeError, ValueError):
            unreadable += 1
            continue
        lists.append(StoredList(message.tenant_id, message.user_id, day, message.version, value))
    if lists:
        await keep_newest(tx, lists)
    log.info("playlists.kept", partition=partition.partition, lists=len(lists), trace_id=trace_of(records[-1]))
    if unreadable:
        log.error("playlists.unreadable", partition=partition.partition, records=unreadable)
