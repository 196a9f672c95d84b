"""How fast features counts plays, on a real Postgres: its own path without Kafka. `python -m benchmarks.features_write [plays]`.

Needs DATABASE_URL (an administrator's); makes and drops a database of its own. Prints plays/s, and CPU µs per play of this
process; what is left of the time is Postgres.
"""

import gc
import os
import random
import sys
import time

import structlog
import uvloop

from infra.local import postgres, schemas
from services.features.app import _PLANS
from services.features.dead_letters import DeadLetters
from services.features.handler import PlaysHandler
from services.features.source import Delivered, Source
from shared.clock import Clock
from shared.codec.plays import AcceptedEvent, encode_plays
from shared.ids import partition_of
from shared.kafka.log import TopicPartition
from shared.kafka.memory import MemoryLog
from shared.kafka.partition import StoredOffsets
from shared.kafka.progress import Progress
from shared.postgres import Database
from shared.topics import DEAD_LETTERS, PLAYS

USERS, TRACKS, DAYS, PLAYS_A_RECORD = 2_000, 10_000, 90, 200


def generated(plays: int) -> list[Delivered]:
    """Records in time order, with 1 % repeats, 3 % plays in two parts, and a listener's favourites heard again."""
    rng = random.Random(1)
    events: list[AcceptedEvent] = []
    for number in range(plays):
        user = f"user-{rng.randrange(USERS)}"
        track = (
            f"track-{min(int(rng.paretovariate(0.6)), TRACKS)}"
            if rng.random() < 0.5
            else f"track-{rng.randrange(TRACKS)}"
        )
        start = 1_790_000_000_000 + number * (DAYS * 86_400_000) // plays
        playback = f"p{number}" if rng.random() < 0.03 else None
        events.append(AcceptedEvent("aurora", user, track, rng.randbytes(16), start, 150_000, 200_000, playback, start))
        if playback:
            events.append(
                events[-1]._replace(event_id=rng.randbytes(16), started_at_ms=start + 400_000, played_ms=30_000)
            )
        elif rng.random() < 0.01:
            events.append(events[rng.randrange(max(0, len(events) - 5000), len(events))])
    partitions: list[list[AcceptedEvent]] = [[] for _ in range(PLAYS.partitions)]
    for event in events:
        partitions[partition_of(event.tenant_id, event.user_id, PLAYS.partitions)].append(event)
    return [
        Delivered(
            PLAYS.name,
            partition,
            place // PLAYS_A_RECORD,
            0,
            None,
            encode_plays(own[place : place + PLAYS_A_RECORD]),
            (),
        )
        for partition, own in enumerate(partitions)
        for place in range(0, len(own), PLAYS_A_RECORD)
    ]


async def main(plays: int) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    records = sorted(generated(plays), key=lambda record: record.offset)
    admin = os.environ["DATABASE_URL"]
    name = f"bench_{os.getpid()}"
    await postgres.create_database(admin, name)
    try:
        urls = await schemas.prepare(postgres.with_database(admin, name), dict.fromkeys(schemas.SCHEMAS, "bench"))
        async with Database.open(urls.urls["features"], pool_size=4, server_settings=_PLANS) as db:
            log = MemoryLog([PLAYS, DEAD_LETTERS])
            handler = PlaysHandler(DeadLetters(log, Clock()))
            source = Source(log, StoredOffsets(db, "memory"), {PLAYS.name: handler}, progress=Progress())
            await source.begin(frozenset(TopicPartition(PLAYS.name, number) for number in range(PLAYS.partitions)))
            gc.freeze()  # as a service does
            gc.set_threshold(50_000, 20, 50)
            started, cpu = time.perf_counter(), time.process_time()
            for place in range(0, len(records), 64):
                await source.apply(records[place : place + 64], lambda *_: True)
            took, used = time.perf_counter() - started, time.process_time() - cpu
            counted = await db.fetchval("SELECT count(*) FROM ledger")
            cells = await db.fetchval("SELECT count(*) FROM cells")
            print(
                f"{counted} events, {cells} cells: {counted / took:,.0f} a second, {used / counted * 1e6:.1f} µs CPU here each"
            )
    finally:
        await postgres.drop_database(admin, name)


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000))
