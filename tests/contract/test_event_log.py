"""One suite for the event log's port: the log in memory and real Kafka both pass it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from shared.errors import Permanent, Unusable
from shared.kafka.broker import KafkaLog
from shared.kafka.log import EventLog, Member, Outgoing, Publisher, Reader, Record, TopicPartition, trace_of
from shared.kafka.memory import MemoryLog
from shared.kafka.producer import Producer
from shared.telemetry import bound_trace
from shared.topics import Topic


@dataclass
class Under:
    """The log under test and a way to write to it."""

    log: EventLog
    publisher: Publisher
    name: Callable[[str], str]

    async def topic(self, stem: str, partitions: int = 2, **config: str) -> Topic:
        topic = Topic(self.name(stem), partitions, config)
        await self.log.create([topic])
        return topic


@pytest.fixture(params=["memory", "kafka"])
async def under(request: pytest.FixtureRequest) -> AsyncIterator[Under]:
    if request.param == "memory":
        log = MemoryLog()
        yield Under(log, log, lambda stem: stem)
        return
    bootstrap = request.getfixturevalue("servers").bootstrap_servers
    name = request.getfixturevalue("topic_name")
    async with KafkaLog.open(bootstrap, session_timeout_s=6.0) as kafka, Producer.open(bootstrap) as producer:
        yield Under(kafka, producer, name)


async def all_of(reader: Reader, partition: TopicPartition, count: int) -> list[Record]:
    found: list[Record] = []
    async with asyncio.timeout(15):
        while len(found) < count:
            found += await reader.poll(partition, 100, 0.2)
    return found


class Reported:
    """Remembers what a group told its member."""

    def __init__(self) -> None:
        self.assigned: frozenset[TopicPartition] = frozenset()
        self.revocations = 0

    async def on_assigned(self, _: Member, partitions: frozenset[TopicPartition]) -> None:
        self.assigned = partitions

    async def on_revoked(self, _: Member, partitions: frozenset[TopicPartition]) -> None:
        self.assigned -= partitions
        self.revocations += bool(partitions)

    async def owns(self, *numbers: int) -> None:
        async with asyncio.timeout(20):
            while {partition.partition for partition in self.assigned} != set(numbers):  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def owns_some(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.assigned) != count:  # noqa: ASYNC110
                await asyncio.sleep(0.02)


@asynccontextmanager
async def joined(
    under: Under, group: str, *topics: Topic, pattern: str | None = None
) -> AsyncIterator[tuple[Member, Reported]]:
    reported = Reported()
    async with under.log.join(
        group, topics, pattern=pattern, on_assigned=reported.on_assigned, on_revoked=reported.on_revoked
    ) as member:
        yield member, reported


async def test_one_partition_keeps_append_order_and_offsets_grow(under: Under) -> None:
    topic = await under.topic("order")
    offsets = [await under.publisher.send(topic, 1, b"k", b"%d" % n) for n in range(20)]
    partition = TopicPartition(topic.name, 1)
    async with under.log.read({partition: 0}) as reader:
        records = await all_of(reader, partition, 20)
    assert [record.value for record in records] == [b"%d" % n for n in range(20)]
    assert [record.offset for record in records] == offsets == sorted(set(offsets))
    assert {(record.topic, record.partition, record.key) for record in records} == {(topic.name, 1, b"k")}


async def test_a_batch_keeps_order_within_each_partition_and_loses_nothing(under: Under) -> None:
    topic = await under.topic("batch", 3)
    await under.publisher.send_many([Outgoing(topic, n % 3, b"%d" % n, b"v" * 300) for n in range(9000)])
    partitions = [TopicPartition(topic.name, number) for number in range(3)]
    async with under.log.read(dict.fromkeys(partitions, 0)) as reader:
        for partition in partitions:
            records = await all_of(reader, partition, 3000)
            assert [record.key for record in records] == [b"%d" % n for n in range(partition.partition, 9000, 3)]


async def test_reading_starts_at_any_offset_and_seeks_back(under: Under) -> None:
    topic = await under.topic("seek")
    await under.publisher.send_many([Outgoing(topic, 0, None, b"%d" % n) for n in range(10)])
    partition = TopicPartition(topic.name, 0)
    async with under.log.read({partition: 7}) as reader:
        assert [record.value for record in await all_of(reader, partition, 3)] == [b"7", b"8", b"9"]
        assert await reader.position(partition) == 10
        reader.seek(partition, 2)
        assert (await all_of(reader, partition, 8))[0].value == b"2"


async def test_poll_gives_at_most_what_was_asked_and_nothing_when_there_is_nothing(under: Under) -> None:
    topic = await under.topic("poll")
    await under.publisher.send_many([Outgoing(topic, 0, None, b"%d" % n) for n in range(10)])
    partition = TopicPartition(topic.name, 0)
    async with under.log.read({partition: 0}) as reader:
        first = await reader.poll(partition, 4, 5.0)
        assert [record.value for record in first] == [b"0", b"1", b"2", b"3"]
        await all_of(reader, partition, 6)
        assert await reader.poll(partition, 4, 0.05) == ()


async def test_bounds_tell_log_start_and_end(under: Under) -> None:
    topic = await under.topic("bounds")
    await under.publisher.send_many([Outgoing(topic, 0, None, b"x")] * 5)
    bounds = await under.log.bounds([TopicPartition(topic.name, 0), TopicPartition(topic.name, 1)])
    assert bounds == {(topic.name, 0): (0, 5), (topic.name, 1): (0, 0)}


async def test_topics_are_listed_with_their_partitions_and_creating_twice_is_once(under: Under) -> None:
    topic = await under.topic("listed", 3)
    await under.publisher.send(topic, 0, None, b"kept")
    await under.log.create([topic])
    assert (await under.log.topics())[topic.name] == 3
    assert (await under.log.bounds([TopicPartition(topic.name, 0)]))[TopicPartition(topic.name, 0)].end == 1
    assert await under.log.cluster_id() == await under.log.cluster_id() != ""


async def test_two_members_split_the_partitions_and_the_survivor_takes_all(under: Under) -> None:
    topic = await under.topic("split", 2)
    async with joined(under, topic.name, topic) as (_, first):
        await first.owns(0, 1)
        async with joined(under, topic.name, topic) as (_, second):
            await first.owns_some(1)
            await second.owns_some(1)
            assert not first.assigned & second.assigned
            assert first.revocations > 0
        await first.owns(0, 1)


async def test_what_was_not_committed_is_delivered_again_and_what_was_is_not(under: Under) -> None:
    topic = await under.topic("redelivery", 1)
    partition = TopicPartition(topic.name, 0)
    await under.publisher.send_many([Outgoing(topic, 0, None, b"%d" % n) for n in range(10)])
    async with joined(under, topic.name, topic) as (member, reported):
        await reported.owns(0)
        await all_of(member, partition, 10)
        assert await member.commit({partition: 6})
    async with joined(under, topic.name, topic) as (member, reported):
        await reported.owns(0)
        assert [record.value for record in await all_of(member, partition, 4)] == [b"6", b"7", b"8", b"9"]
    assert await under.log.committed(topic.name, [partition]) == {partition: 6}


async def test_a_commit_for_a_partition_of_another_member_is_refused(under: Under) -> None:
    topic = await under.topic("refused", 1)
    async with joined(under, topic.name, topic) as (member, reported):
        await reported.owns(0)
        assert not await member.commit({TopicPartition(topic.name, 7): 1})


async def test_a_new_group_starts_at_the_earliest_record(under: Under) -> None:
    topic = await under.topic("earliest", 1)
    await under.publisher.send(topic, 0, None, b"before the group")
    async with joined(under, topic.name, topic) as (member, reported):
        await reported.owns(0)
        assert (await all_of(member, TopicPartition(topic.name, 0), 1))[0].value == b"before the group"


async def test_a_pattern_finds_topics_made_after_joining(under: Under) -> None:
    fixed = await under.topic("fixed", 1)
    prefix = under.name("ingress")
    async with joined(under, prefix, fixed, pattern=rf"^{prefix}\..*") as (member, reported):
        await reported.owns_some(1)
        late = Topic(f"{prefix}.acme", 1)
        await under.log.create([late])
        await under.publisher.send(late, 0, None, b"hello")
        await reported.owns_some(2)
        assert (await all_of(member, TopicPartition(late.name, 0), 1))[0].value == b"hello"


async def test_headers_and_the_trace_id_arrive(under: Under) -> None:
    topic = await under.topic("headers", 1)
    with bound_trace("0123456789abcdef"):
        await under.publisher.send(topic, 0, b"k", None, [("reason", b"too_short")])
        await under.publisher.send_many([Outgoing(topic, 0, b"k", b"v")])
    partition = TopicPartition(topic.name, 0)
    async with under.log.read({partition: 0}) as reader:
        one, many = await all_of(reader, partition, 2)
    assert one.value is None
    assert dict(one.headers)["reason"] == b"too_short"
    assert trace_of(one) == trace_of(many) == "0123456789abcdef"


async def test_a_partition_that_is_not_there_is_refused_for_good(under: Under) -> None:
    topic = await under.topic("narrow", 1)
    with pytest.raises(Permanent) as refused:
        await under.publisher.send(topic, 5, None, b"x")
    assert refused.value.reason == "unknown_partition"
    with pytest.raises(Permanent):
        await under.publisher.send_many([Outgoing(topic, 5, None, b"x")])


async def test_a_position_outside_the_log_is_an_error_when_no_reset_is_wanted(under: Under) -> None:
    topic = await under.topic("outside", 1)
    partition = TopicPartition(topic.name, 0)
    await under.publisher.send(topic, 0, None, b"x")
    reported = Reported()
    async with under.log.join(
        topic.name, [topic], on_assigned=reported.on_assigned, on_revoked=reported.on_revoked, reset="none"
    ) as member:
        await reported.owns(0)
        member.seek(partition, 99)
        with pytest.raises(Unusable, match="adopt-offsets"):
            await all_of(member, partition, 1)
