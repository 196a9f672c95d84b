"""The Faust app: made by a function, without tables, web server, topics of its own or anything kept outside Postgres."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import faust
from yarl import URL

from services.features.faust_transport import Consumer, Transport
from services.features.source import Delivered, Source
from shared.kafka.log import TopicPartition
from shared.topics import Topic

_BATCH_RECORDS = 64
_BATCH_WAIT_S = 0.1
"""A batch is full, or what came within this time."""

App = faust.App
Failed = Callable[[BaseException], None]
"""Ends the process. Faust acknowledges a batch whose agent failed, so nothing of this process may go on."""


class _App(faust.App):
    def _create_directories(self) -> None:
        """Make none: they are for tables."""


def create(
    bootstrap_servers: str, group: str, topics: Sequence[Topic], source: Source, *, instance: str, failed: Failed
) -> faust.App:
    """Make an app that hands `topics` to `source` from the source's own offsets on. `await app.start()`, `await app.stop()`."""

    async def begin(partitions: frozenset[TopicPartition]) -> Mapping[TopicPartition, int]:
        try:
            return await source.begin(partitions)
        except Exception as error:
            failed(error)
            raise

    app = _App(
        group,
        broker=[URL(f"kafka://{server.strip()}") for server in bootstrap_servers.split(",")],
        key_serializer="raw",
        value_serializer="raw",
        web_enabled=False,
        topic_allow_declare=False,
        topic_disable_leader=True,
        stream_wait_empty=False,
        stream_buffer_maxsize=2 * _BATCH_RECORDS,
        consumer_max_fetch_size=4 << 20,
        broker_max_poll_records=_BATCH_RECORDS,
        broker_session_timeout=10.0,
        broker_heartbeat_interval=3.0,
        broker_request_timeout=90.0,
        broker_rebalance_timeout=30.0,
        broker_commit_interval=1.0,
        broker_commit_livelock_soft_timeout=3600.0,
        stream_processing_timeout=3600.0,
    )
    app.transport = Transport(app.conf.broker_consumer, app, begin=begin, instance=instance)

    async def count(stream: Any) -> None:
        consumer = cast(Consumer, app.consumer)
        async for events in stream.take_events(_BATCH_RECORDS, within=_BATCH_WAIT_S):
            try:
                stored = await source.apply([_delivered(event.message) for event in events], consumer.follows)
            except Exception as error:
                failed(error)
                raise
            for partition, offset in stored.items():
                consumer.forget_holes(partition, offset)

    channel = app.topic(*(topic.name for topic in topics), key_type=bytes, value_type=bytes)
    app.agent(channel, name="features.count", concurrency=1)(count)
    return app


def _delivered(message: Any) -> Delivered:
    headers = message.headers or ()
    return Delivered(
        message.topic,
        message.partition,
        message.offset,
        int((message.timestamp or 0) * 1000),
        message.key,
        message.value,
        tuple(headers.items() if isinstance(headers, dict) else headers),
    )


async def crash_of(app: faust.App) -> BaseException:
    """Return the reason as soon as Faust has crashed inside."""
    await app._crashed.wait()  # noqa: SLF001 - nothing public tells it
    return app.crash_reason or RuntimeError("Faust stopped without a reason")
