"""The lines that the README tells people to paste."""

import asyncio
import os
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path

from meiri.playlist.v1.daily_playlist_pb2 import DailyPlaylist, Reason, Recommendation
from meiri.playlist.v1.playlist_service_pb2_grpc import add_PlaylistServiceServicer_to_server

from infra.local.schemas import Databases
from services.playlists import store
from services.playlists.servicer import POLICIES, PlaylistServicer
from shared.clock import Clock
from shared.postgres import Database
from shared.rpc.principal import Scope
from shared.rpc.server import Server
from shared.rpc.tokens import Verifier
from shared.topics import ALL, PLAY_EVENTS, Topic
from tests.conftest import RealServers
from tests.integration.doors import PUBLIC, Doors, everything, new_tenant, token

ROOT = Path(__file__).parents[2]


async def _run(script: str, *arguments: str, **settings: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(ROOT / "docs" / "examples" / script), *arguments),
        env={**os.environ, "PYTHONPATH": str(ROOT / "protos" / "gen"), **settings},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


async def test_the_publish_example_publishes_a_play(
    servers: RealServers,
    database: Databases,
    topics: Callable[[tuple[Topic, ...]], None],
    tmp_path: Path,
) -> None:
    topics(ALL)
    doors = Doors(tmp_path, servers.bootstrap_servers, database.urls["gateway"])
    tenant_id = new_tenant()
    bearer = token(tenant_id, "backend", Scope.APP)
    async with doors.gateway() as address, doors.log() as log:
        ended = await _run("publish_play.py", "mira", "t-1", MEIRI_GATEWAY_ADDRESS=address, MEIRI_TOKEN=bearer)
        assert ended == (0, "acknowledged 1\n")
        assert [r for r in await everything(log, PLAY_EVENTS) if r.key == f"{tenant_id}|mira".encode()]


async def test_the_read_example_prints_the_list(database: Databases) -> None:
    tenant_id = new_tenant()
    song = Recommendation(title="Low Tide", artist_name="Glass Heron", reason=Reason(sentence="You often play this."))
    playlist = DailyPlaylist(
        tenant_id=tenant_id,
        user_id="mira",
        playlist_date="2026-03-01",
        version=1,
        recommendations=[song],
        familiar_share=0.5,
    )
    verifier = Verifier(PUBLIC, Clock())
    async with Database.open(database.urls["playlists"]) as db:
        async with db.transaction() as tx:
            row = store.StoredList(tenant_id, "mira", date(2026, 3, 1), 1, playlist.SerializeToString())
            await store.keep_newest(tx, [row])
        servicers = [(add_PlaylistServiceServicer_to_server, PlaylistServicer(db))]
        async with Server(
            "127.0.0.1:0", policies=POLICIES, verifier=verifier, servicers=servicers, max_concurrent=4
        ) as server:
            bearer = token(tenant_id, "mira", Scope.USER)
            address = f"127.0.0.1:{server.port}"
            ended = await _run("read_list.py", "mira", MEIRI_PLAYLISTS_ADDRESS=address, MEIRI_TOKEN=bearer)
    assert ended == (0, "mira, 2026-03-01: 50% familiar\n  Low Tide · Glass Heron — You often play this.\n")
