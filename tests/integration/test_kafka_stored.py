"""Stored offsets on a real PostgreSQL: the effect and the next offset are one fact, whatever happens in between."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from shared.errors import Transient, Unusable
from shared.kafka.broker import KafkaLog
from shared.kafka.consumer import consume_stored
from shared.kafka.log import Bounds, EventLog, Outgoing, Record, TopicPartition
from shared.kafka.memory import MemoryLog, MemoryRecord
from shared.kafka.partition import Effect, Moved, StoredOffsets
from shared.kafka.producer import Producer
from shared.kafka.progress import Progress
from shared.postgres import Database, Transaction
from shared.topics import Topic
from tests.conftest import RealServers

TABLES = """
CREATE TABLE consumer_offset (
    topic text, partition int, next_offset bigint NOT NULL, cluster_id text NOT NULL, applied_at timestamptz NOT NULL,
    PRIMARY KEY (topic, partition));
CREATE TABLE applied (partition int, "offset" bigint, value text);
"""
FIRST = TopicPartition("plays", 0)
_schemas = itertools.count(1)


@pytest.fixture
async def db(servers: RealServers) -> AsyncIterator[Database]:
    schema = f"stored_{next(_schemas)}"
    async with Database.open(servers.admin_url, pool_size=6, server_settings={"search_path": schema}) as opened:
        await opened.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        await opened.execute(f"CREATE SCHEMA {schema}")
        await opened.execute(TABLES)
        yield opened
        await opened.execute(f"DROP SCHEMA {schema} CASCADE")


async def keep(tx: Transaction, partition: TopicPartition, records: Sequence[Record]) -> None:
    """The effect under test: not idempotent, so that every repetition shows."""
    rows = [(partition.partition, record.offset, (record.value or b"").decode()) for record in records]
    await tx.executemany('INSERT INTO applied (partition, "offset", value) VALUES ($1, $2, $3)', rows)


async def kept(db: Database) -> list[tuple[int, int]]:
    rows = await db.fetch('SELECT partition, "offset" FROM applied ORDER BY 1, 2')
    return [(row[0], row[1]) for row in rows]


def records(*offsets: int) -> list[MemoryRecord]:
    return [MemoryRecord("plays", 0, offset, 0, None, b"%d" % offset, ()) for offset in offsets]


async def test_what_was_applied_is_dropped_when_it_comes_again(db: Database) -> None:
    offsets = StoredOffsets(db, "c")
    assert await offsets.begin(FIRST, Bounds(0, 10)) == 0
    assert await offsets.apply(FIRST, records(0, 1, 2), keep) == 3
    assert await offsets.apply(FIRST, records(0, 1, 2), keep) == 3
    assert await offsets.apply(FIRST, records(1, 2, 3, 4), keep) == 5
    assert await kept(db) == [(0, n) for n in range(5)]


async def test_a_failing_effect_leaves_offset_and_effect_as_they_were(db: Database) -> None:
    offsets = StoredOffsets(db, "c")
    await offsets.begin(FIRST, Bounds(0, 10))

    async def half(tx: Transaction, partition: TopicPartition, batch: Sequence[Record]) -> None:
        await keep(tx, partition, batch)
        raise Transient("Something is away: try again.")

    with pytest.raises(Transient):
        await offsets.apply(FIRST, records(0, 1), half)
    assert await kept(db) == []
    assert await offsets.apply(FIRST, records(0, 1), keep) == 2


async def test_holes_between_records_are_normal(db: Database) -> None:
    offsets = StoredOffsets(db, "c")
    await offsets.begin(FIRST, Bounds(0, 10))
    assert await offsets.apply(FIRST, records(2, 5), keep) == 6
    assert await offsets.apply(FIRST, records(8), keep) == 9


async def test_records_beyond_what_another_owner_stored_are_not_skipped_to(db: Database) -> None:
    mine, other = StoredOffsets(db, "c"), StoredOffsets(db, "c")
    await mine.begin(FIRST, Bounds(0, 10))
    await other.begin(FIRST, Bounds(0, 10))
    await other.apply(FIRST, records(0, 1), keep)
    with pytest.raises(Moved):
        await mine.apply(FIRST, records(5, 6), keep)
    assert await kept(db) == [(0, 0), (0, 1)]


async def test_two_owners_at_once_apply_each_record_once(db: Database) -> None:
    owners = [StoredOffsets(db, "c") for _ in range(3)]
    for owner in owners:
        await owner.begin(FIRST, Bounds(0, 100))
    for start in range(0, 60, 3):
        batch = records(*range(start, start + 3))
        await asyncio.gather(*(owner.apply(FIRST, batch, keep) for owner in owners))
    assert await kept(db) == [(0, n) for n in range(60)]


@pytest.mark.parametrize(
    ("bounds", "cluster", "sentence"),
    [
        (Bounds(7, 20), "c", "4 records were deleted"),
        (Bounds(0, 2), "c", "ends at offset 2, below the stored offset 3"),
        (Bounds(0, 20), "other", "belongs to Kafka cluster c"),
    ],
)
async def test_going_on_with_a_loss_is_refused_until_it_is_adopted(
    db: Database, bounds: Bounds, cluster: str, sentence: str
) -> None:
    offsets = StoredOffsets(db, "c")
    await offsets.begin(FIRST, Bounds(0, 10))
    await offsets.apply(FIRST, records(0, 1, 2), keep)
    restarted = StoredOffsets(db, cluster)
    with pytest.raises(Unusable, match=sentence) as told:
        await restarted.begin(FIRST, bounds)
    assert "adopt-offsets" in str(told.value)
    await restarted.adopt(FIRST, bounds.start)
    assert await restarted.begin(FIRST, bounds) == bounds.start


async def test_a_partition_never_seen_begins_at_the_logs_start(db: Database) -> None:
    assert await StoredOffsets(db, "c").begin(FIRST, Bounds(40, 50)) == 40


@asynccontextmanager
async def consuming(
    log: EventLog, db: Database, topic: Topic, effect: Effect[Record] = keep, **options: Any
) -> AsyncIterator[asyncio.Task[None]]:
    stop = asyncio.Event()
    offsets = StoredOffsets(db, await log.cluster_id())
    task = asyncio.create_task(consume_stored(log, topic.name, [topic], offsets, effect, stop=stop, **options))
    try:
        yield task
    finally:
        stop.set()
        await asyncio.wait([task])


async def applied(db: Database, count: int, within_s: float = 30.0) -> None:
    async with asyncio.timeout(within_s):
        while await db.fetchval("SELECT count(*) FROM applied") < count:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_the_loop_starts_from_the_stored_offset_and_not_from_the_groups(db: Database) -> None:
    topic = Topic("plays", 1)
    log = MemoryLog([topic])
    await log.send_many([Outgoing(topic, 0, None, b"x")] * 10)
    offsets = StoredOffsets(db, "memory")
    await offsets.begin(FIRST, Bounds(0, 10))
    await offsets.apply(FIRST, records(0, 1, 2, 3), keep)
    progress = Progress()
    async with consuming(log, db, topic, progress=progress):
        await applied(db, 10)
        assert await kept(db) == [(0, n) for n in range(10)]
        async with asyncio.timeout(5):
            while not await log.committed("plays", [FIRST]):  # the mirror follows within about a second  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert await log.committed("plays", [FIRST]) == {FIRST: 10}
        assert progress.marks[FIRST].applied == progress.marks[FIRST].stored == 10


async def test_the_loop_refuses_a_log_that_lost_unread_records(db: Database) -> None:
    topic = Topic("plays", 1)
    log = MemoryLog([topic])
    await log.send_many([Outgoing(topic, 0, None, b"x")] * 10)
    await StoredOffsets(db, "memory").begin(FIRST, Bounds(0, 10))
    log.truncate(FIRST, 5)
    async with consuming(log, db, topic) as task:
        await asyncio.wait([task], timeout=5)
        with pytest.raises(Unusable, match="adopt-offsets"):
            task.result()


async def test_on_kafka_two_members_and_an_abandoned_one_apply_each_record_once(
    servers: RealServers, topic_name: Callable[[str], str], db: Database
) -> None:
    topic = Topic(topic_name("stored"), 4)
    bootstrap = servers.bootstrap_servers
    async with (
        KafkaLog.open(bootstrap, session_timeout_s=6.0) as log,
        KafkaLog.open(bootstrap, session_timeout_s=6.0) as other,
        Producer.open(bootstrap) as producer,
    ):
        await log.create([topic])
        await producer.send_many([Outgoing(topic, n % 4, None, b"%d" % n) for n in range(4000)])
        async with consuming(log, db, topic, max_records=50) as first:
            await applied(db, 200)
            async with consuming(other, db, topic, max_records=50):
                first.cancel()  # dies without draining its batches
                await asyncio.wait([first])
                await producer.send_many([Outgoing(topic, n % 4, None, b"%d" % n) for n in range(4000, 8000)])
                await applied(db, 8000)
    assert await kept(db) == [(partition, offset) for partition in range(4) for offset in range(2000)]


async def test_on_kafka_a_restarted_database_costs_time_but_no_record(
    servers: RealServers, topic_name: Callable[[str], str], db: Database
) -> None:
    topic = Topic(topic_name("restarted"), 2)
    bootstrap = servers.bootstrap_servers
    async with KafkaLog.open(bootstrap) as log, Producer.open(bootstrap) as producer:
        await log.create([topic])
        await producer.send_many([Outgoing(topic, n % 2, None, b"%d" % n) for n in range(3000)])
        async with consuming(log, db, topic, max_records=100):
            await applied(db, 300)
            before = servers.pid("postgres")
            servers.kill("postgres")
            await asyncio.to_thread(lambda: servers.wait_ready("postgres", other_than=before))
            async with asyncio.timeout(20):
                while True:
                    try:
                        await applied(db, 3000)
                        break
                    except Transient:
                        await asyncio.sleep(0.1)
    assert await kept(db) == [(partition, offset) for partition in range(2) for offset in range(1500)]
