"""The operator's word that a loss is accepted: `python -m services.<name> adopt-offsets`, while the service is stopped."""

from collections.abc import Sequence

import structlog

from shared.errors import Unusable
from shared.kafka.broker import KafkaLog
from shared.kafka.log import TopicPartition
from shared.kafka.partition import StoredOffsets
from shared.postgres import Database
from shared.topics import Topic

log = structlog.get_logger()

COMMAND = "adopt-offsets"


async def adopt_offsets(servers: str, dsn: str, topics: Sequence[Topic]) -> None:
    """Where the stored offset of a partition cannot be gone on from, go on from the log's start. The others stay."""
    async with Database.open(dsn, pool_size=1) as db, KafkaLog.open(servers) as event_log:
        offsets = StoredOffsets(db, await event_log.cluster_id())
        partitions = [TopicPartition(topic.name, number) for topic in topics for number in range(topic.partitions)]
        for partition, bounds in (await event_log.bounds(partitions)).items():
            try:
                await offsets.begin(partition, bounds)
            except Unusable as refusal:
                await offsets.adopt(partition, bounds.start)
                log.warning(
                    "offsets.adopted",
                    topic=partition.topic,
                    partition=partition.partition,
                    offset=bounds.start,
                    reason=str(refusal),
                )
