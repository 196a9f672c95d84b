"""The consumer loop on the log in memory: order, commits, retries, draining."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from shared.errors import Transient, Unusable
from shared.kafka.consumer import Handler, consume_at_least_once
from shared.kafka.log import Outgoing, Record, TopicPartition
from shared.kafka.loop import topics_exist
from shared.kafka.memory import MemoryLog
from shared.kafka.progress import Progress
from shared.topics import Topic

TOPIC = Topic("events", 2)
FIRST, SECOND = TopicPartition("events", 0), TopicPartition("events", 1)


async def filled(count: int, topic: Topic = TOPIC) -> MemoryLog:
    log = MemoryLog([topic])
    await log.send_many([Outgoing(topic, n % topic.partitions, None, b"%d" % n) for n in range(count)])
    return log


@asynccontextmanager
async def consuming(log: MemoryLog, handler: Handler, **options: Any) -> AsyncIterator[asyncio.Task[None]]:
    stop = asyncio.Event()
    task = asyncio.create_task(
        consume_at_least_once(
            log, "group", [TOPIC], handler, stop=stop, **{"max_wait_s": 0.0, "commit_every_s": 0.01} | options
        )
    )
    try:
        yield task
    finally:
        stop.set()
        await asyncio.wait([task])


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


class Seen:
    def __init__(self) -> None:
        self.values: list[int] = []

    async def __call__(self, _: TopicPartition, records: Sequence[Record]) -> None:
        self.values += [int(record.value or b"") for record in records]


async def test_every_record_is_handled_and_then_committed() -> None:
    log, seen = await filled(100), Seen()
    async with consuming(log, seen):
        await until(lambda: len(seen.values) == 100)
    assert sorted(seen.values) == list(range(100))
    assert await log.committed("group", [FIRST, SECOND]) == {FIRST: 50, SECOND: 50}


async def test_a_batch_is_never_larger_than_asked() -> None:
    log = await filled(100)
    sizes: list[int] = []

    async def handler(_: TopicPartition, records: Sequence[Record]) -> None:
        sizes.append(len(records))

    async with consuming(log, handler, max_records=7):
        await until(lambda: sum(sizes) == 100)
    assert max(sizes) == 7


async def test_a_batch_waits_a_little_for_company() -> None:
    log = await filled(0)
    sizes: list[int] = []

    async def handler(_: TopicPartition, records: Sequence[Record]) -> None:
        sizes.append(len(records))

    async with consuming(log, handler, max_wait_s=30.0, max_records=5):  # full, it waits no longer
        await asyncio.sleep(0.05)
        for _ in range(5):
            await log.send(TOPIC, 0, None, b"1")
            await asyncio.sleep(0.01)
        await until(lambda: sum(sizes) == 5)
    assert sizes == [5]


async def test_a_slow_partition_holds_up_only_itself() -> None:
    log = await filled(0)
    release = asyncio.Event()
    done: list[int] = []

    async def handler(partition: TopicPartition, records: Sequence[Record]) -> None:
        if partition == FIRST:
            await release.wait()
        done.extend([partition.partition] * len(records))

    async with consuming(log, handler):
        await log.send(TOPIC, 0, None, b"slow")
        for _ in range(10):
            await log.send(TOPIC, 1, None, b"fast")
            await asyncio.sleep(0.01)
        await until(lambda: done.count(1) == 10)
        assert done.count(0) == 0
        assert await log.committed("group", [FIRST]) == {}
        release.set()


async def test_one_partitions_batches_come_one_after_another() -> None:
    log = await filled(60)
    inside: dict[TopicPartition, int] = {}

    async def handler(partition: TopicPartition, _: Sequence[Record]) -> None:
        inside[partition] = inside.get(partition, 0) + 1
        assert inside[partition] == 1
        await asyncio.sleep(0.002)
        inside[partition] -= 1

    async with consuming(log, handler, max_records=3):
        await asyncio.sleep(0.2)


async def test_a_transient_failure_repeats_the_same_batch_and_tells_when_stuck() -> None:
    log, progress = await filled(2), Progress()
    calls: list[list[int]] = []
    broken = True

    async def handler(partition: TopicPartition, records: Sequence[Record]) -> None:
        if partition == FIRST:
            calls.append([record.offset for record in records])
            if broken:
                raise Transient("The database is away: try again.")

    async with consuming(log, handler, progress=progress, stuck_after_s=0.2):
        await until(lambda: progress.stuck == {FIRST})
        broken = False
        await until(lambda: not progress.stuck)
        await until(lambda: progress.marks[FIRST].applied == 1)
    assert len(calls) >= 3
    assert all(call == [0] for call in calls)
    assert await log.committed("group", [FIRST, SECOND]) == {FIRST: 1, SECOND: 1}


async def test_any_other_error_ends_the_loop_without_committing_its_batch() -> None:
    log = await filled(10)

    async def handler(partition: TopicPartition, _: Sequence[Record]) -> None:
        if partition == SECOND:
            raise ZeroDivisionError

    async with consuming(log, handler) as task:
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(asyncio.shield(task), 5)
    assert SECOND not in await log.committed("group", [FIRST, SECOND])


async def test_stopping_finishes_the_batch_in_hand_commits_and_leaves() -> None:
    log = await filled(1)
    entered, handled = asyncio.Event(), Seen()

    async def handler(partition: TopicPartition, records: Sequence[Record]) -> None:
        entered.set()
        await asyncio.sleep(0.1)
        await handled(partition, records)

    async with consuming(log, handler, commit_every_s=60.0):
        await entered.wait()
    assert handled.values == [0]
    assert await log.committed("group", [FIRST]) == {FIRST: 1}
    assert not log._groups["group"].members


async def test_stopping_does_not_wait_for_a_batch_that_cannot_succeed() -> None:
    log = await filled(1)
    entered = asyncio.Event()

    async def handler(_: TopicPartition, __: Sequence[Record]) -> None:
        entered.set()
        raise Transient("The database is away: try again.")

    async with consuming(log, handler) as task:
        await entered.wait()
    assert task.exception() is None
    assert await log.committed("group", [FIRST]) == {}


async def test_a_batch_that_outlives_the_drain_is_cut_off() -> None:
    log = await filled(1)
    entered, cut = asyncio.Event(), asyncio.Event()

    async def handler(_: TopicPartition, __: Sequence[Record]) -> None:
        entered.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cut.set()
            raise

    async with consuming(log, handler, drain_s=0.1):
        await entered.wait()
    assert cut.is_set()


async def test_a_rebalance_hands_partitions_over_without_loss() -> None:
    log, one, two = await filled(0), Seen(), Seen()
    async with consuming(log, one, max_records=2):
        for n in range(50):
            await log.send(TOPIC, n % 2, None, b"%d" % n)
        async with consuming(log, two, max_records=2):
            for n in range(50, 100):
                await log.send(TOPIC, n % 2, None, b"%d" % n)
                await asyncio.sleep(0.001)
            await until(lambda: set(one.values) | set(two.values) == set(range(100)))
            assert two.values
        for n in range(100, 120):
            await log.send(TOPIC, n % 2, None, b"%d" % n)
        await until(lambda: set(range(100, 120)) <= set(one.values))
    assert len(one.values) + len(two.values) == 120  # nobody was killed, so nothing came twice


async def test_holes_left_by_compaction_are_stepped_over() -> None:
    log, seen = MemoryLog([TOPIC]), Seen()
    for n in range(30):
        await log.send(TOPIC, 0, b"key %d" % (n % 3), b"%d" % n)
    log.compact(TOPIC)
    async with consuming(log, seen):
        await until(lambda: seen.values == [27, 28, 29])
    assert await log.committed("group", [FIRST]) == {FIRST: 30}


async def test_marks_tell_fetched_applied_and_stored() -> None:
    log, progress = await filled(10), Progress()
    async with consuming(log, Seen(), progress=progress):
        await until(lambda: FIRST in progress.marks and progress.marks[FIRST].stored == 5)
        marks = progress.marks[FIRST]
        assert (marks.fetched, marks.applied, marks.stored) == (5, 5, 5)
        assert progress.silent_s(FIRST) < 5
    assert progress.marks == {}


async def test_a_client_gone_deaf_ends_the_loop_and_a_quiet_topic_does_not() -> None:
    log, seen = await filled(2), Seen()
    async with consuming(log, seen, deaf_after_s=0.2) as task:
        await until(lambda: len(seen.values) == 2)
        await asyncio.sleep(0.5)
        assert not task.done()
        log.mute = True
        await log.send(TOPIC, 0, None, b"3")
        await asyncio.wait([task], timeout=5)
        with pytest.raises(RuntimeError, match="stuck"):
            task.result()


async def test_a_missing_topic_is_waited_for_and_then_told() -> None:
    log = MemoryLog()
    waiting = asyncio.create_task(topics_exist(log, [TOPIC], asyncio.Event()))
    await asyncio.sleep(0.05)
    await log.create([TOPIC])
    assert await waiting
    with pytest.raises(Unusable, match="no topic absent"):
        await topics_exist(log, [Topic("absent")], asyncio.Event(), wait_s=0.1)
    stop = asyncio.Event()
    stop.set()
    assert not await topics_exist(log, [Topic("absent")], stop)
