"""The archive: every accepted play event in Parquet, by the day it came through the door.

`<archive>/plays/received_day=YYYY-MM-DD/<partition>-<first offset>-<last offset>.parquet`, one row per event, with the
columns of SCHEMA. A file appears whole or not at all. Delivery is at least once, so files may overlap and an event id
may come again, for ever: readers keep one row per (tenant, user, event_id).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from shared.codec.plays import AcceptedEvent
from shared.durable import flush_folder, flushed

DAY_MS = 86_400_000

SCHEMA = pa.schema(
    [
        pa.field("tenant_id", pa.string(), nullable=False),
        pa.field("user_id", pa.string(), nullable=False),
        pa.field("track_id", pa.string(), nullable=False),
        pa.field("event_id", pa.binary(16), nullable=False),
        pa.field("started_at_ms", pa.int64(), nullable=False),
        pa.field("played_ms", pa.int64()),
        pa.field("duration_ms", pa.int64()),
        pa.field("playback_id", pa.string()),
        pa.field("received_at_ms", pa.int64(), nullable=False),
    ]
)
"""The published schema; null is unknown. Columns may be added, never changed."""


class Archive:
    def __init__(self, folder: Path) -> None:
        self._plays = folder / "plays"
        self._counted: dict[Path, Counter[str]] = {}

    def write(self, partition: int, first_offset: int, last_offset: int, events: Sequence[AcceptedEvent]) -> int:
        """Store the events of one run of offsets, durably, and return the number of files. Twice is once."""
        files = 0
        by_day = sorted(events, key=lambda event: event.received_at_ms // DAY_MS)
        for day, group in groupby(by_day, key=lambda event: event.received_at_ms // DAY_MS):
            rows = list(zip(*group, strict=True))
            table = pa.table([pa.array(column, field.type) for column, field in zip(rows, SCHEMA, strict=True)], SCHEMA)
            name = f"{partition}-{first_offset:020d}-{last_offset:020d}.parquet"
            folder = self._plays / f"received_day={datetime.fromtimestamp(day * 86_400, UTC).date()}"
            _write_whole(table, folder, name)
            files += 1
        return files

    def read(self, tenant_id: str) -> list[AcceptedEvent]:
        """A tenant's distinct events in a fixed order: by user, track, start and event id."""
        seen: dict[tuple[str, bytes], AcceptedEvent] = {}
        for file in self._files():
            for event in _rows(file, tenant_id):
                # The first by (received_at, content) wins, so that the answer does not depend on the files' names.
                kept = seen.get((event.user_id, event.event_id))
                if kept is None or _order(event) < _order(kept):
                    seen[event.user_id, event.event_id] = event
        return sorted(
            seen.values(), key=lambda event: (event.user_id, event.track_id, event.started_at_ms, event.event_id)
        )

    def tenants(self) -> Counter[str]:
        """How many rows, repeats included, the archive holds of each tenant. A file is read the first time only."""
        files = self._files()
        for file in files:
            if file not in self._counted:
                counts = pq.read_table(file, columns=["tenant_id"]).column(0).value_counts().to_pylist()
                self._counted[file] = Counter({value["values"]: value["counts"] for value in counts})
        return sum((self._counted[file] for file in files), Counter())

    def _files(self) -> list[Path]:
        return sorted(self._plays.glob("received_day=*/*.parquet"))


def _rows(file: Path, tenant_id: str) -> Iterator[AcceptedEvent]:
    table = pq.read_table(file, schema=SCHEMA, filters=[("tenant_id", "=", tenant_id)])
    return (AcceptedEvent(*row) for row in zip(*(column.to_pylist() for column in table.columns), strict=True))


def _order(event: AcceptedEvent) -> tuple[int, int, str]:
    return event.received_at_ms, event.started_at_ms, event.track_id


def _write_whole(table: pa.Table, folder: Path, name: str) -> None:
    """Write beside the place, flush to disk, rename: a crash leaves no half file under a name that readers look at."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{name}.tmp"
    with flushed(temporary) as file:
        pq.write_table(table, file, compression="zstd")
    temporary.rename(folder / name)
    flush_folder(folder)
