"""Ingest, put together: the catalogue's lengths, the producer, the consumer loop, and a port for health."""

import asyncio
import gc

import structlog

from services.ingest.handler import Handler
from services.ingest.settings import IngestSettings
from shared.codec.state import decode_tenant, decode_track
from shared.kafka.broker import KafkaLog
from shared.kafka.consumer import consume_at_least_once
from shared.kafka.producer import Producer
from shared.kafka.progress import Progress
from shared.kafka.view import TopicView
from shared.process import clock_of, run, verifier_of
from shared.rpc.server import Server
from shared.topics import INGRESS_PATTERN, PLAY_EVENTS, PLAY_IMPORTS, TENANTS, TRACKS

log = structlog.get_logger()

BATCH = 2_000
BATCH_WAIT_S = 0.05


async def serve(settings: IngestSettings) -> None:
    """Serve until SIGTERM or SIGINT. Raises Unusable with a sentence where the configuration cannot work."""
    clock = clock_of(settings)
    verifier = verifier_of(settings, clock)
    async with (
        Server(settings.ingest_listen, policies={}, verifier=verifier, servicers=(), max_concurrent=1) as server,
        KafkaLog.open(settings.kafka_bootstrap_servers, client_id="ingest") as events,
        Producer.open(settings.kafka_bootstrap_servers, client_id="ingest") as producer,
        TopicView.open(events, TRACKS, decode_key=bytes.decode, decode_value=_length_ms) as lengths,
        TopicView.open(events, TENANTS, decode_key=bytes.decode, decode_value=decode_tenant) as tenants,
    ):
        # A play whose event names no length gets the catalogue's, so the catalogue comes first.
        await lengths.ready()
        await tenants.ready()
        gc.freeze()  # the catalogue stays: do not walk it again and again
        handler = Handler(producer, lengths.get, lambda: len(tenants), clock, with_breaker=settings.ingest_breaker)
        stop, progress = asyncio.Event(), Progress()
        async with asyncio.TaskGroup() as tasks:
            side = [
                tasks.create_task(lengths.failed()),
                tasks.create_task(tenants.failed()),
                tasks.create_task(_log_windows(handler)),
                # A partition is stuck when its topic is halted or Kafka does not acknowledge.
                tasks.create_task(server.health.follow(progress.stuck)),
                tasks.create_task(progress.tell()),
            ]
            consuming = tasks.create_task(
                consume_at_least_once(
                    events,
                    "ingest",
                    (PLAY_EVENTS, PLAY_IMPORTS),
                    handler,
                    stop=stop,
                    pattern=INGRESS_PATTERN,
                    max_records=BATCH,
                    max_wait_s=BATCH_WAIT_S,
                    progress=progress,
                )
            )
            await server.serve_until_stopped()
            stop.set()
            await consuming
            for task in side:
                task.cancel()
        _log_window(handler)


def _length_ms(track: bytes) -> int:
    """0: the catalogue does not tell the length."""
    return decode_track(track).duration_ms or 0


async def _log_windows(handler: Handler) -> None:
    while True:
        await asyncio.sleep(1.0)
        _log_window(handler)


def _log_window(handler: Handler) -> None:
    """One line a second at most, and none when nothing came."""
    if handler.counts:
        log.info("ingest.window", **handler.counts, reasons=dict(handler.reasons), halted=sorted(handler.halted))
        handler.counts.clear()
        handler.reasons.clear()


def main() -> None:
    run("ingest", IngestSettings, serve)
