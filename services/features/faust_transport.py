"""Faust's Kafka transport, made to read from our own stored offsets and to tell when records were skipped.

Faust reads on from the group's committed offsets, commits past records it lost, and after a rebalance may hand over a record that
does not follow the one before. Here the "committed" offsets are those that the state itself holds, and each fetched record
remembers where the partition stood before it, so that a hole in the log (normal) can be told from a skipped record (never).
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import aiokafka
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from faust.transport.drivers import aiokafka as driver
from faust.types import TP

from shared.kafka.log import TopicPartition

Begin = Callable[[frozenset[TopicPartition]], Awaitable[Mapping[TopicPartition, int]]]
"""Tells where to read each of these partitions from. Must not raise."""

_FETCH_WAIT_MS = 100
"""While a fetch waits for quiet partitions, a busy one cannot be asked for more."""
_NEVER_MS = 2**31 - 1


class Consumer(driver.Consumer):
    """`begin` tells the offsets to start from, whenever partitions were assigned."""

    def __init__(self, *args: Any, begin: Begin, instance: str, **options: Any) -> None:
        self._begin = begin
        self.instance = instance
        self._read_to: dict[TopicPartition, int] = {}
        self._holes: dict[TopicPartition, dict[int, int]] = {}  # offset → where the partition stood before it
        self._seeks = 0
        super().__init__(*args, **options)

    def _new_consumer_thread(self) -> "_ConsumerThread":
        return _ConsumerThread(self, loop=self.loop, beacon=self.beacon)

    async def seek_to_committed(self) -> Mapping[TP, int]:
        """Seek every assigned partition to its stored offset. What Faust then believes committed is what is stored."""
        assigned = frozenset(TopicPartition(*tp) for tp in self.assignment())
        starts = await self._begin(assigned)
        self._seeks += 1
        for partition, offset in starts.items():
            await self._seek(TP(*partition), offset)
            self._read_to[partition] = offset
            self._holes[partition] = {}
        return {TP(*partition): offset for partition, offset in starts.items()}

    async def _getmany(self, active_partitions: set[TP] | None, timeout: float) -> Mapping[TP, Any]:  # noqa: ASYNC109
        seeks = self._seeks
        fetched: Mapping[TP, Any] = await super()._getmany(active_partitions, timeout)
        for tp, records in fetched.items():
            partition = TopicPartition(*tp)
            if partition not in self._read_to:
                continue
            position, holes = self._read_to[partition], {}
            for place, record in enumerate(records):
                # Where a seek came in between, the first record may be of before it: then its distance proves nothing.
                if record.offset != position and (place > 0 or seeks == self._seeks):
                    holes[record.offset] = position
                position = record.offset + 1
            self._read_to[partition] = position
            # Where the log was cut off while we read, the client jumps to its new start: those records are lost, no hole.
            if holes and (await self.earliest_offsets(tp))[tp] <= min(holes.values()):
                self._holes[partition].update(holes)
        return fetched

    def follows(self, partition: TopicPartition, offset: int, position: int) -> bool:
        """Whether the log holds no record between `position` and `offset`."""
        return offset <= position or self._holes.get(partition, {}).get(offset, offset) <= position

    def forget_holes(self, partition: TopicPartition, position: int) -> None:
        """Holes below `position` will not be asked for again."""
        holes = self._holes.get(partition, {})
        for offset in [offset for offset in holes if offset < position]:
            del holes[offset]


class _ConsumerThread(driver.AIOKafkaConsumerThread):
    consumer: Consumer

    def _create_worker_consumer(self, transport: Any) -> aiokafka.AIOKafkaConsumer:
        conf = self.app.conf
        # Faust has no setting for some of these. By range, each member gets the same share of every topic.
        self._assignor = RangePartitionAssignor
        return aiokafka.AIOKafkaConsumer(
            bootstrap_servers=driver.server_list(transport.url, transport.default_port),
            client_id=conf.broker_client_id,
            group_id=conf.id,
            # A static member that was killed and comes back gets its partitions at once, without a rebalance.
            group_instance_id=self.consumer.instance,
            partition_assignment_strategy=[RangePartitionAssignor],
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            max_poll_records=conf.broker_max_poll_records,
            max_poll_interval_ms=_NEVER_MS,  # a database that is away must not cost the partitions
            max_partition_fetch_bytes=conf.consumer_max_fetch_size,
            fetch_max_wait_ms=_FETCH_WAIT_MS,
            request_timeout_ms=int(conf.broker_request_timeout * 1000),
            session_timeout_ms=int(conf.broker_session_timeout * 1000),
            rebalance_timeout_ms=int(conf.broker_rebalance_timeout * 1000),
            heartbeat_interval_ms=int(conf.broker_heartbeat_interval * 1000),
            metadata_max_age_ms=conf.consumer_metadata_max_age_ms,
            connections_max_idle_ms=conf.consumer_connections_max_idle_ms,
        )


class Transport(driver.Transport):
    """Makes the one consumer of its app; `begin` and `instance` as in `Consumer`."""

    def __init__(self, *args: Any, begin: Begin, instance: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self._begin = begin
        self._instance = instance

    def create_consumer(self, callback: Any, **options: Any) -> Consumer:
        return Consumer(self, callback=callback, begin=self._begin, instance=self._instance, **options)
