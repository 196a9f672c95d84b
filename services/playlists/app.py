"""The playlist service, put together: Postgres, the consumer of published lists, and gRPC."""

import asyncio
import sys

from meiri.playlist.v1.playlist_service_pb2_grpc import add_PlaylistServiceServicer_to_server

from services.playlists.handler import keep
from services.playlists.servicer import POLICIES, PlaylistServicer
from services.playlists.settings import PlaylistsSettings
from shared.kafka.adopt import COMMAND, adopt_offsets
from shared.kafka.broker import KafkaLog
from shared.kafka.consumer import consume_stored
from shared.kafka.partition import StoredOffsets
from shared.kafka.progress import Progress
from shared.postgres import Database
from shared.process import clock_of, run, verifier_of
from shared.rpc.server import Server
from shared.topics import DAILY_PLAYLISTS

MAX_CONCURRENT = 256


async def serve(settings: PlaylistsSettings) -> None:
    stop, progress = asyncio.Event(), Progress()
    async with (
        Database.open(settings.playlists_database_url, application_name="playlists") as db,
        Server(
            settings.playlists_listen,
            policies=POLICIES,
            verifier=verifier_of(settings, clock_of(settings)),
            servicers=[(add_PlaylistServiceServicer_to_server, PlaylistServicer(db))],
            max_concurrent=MAX_CONCURRENT,
        ) as server,
        KafkaLog.open(settings.kafka_bootstrap_servers, client_id="playlists") as events,
        asyncio.TaskGroup() as tasks,
    ):
        offsets = StoredOffsets(db, await events.cluster_id())
        tasks.create_task(
            consume_stored(events, "playlists", [DAILY_PLAYLISTS], offsets, keep, stop=stop, progress=progress)
        )
        side = [tasks.create_task(work) for work in (server.health.follow(progress.stuck), progress.tell())]
        await server.serve_until_stopped()
        stop.set()
        for task in side:
            task.cancel()


async def adopt(settings: PlaylistsSettings) -> None:
    await adopt_offsets(settings.kafka_bootstrap_servers, settings.playlists_database_url, (DAILY_PLAYLISTS,))


def main() -> None:
    run("playlists", PlaylistsSettings, adopt if sys.argv[1:] == [COMMAND] else serve)
