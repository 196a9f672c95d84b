"""The composition root of features: opens, wires, runs, closes."""

import asyncio
import os
import sys
from pathlib import Path
from typing import NoReturn

import structlog
from meiri.features.v1.user_feature_service_pb2_grpc import add_UserFeatureServiceServicer_to_server

from services.features import faust_app
from services.features.dead_letters import DeadLetters
from services.features.feedback import FeedbackHandler
from services.features.handler import PlaysHandler
from services.features.servicer import POLICIES, UserFeatureServicer
from services.features.settings import FeaturesSettings
from services.features.source import Source
from shared.clock import Clock
from shared.errors import Unusable
from shared.kafka.broker import KafkaLog
from shared.kafka.loop import topics_exist
from shared.kafka.partition import StoredOffsets
from shared.kafka.producer import Producer
from shared.kafka.progress import Progress
from shared.postgres import Database
from shared.process import run
from shared.rpc.server import Server
from shared.rpc.tokens import Verifier
from shared.topics import DEAD_LETTERS, FEEDBACK, PLAYS

log = structlog.get_logger()

GROUP = "features"
_WRITERS = 4  # one a partition
_READERS = 8
_MAX_CALLS = 16
_EXIT_FAILED = 70
# A look-up by index must stay one, whatever the planner believes of tables that were empty a minute ago.
_PLANS = {"enable_seqscan": "off", "jit": "off"}


def main() -> None:
    run("features", FeaturesSettings, serve)


async def serve(settings: FeaturesSettings) -> None:
    clock = Clock(Path(settings.clock_file) if settings.clock_file else None)
    verifier = Verifier(_read(settings.token_public_key), clock)
    servers, dsn = settings.kafka_bootstrap_servers, settings.features_database_url
    async with (
        Database.open(dsn, pool_size=_WRITERS, application_name="features", server_settings=_PLANS) as writing,
        Database.open(dsn, pool_size=_READERS, application_name="features-rpc", server_settings=_PLANS) as reading,
        KafkaLog.open(servers, client_id="features") as event_log,
        Producer.open(servers, client_id="features") as producer,
        Server(
            settings.features_listen,
            policies=POLICIES,
            verifier=verifier,
            servicers=[(add_UserFeatureServiceServicer_to_server, UserFeatureServicer(reading))],
            max_concurrent=_MAX_CALLS,
        ) as server,
    ):
        if not await topics_exist(event_log, (PLAYS, FEEDBACK, DEAD_LETTERS), asyncio.Event()):
            return
        loop = asyncio.get_running_loop()
        health: set[asyncio.Task[None]] = set()

        def on_stuck(stuck: bool) -> None:
            task = loop.create_task(server.health.set(serving=not stuck))
            health.add(task)
            task.add_done_callback(health.discard)

        dead_letters = DeadLetters(producer)
        source = Source(
            event_log,
            StoredOffsets(writing, await event_log.cluster_id()),
            {PLAYS.name: PlaysHandler(dead_letters), FEEDBACK.name: FeedbackHandler(dead_letters)},
            progress=Progress(),
            on_stuck=on_stuck,
        )
        app = faust_app.create(
            servers, GROUP, (PLAYS, FEEDBACK), source, instance=settings.features_instance, failed=leave
        )
        await app.start()
        watching = asyncio.create_task(_watch(app))
        try:
            await server.health.set(serving=True)
            log.info("features.ready", instance=settings.features_instance)
            await server.serve_until_stopped()
        finally:
            watching.cancel()
            await app.stop()
        log.info("features.stopped")


async def _watch(app: faust_app.App) -> NoReturn:
    leave(await faust_app.crash_of(app))


def leave(error: BaseException) -> NoReturn:
    """End the process now, without a chance for Faust to acknowledge anything. The supervisor starts it again."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, Unusable):
        log.error("process.unusable", reason=str(error))
        sys.stderr.write(f"{error}\n")
    else:
        log.error("features.leaving", error=str(error), exc_info=error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(2 if isinstance(error, Unusable) else _EXIT_FAILED)


def _read(public_key_file: str) -> str:
    try:
        return Path(public_key_file).read_text(encoding="ascii")
    except (OSError, ValueError):
        raise Unusable(
            f"MEIRI_TOKEN_PUBLIC_KEY names {public_key_file}, which cannot be read: name the PEM file."
        ) from None
