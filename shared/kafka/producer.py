"""`Publisher` on real Kafka: idempotent, acknowledged by all replicas, bounded in memory and in time."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, Self

import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    InvalidTopicError,
    KafkaError,
    MessageSizeTooLargeError,
    ProducerClosed,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)

from shared.errors import Permanent, Transient
from shared.kafka.broker import connected
from shared.kafka.log import Headers, Outgoing
from shared.telemetry import TRACE_HEADER, trace_id
from shared.topics import Topic

log = structlog.get_logger()

_REFUSED = (MessageSizeTooLargeError, RecordListTooLargeError, TopicAuthorizationFailedError, InvalidTopicError)
_RECORD_OVERHEAD = 96  # bytes a waiting record costs beside its key and value
_BATCH_BYTES = 1 << 20
_REQUEST_BYTES = 4 << 20  # what the topics allow (max.message.bytes)
_CLOSE_S = 5.0


class _Broken(Exception):
    """This producer cannot go on (a gap in its sequence, fenced, dead inside): make a new one and send again."""


class Producer:
    """Open with `Producer.open(servers)`. At most `max_in_flight_bytes` wait for their acknowledgement, else `Transient`.

    A failed batch leaves a gap in an idempotent producer's sequence, after which it never recovers: it is replaced by a
    new one and the records are sent again until the deadline.
    """

    def __init__(
        self, servers: str, client_id: str, linger_ms: int, delivery_timeout_s: float, max_in_flight_bytes: int
    ) -> None:
        self._servers = servers
        self._options = {
            "bootstrap_servers": servers,
            "client_id": client_id,
            "enable_idempotence": True,
            "acks": "all",
            "linger_ms": linger_ms,
            "max_batch_size": _BATCH_BYTES,
            "max_request_size": _REQUEST_BYTES,
            "request_timeout_ms": max(1000, int(delivery_timeout_s * 1000)),
        }
        self._delivery_timeout_s = delivery_timeout_s
        self._max_in_flight = max_in_flight_bytes
        self._in_flight = 0
        self._producer: Any = None
        self._rebuilding = asyncio.Lock()
        self._closing: set[asyncio.Task[None]] = set()

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        servers: str,
        *,
        client_id: str = "meiri",
        linger_ms: int = 2,
        delivery_timeout_s: float = 10.0,
        max_in_flight_bytes: int = 64 << 20,
        wait_s: float = 30.0,
    ) -> AsyncIterator[Self]:
        """Connect, waiting up to `wait_s` for the first broker; `Unusable` with a sentence if none answers.

        `linger_ms` is how long single sends wait for company; `send_many` never waits. On exit, what is in flight is
        sent.
        """
        opened = cls(servers, client_id, linger_ms, delivery_timeout_s, max_in_flight_bytes)
        await connected(opened._start, opened._discard, servers, wait_s)
        try:
            yield opened
        finally:
            await _stopped(opened._producer, delivery_timeout_s)
            if opened._closing:
                await asyncio.wait(opened._closing, timeout=_CLOSE_S)

    @property
    def in_flight_bytes(self) -> int:
        """Bytes handed to Kafka and not yet acknowledged, for health and metrics."""
        return self._in_flight

    async def send(
        self, topic: Topic, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()
    ) -> int:
        traced = _traced(headers)
        size = _size(key, value)
        self._admit(size)
        with self._deadline(topic):
            async with asyncio.timeout(self._delivery_timeout_s):
                while True:
                    producer = self._producer
                    try:
                        with _classified(topic, partition):
                            acknowledged = await producer.send(
                                topic.name, value, key=key, partition=partition, headers=traced
                            )
                            self._count(acknowledged, size)
                            return int((await asyncio.shield(acknowledged)).offset)
                    except _Broken as error:
                        await self._rebuild(producer, error)

    async def send_many(self, records: Sequence[Outgoing]) -> None:
        if not records:
            return
        self._admit(sum(_size(record.key, record.value) for record in records))
        by_partition: dict[tuple[Topic, int], list[Outgoing]] = {}
        for record in records:
            by_partition.setdefault((record.topic, record.partition), []).append(record)
        with self._deadline(records[0].topic):
            async with asyncio.timeout(self._delivery_timeout_s):
                results = await asyncio.gather(
                    *(self._send_batches(topic, partition, own) for (topic, partition), own in by_partition.items()),
                    return_exceptions=True,
                )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _send_batches(self, topic: Topic, partition: int, records: list[Outgoing]) -> None:
        """One partition's records in as few batches as fit; all are on their way before the first is awaited."""
        while True:
            producer = self._producer
            try:
                with _classified(topic, partition):
                    waiting = []
                    for batch, size in self._batches(producer, records):
                        acknowledged = await producer.send_batch(batch, topic.name, partition=partition)
                        self._count(acknowledged, size)
                        waiting.append(acknowledged)
                    for acknowledged in waiting:
                        await asyncio.shield(acknowledged)
                    return
            except _Broken as error:
                await self._rebuild(producer, error)

    def _batches(self, producer: Any, records: Sequence[Outgoing]) -> Iterator[tuple[Any, int]]:
        batch, size = producer.create_batch(), 0
        for record in records:
            one = _size(record.key, record.value)
            if one > _REQUEST_BYTES:
                raise Permanent(
                    "record_too_large", f"A record of {one} bytes does not fit Kafka's limit of {_REQUEST_BYTES}."
                )
            headers = _traced(record.headers)
            if batch.append(timestamp=None, key=record.key, value=record.value, headers=headers) is None:
                yield batch, size
                batch, size = producer.create_batch(), 0
                batch.append(timestamp=None, key=record.key, value=record.value, headers=headers)
            size += one
        batch.close()  # a closed batch does not linger
        yield batch, size

    def _admit(self, size: int) -> None:
        if self._in_flight and self._in_flight + size > self._max_in_flight:
            raise Transient(
                f"{self._in_flight} bytes wait for Kafka, {self._max_in_flight} are allowed: slow down and try again."
            )

    def _count(self, acknowledged: asyncio.Future[Any], size: int) -> None:
        """Hold `size` until Kafka answers, also after the caller's deadline: the bytes are in memory until then."""
        self._in_flight += size
        acknowledged.add_done_callback(partial(self._uncount, size))

    def _uncount(self, size: int, acknowledged: asyncio.Future[Any]) -> None:
        self._in_flight -= size
        if not acknowledged.cancelled():
            acknowledged.exception()  # seen: the caller may have given up waiting

    @contextmanager
    def _deadline(self, topic: Topic) -> Iterator[None]:
        try:
            yield
        except TimeoutError:
            if self._producer.client.cluster.partitions_for_topic(topic.name) is None:
                raise Transient(f"Topic {topic.name} is not known to Kafka: create it, then send again.") from None
            raise Transient(
                f"Kafka did not acknowledge records for {topic.name} in {self._delivery_timeout_s:g} s: send them again."
            ) from None

    async def _start(self) -> None:
        self._producer = AIOKafkaProducer(**self._options)
        await self._producer.start()

    async def _discard(self) -> None:
        await _stopped(self._producer, 0.0)

    async def _rebuild(self, broken: Any, error: _Broken) -> None:
        """Replace `broken`, once for all who found it broken."""
        async with self._rebuilding:
            if self._producer is not broken:
                return
            log.warning("producer.rebuilding", error=str(error))
            replacement = AIOKafkaProducer(**self._options)
            try:
                await replacement.start()
            except BaseException as failed:
                await _stopped(replacement, 0.0)
                if isinstance(failed, KafkaError):
                    raise Transient("Kafka cannot be reached: send the records again.") from failed
                raise
            self._producer = replacement
            closing = asyncio.create_task(_stopped(broken, 0.0))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)


@contextmanager
def _classified(topic: Topic, partition: int) -> Iterator[None]:
    try:
        yield
    except _REFUSED as error:
        raise Permanent(
            "kafka_refused", f"Kafka refuses the record for {topic.name} ({type(error).__name__}): {error.description}."
        ) from error
    except AssertionError as error:  # aiokafka's word for a partition that its metadata does not have
        raise Permanent("unknown_partition", f"Topic {topic.name} has no partition {partition}.") from error
    except UnknownTopicOrPartitionError as error:
        raise Transient(f"Topic {topic.name} does not exist on this Kafka: create it, then send again.") from error
    except KafkaError as error:
        raise _Broken(type(error).__name__) from error


async def _stopped(producer: Any, flush_s: float) -> None:
    """Flush for at most `flush_s`, then close in bounded time, brokers or not."""
    if producer is None:
        return
    with suppress(KafkaError, OSError, TimeoutError):
        if flush_s:
            async with asyncio.timeout(flush_s):
                await producer.flush()
    # aiokafka's stop() would wait for brokers that are gone: end its sender, and tell everyone who still waits.
    if (sender := producer._sender.sender_task) is not None:  # noqa: SLF001
        sender.cancel()
    producer._message_accumulator.fail_all(ProducerClosed())  # noqa: SLF001
    with suppress(KafkaError, OSError, TimeoutError, asyncio.CancelledError):
        async with asyncio.timeout(_CLOSE_S):
            await producer.stop()
    with suppress(KafkaError, OSError, TimeoutError):
        async with asyncio.timeout(_CLOSE_S):
            await producer.client.close()


def _traced(headers: Headers) -> list[tuple[str, bytes]]:
    trace = trace_id.get()
    if not trace or any(name == TRACE_HEADER for name, _ in headers):
        return list(headers)
    return [*headers, (TRACE_HEADER, trace.encode())]


def _size(key: bytes | None, value: bytes | None) -> int:
    return len(key or b"") + len(value or b"") + _RECORD_OVERHEAD
