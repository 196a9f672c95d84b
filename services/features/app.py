"""The composition root of features: opens, wires, runs, closes."""

import asyncio
import os
import sys
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
from shared.errors import Unusable
from shared.kafka.adopt import COMMAND, adopt_offsets
from shared.kafka.broker import KafkaLog
from shared.kafka.loop import topics_exist
from shared.kafka.partition import StoredOffsets
from shared.kafka.producer import Producer
from shared.kafka.progress import Progress
from shared.postgres import Database
from shared.process import clock_of, run, verifier_of
from shared.rpc.server import Server
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
    run("features", FeaturesSettings, adopt if sys.argv[1:] == [COMMAND] else serve)


async def adopt(settings: FeaturesSettings) -> None:
    await adopt_offsets(settings.kafka_bootstrap_servers, settings.features_database_url, (PLAYS, FEEDBACK))


async def serve(settings: FeaturesSettings) -> None:
    clock = clock_of(settings)
    servers, dsn = settings.kafka_bootstrap_servers, settings.features_database_url
    async with (
        Database.open(dsn, pool_size=_WRITERS, application_name="features", server_settings=_PLANS) as writing,
        Database.open(dsn, pool_size=_READERS, application_name="features-rpc", server_settings=_PLANS) as reading,
        KafkaLog.open(servers, client_id="features") as event_log,
        Producer.open(servers, client_id="features") as producer,
        Server(
            settings.features_listen,
            policies=POLICIES,
            verifier=verifier_of(settings, clock),
            servicers=[(add_UserFeatureServiceServicer_to_server, UserFeatureServicer(reading))],
            max_concurrent=_MAX_CALLS,
        ) as server,
    ):
        if not await topics_exist(event_log, (PLAYS, FEEDBACK, DEAD_LETTERS), asyncio.Event()):
            return
        progress = Progress()
        dead_letters = DeadLetters(producer, clock)
        source = Source(
            event_log,
            StoredOffsets(writing, await event_log.cluster_id()),
            {PLAYS.name: PlaysHandler(dead_letters), FEEDBACK.name: FeedbackHandler(dead_letters)},
            progress=progress,
        )
        app = faust_app.create(
            servers, GROUP, (PLAYS, FEEDBACK), source, instance=settings.features_instance, failed=leave
        )
        await app.start()
        side = [
            asyncio.create_task(work) for work in (_watch(app), server.health.follow(progress.stuck), progress.tell())
        ]
        try:
            log.info("features.ready", instance=settings.features_instance)
            await server.serve_until_stopped()
        finally:
            for task in side:
                task.cancel()
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
