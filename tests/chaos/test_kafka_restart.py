"""The broker is killed (-9) and comes back: producer, consumer and view go on; nothing acknowledged is lost."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from shared.errors import Transient, Unusable
from shared.kafka.broker import KafkaLog
from shared.kafka.consumer import consume_at_least_once
from shared.kafka.log import Outgoing, Record, TopicPartition
from shared.kafka.producer import Producer
from shared.kafka.view import TopicView
from shared.topics import Topic
from tests.conftest import RealServers


async def test_nothing_acknowledged_is_lost_when_the_broker_is_killed(
    servers: RealServers, topic_name: Callable[[str], str]
) -> None:
    topic = Topic(topic_name("killed"), 4)
    state = Topic(topic_name("state"), 2, {"cleanup.policy": "compact"})
    acknowledged: set[bytes] = set()
    consumed: Counter[bytes] = Counter()
    over, stop = asyncio.Event(), asyncio.Event()

    async def handler(_: TopicPartition, records: Sequence[Record]) -> None:
        consumed.update(record.value or b"" for record in records)

    bootstrap = servers.bootstrap_servers
    async with (
        KafkaLog.open(bootstrap, session_timeout_s=6.0) as log,
        Producer.open(bootstrap, delivery_timeout_s=5.0) as producer,
    ):
        await log.create([topic, state])

        async def produce(worker: int) -> None:
            number = 0
            while not over.is_set():
                number += 1
                values = [b"%d %d %d" % (worker, number, n) for n in range(20)]
                records = [Outgoing(topic, n % 4, None, value) for n, value in enumerate(values)]
                records.append(Outgoing(state, worker % 2, b"worker %d" % worker, b"%d" % number))
                try:
                    await producer.send_many(records)
                except Transient:
                    await asyncio.sleep(0.1)
                    continue
                acknowledged.update(values)
                await asyncio.sleep(0.002)

        async with TopicView.open(log, state, decode_key=bytes.decode, decode_value=int) as view:
            consumer = asyncio.create_task(consume_at_least_once(log, topic.name, [topic], handler, stop=stop))
            workers = [asyncio.create_task(produce(worker)) for worker in range(4)]
            await asyncio.sleep(1.5)
            before, had = servers.pid("kafka"), len(acknowledged)
            servers.kill("kafka")
            await asyncio.to_thread(lambda: servers.wait_ready("kafka", other_than=before))
            async with asyncio.timeout(30):
                while len(acknowledged) < had + 1000:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            over.set()
            await asyncio.gather(*workers)
            for worker in range(4):
                await producer.send(state, worker % 2, b"worker %d" % worker, b"-1")
            last = {f"worker {worker}": -1 for worker in range(4)}
            async with asyncio.timeout(30):
                while acknowledged - consumed.keys() or dict(view.items()) != last:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            stop.set()
            await asyncio.wait_for(consumer, 15)
        partitions = [TopicPartition(topic.name, number) for number in range(4)]
        ends = {partition: bounds.end for partition, bounds in (await log.bounds(partitions)).items()}
        assert await log.committed(topic.name, partitions) == ends
    assert len(acknowledged) > 1000


async def test_while_the_broker_is_away_sends_end_by_their_deadline_and_memory_is_bounded(
    servers: RealServers, topic_name: Callable[[str], str]
) -> None:
    topic = Topic(topic_name("away"), 1)
    bootstrap = servers.bootstrap_servers
    async with (
        KafkaLog.open(bootstrap) as log,
        Producer.open(bootstrap, delivery_timeout_s=1.0, max_in_flight_bytes=50_000) as producer,
    ):
        await log.create([topic])
        await producer.send(topic, 0, None, b"before")
        before = servers.pid("kafka")
        servers.kill("kafka")
        started = time.monotonic()
        results = await asyncio.gather(
            *(producer.send(topic, 0, None, b"x" * 1000) for _ in range(200)), return_exceptions=True
        )
        assert time.monotonic() - started < 5  # the default is to try for that long
        refused = [result for result in results if isinstance(result, Transient)]
        assert sum("slow down" in str(result) for result in refused) >= 150
        assert producer.in_flight_bytes <= 50_000
        await asyncio.to_thread(lambda: servers.wait_ready("kafka", other_than=before))
        async with asyncio.timeout(20):
            while True:
                try:
                    await producer.send(topic, 0, None, b"after")
                    break
                except Transient:
                    await asyncio.sleep(0.1)
            while producer.in_flight_bytes:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def test_a_producer_whose_sequence_is_broken_is_replaced(
    servers: RealServers, topic_name: Callable[[str], str]
) -> None:
    topic = Topic(topic_name("sequence"), 1)
    async with KafkaLog.open(servers.bootstrap_servers) as log, Producer.open(servers.bootstrap_servers) as producer:
        await log.create([topic])
        await producer.send(topic, 0, None, b"1")
        first = producer._producer
        first._txn_manager.increment_sequence_number((topic.name, 0), 5)  # as if a batch in between had been lost
        await asyncio.gather(producer.send(topic, 0, None, b"2"), producer.send_many([Outgoing(topic, 0, None, b"3")]))
        assert producer._producer is not first
        assert producer.in_flight_bytes == 0
        partition = TopicPartition(topic.name, 0)
        async with log.read({partition: 0}) as reader:
            values: list[bytes | None] = []
            async with asyncio.timeout(10):
                while len(values) < 3:
                    values += [record.value for record in await reader.poll(partition, 10, 0.5)]
        assert sorted(values, key=str) == [b"1", b"2", b"3"]


async def test_no_broker_at_all_is_one_sentence() -> None:
    with pytest.raises(Unusable, match=r"No Kafka broker answers at 127\.0\.0\.1:1"):
        async with KafkaLog.open("127.0.0.1:1", wait_s=1.0):
            pass
    with pytest.raises(Unusable, match="No Kafka broker answers"):
        async with Producer.open("127.0.0.1:1", wait_s=1.0):
            pass
