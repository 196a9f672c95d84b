"""Collect: one batch of one partition: decode → archive, before the group's offset is committed."""

import asyncio
from collections.abc import Sequence

import structlog

from services.trainer.archive import Archive
from shared.codec.plays import AcceptedEvent, decode_plays
from shared.errors import Permanent
from shared.kafka.log import Record, TopicPartition, trace_of

log = structlog.get_logger()


class Collector:
    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    async def __call__(self, partition: TopicPartition, records: Sequence[Record]) -> None:
        events, files, unreadable = await asyncio.to_thread(self._store, partition.partition, records)
        log.info(
            "archive.written",
            partition=partition.partition,
            first_offset=records[0].offset,
            last_offset=records[-1].offset,
            events=events,
            files=files,
            trace_id=trace_of(records[-1]),
        )
        if unreadable:
            log.error("archive.unreadable", partition=partition.partition, records=unreadable)

    def _store(self, partition: int, records: Sequence[Record]) -> tuple[int, int, int]:
        events: list[AcceptedEvent] = []
        unreadable = 0
        for record in records:
            try:
                events.extend(decode_plays(record.value or b""))
            except Permanent:  # features dead-letters the same record; here it only must not stop the archive
                unreadable += 1
        files = self._archive.write(partition, records[0].offset, records[-1].offset, events)
        return len(events), files, unreadable
