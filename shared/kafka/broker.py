"""The event log on real Kafka, by aiokafka. Nothing of aiokafka is seen outside this file and the producer."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Literal, Self, TypeVar

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
from aiokafka import TopicPartition as KafkaPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import (
    CommitFailedError,
    IllegalStateError,
    KafkaError,
    OffsetOutOfRangeError,
    TopicAlreadyExistsError,
    for_code,
)

from shared.errors import Transient, Unusable
from shared.kafka.log import ADOPT, Bounds, OnPartitions, Record, TopicPartition
from shared.topics import Topic

log = structlog.get_logger()

_ANSWER_S = 10.0  # a question to the cluster (bounds, commit, topics) is answered by then, or Transient
_CLOSE_S = 5.0
T = TypeVar("T")


async def connected(
    start: Callable[[], Awaitable[None]], close: Callable[[], Awaitable[None]], servers: str, wait_s: float
) -> None:
    """Await `start`, again and again while no broker answers, at most `wait_s`."""
    deadline = asyncio.get_running_loop().time() + wait_s
    waited = False
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                return await start()
        except (KafkaError, OSError, TimeoutError) as error:
            with suppress(Exception):
                await close()
            if asyncio.get_running_loop().time() + 0.5 >= deadline:
                raise Unusable(
                    f"No Kafka broker answers at {servers}. Check the bootstrap servers and that Kafka runs."
                ) from error
            if not waited:
                waited = True
                log.warning("kafka.waiting", servers=servers)
            await asyncio.sleep(0.5)


@contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise Transient(f"Kafka did not answer within {_ANSWER_S:.0f} s ({what}): try again.") from None
    except KafkaError as error:
        if error.retriable:
            raise Transient(f"Kafka could not do it now ({what}: {type(error).__name__}): try again.") from error
        raise


class KafkaLog:
    """`EventLog` on a Kafka cluster. Open with `KafkaLog.open(servers)`."""

    def __init__(self, servers: str, client_id: str, session_timeout_s: float) -> None:
        self._servers = servers
        self._client_id = client_id
        self._session_timeout_ms = int(session_timeout_s * 1000)
        self._questions: Any = None
        self._admin: Any = None

    @classmethod
    @asynccontextmanager
    async def open(
        cls, servers: str, *, client_id: str = "meiri", session_timeout_s: float = 10.0, wait_s: float = 30.0
    ) -> AsyncIterator[Self]:
        """Connect, waiting up to `wait_s` for the first broker; `Unusable` with a sentence if none answers.

        A group member silent for `session_timeout_s` loses its partitions.
        """
        opened = cls(servers, client_id, session_timeout_s)
        await connected(opened._start, opened._stop, servers, wait_s)
        try:
            yield opened
        finally:
            await opened._stop()

    async def _start(self) -> None:
        self._questions = AIOKafkaConsumer(bootstrap_servers=self._servers, client_id=self._client_id)
        self._admin = AIOKafkaAdminClient(bootstrap_servers=self._servers, client_id=self._client_id)
        await self._questions.start()
        await self._admin.start()

    async def _stop(self) -> None:
        for client, close in ((self._questions, "stop"), (self._admin, "close")):
            if client is not None:
                with suppress(KafkaError, OSError, TimeoutError):
                    async with asyncio.timeout(_CLOSE_S):
                        await getattr(client, close)()

    async def cluster_id(self) -> str:
        return str((await self._ask(self._admin.describe_cluster, "cluster id"))["cluster_id"])

    async def topics(self) -> Mapping[str, int]:
        described = await self._ask(self._admin.describe_topics, "topics")
        return {topic["topic"]: len(topic["partitions"]) for topic in described if not topic["error_code"]}

    async def create(self, topics: Sequence[Topic]) -> None:
        missing = await self.topics()
        new = [
            NewTopic(topic.name, topic.partitions, -1, {}, topic.config)
            for topic in topics
            if topic.name not in missing
        ]
        if not new:
            return
        response = await self._ask(lambda: self._admin.create_topics(new), "create topics")
        for name, code, *_ in response.topic_errors:
            error = for_code(code)
            if code and error is not TopicAlreadyExistsError:
                raise Unusable(f"Kafka refused to create topic {name} ({error.__name__}): {error.description}")

    async def bounds(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Bounds]:
        wanted = [KafkaPartition(*partition) for partition in partitions]
        starts = await self._ask(lambda: self._questions.beginning_offsets(wanted), "log start")
        ends = await self._ask(lambda: self._questions.end_offsets(wanted), "log end")
        return {TopicPartition(*partition): Bounds(starts[partition], ends[partition]) for partition in wanted}

    async def committed(self, group: str, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        wanted = [KafkaPartition(*partition) for partition in partitions]
        found = await self._ask(lambda: self._admin.list_consumer_group_offsets(group, partitions=wanted), "offsets")
        return {TopicPartition(*partition): at.offset for partition, at in found.items() if at.offset >= 0}

    async def _ask(self, question: Callable[[], Awaitable[T]], what: str) -> T:
        """One question, asked again while brokers restart, answered in bounded time."""
        with _translated(what):
            async with asyncio.timeout(_ANSWER_S):
                while True:
                    try:
                        return await question()
                    except KafkaError as error:
                        if not error.retriable:
                            raise
                        await asyncio.sleep(0.2)

    @asynccontextmanager
    async def join(
        self,
        group: str,
        topics: Sequence[Topic],
        *,
        pattern: str | None = None,
        on_assigned: OnPartitions,
        on_revoked: OnPartitions,
        reset: Literal["earliest", "none"] = "earliest",
    ) -> AsyncIterator["_KafkaMember"]:
        consumer = self._consumer(
            group_id=group,
            auto_offset_reset=reset,
            session_timeout_ms=self._session_timeout_ms,
            heartbeat_interval_ms=self._session_timeout_ms // 4,
            rebalance_timeout_ms=max(30_000, self._session_timeout_ms),
            # A slow handler must not be taken for a dead member: the loop watches progress itself, and a member that
            # aiokafka believes idle would not join again.
            max_poll_interval_ms=2**31 - 1,
            metadata_max_age_ms=5_000 if pattern else 60_000,
        )
        member = _KafkaMember(consumer)
        listener = _Listener(member, on_assigned, on_revoked)
        try:
            with _translated(f"join group {group}"):
                await consumer.start()  # before it subscribes, so that it does not wait for its first partitions
            if pattern is None:
                consumer.subscribe([topic.name for topic in topics], listener=listener)
            else:
                names = "|".join([*(f"^{re.escape(topic.name)}$" for topic in topics), pattern])
                consumer.subscribe(pattern=names, listener=listener)
            yield member
        finally:
            await _stopped(consumer)

    @asynccontextmanager
    async def read(self, starts: Mapping[TopicPartition, int]) -> AsyncIterator["_KafkaReader"]:
        consumer = self._consumer(group_id=None, auto_offset_reset="earliest", metadata_max_age_ms=60_000)
        consumer.assign([KafkaPartition(*partition) for partition in starts])
        try:
            with _translated("read"):
                await consumer.start()
            reader = _KafkaReader(consumer)
            for partition, offset in starts.items():
                reader.seek(partition, offset)
            yield reader
        finally:
            await _stopped(consumer)

    def _consumer(self, **options: Any) -> Any:
        return AIOKafkaConsumer(
            bootstrap_servers=self._servers,
            client_id=self._client_id,
            enable_auto_commit=False,
            fetch_max_wait_ms=100,  # while a fetch waits for quiet partitions, a busy one cannot be asked for more
            max_partition_fetch_bytes=4 << 20,
            **options,
        )


async def _stopped(consumer: Any) -> None:
    """Leave the group and close, in bounded time even without brokers."""
    with suppress(KafkaError, OSError, TimeoutError):
        async with asyncio.timeout(_CLOSE_S):
            await consumer.stop()


class _KafkaReader:
    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    def partitions(self) -> frozenset[TopicPartition]:
        return frozenset(TopicPartition(*partition) for partition in self._consumer.assignment())

    async def poll(self, partition: TopicPartition, max_records: int, wait_s: float) -> Sequence[Record]:
        kafka_partition = KafkaPartition(*partition)
        try:
            polled = await self._consumer.getmany(
                kafka_partition, timeout_ms=max(1, int(wait_s * 1000)), max_records=max_records
            )
        except OffsetOutOfRangeError as error:
            offset = error.args[0].get(kafka_partition) if error.args else None
            raise Unusable(
                f"Offset {offset} of {partition} is no longer in the log: records were "
                f"deleted. Look at what was lost; to go on from the log's start, {ADOPT}."
            ) from error
        records: Sequence[Record] = polled.get(kafka_partition, ())
        return records

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._consumer.seek(KafkaPartition(*partition), offset)

    async def position(self, partition: TopicPartition) -> int:
        with _translated("position"):
            async with asyncio.timeout(_ANSWER_S):
                return int(await self._consumer.position(KafkaPartition(*partition)))


class _KafkaMember(_KafkaReader):
    async def commit(self, offsets: Mapping[TopicPartition, int]) -> bool:
        with _translated("commit"):
            try:
                async with asyncio.timeout(_ANSWER_S):
                    await self._consumer.commit({KafkaPartition(*tp): offset for tp, offset in offsets.items()})
            except (CommitFailedError, IllegalStateError):
                return False
        return True

    def check(self) -> None:
        with _translated("group"):
            self._consumer._coordinator.check_errors()  # noqa: SLF001 - the public way, getmany, would take records
        fetcher = self._consumer._fetcher.error_future  # noqa: SLF001 - nothing else tells that fetching has died
        if fetcher.done() and not fetcher.cancelled():
            fetcher.result()


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, member: _KafkaMember, on_assigned: OnPartitions, on_revoked: OnPartitions) -> None:
        self._member = member
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked

    async def on_partitions_assigned(self, assigned: set[KafkaPartition]) -> None:
        await self._on_assigned(self._member, frozenset(TopicPartition(*partition) for partition in assigned))

    async def on_partitions_revoked(self, revoked: set[KafkaPartition]) -> None:
        await self._on_revoked(self._member, frozenset(TopicPartition(*partition) for partition in revoked))
