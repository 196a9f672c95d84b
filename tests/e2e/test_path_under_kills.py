"""kill -9 of every service and of the broker while plays flow through both doors and lists are made."""

import asyncio
import os
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from infra.demo import asking
from infra.demo import run as stages
from infra.demo.feed import resent
from infra.demo.world import Plays
from services.trainer.archive import Archive
from shared.clock import move_to, read_offset
from tests.e2e.system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")

KILLED = ("gateway", "ingest", "features", "trainer", "embedder", "materialiser", "playlists", "kafka")
ROUNDS = int(os.environ.get("MEIRI_KILL_ROUNDS", "1"))
PLAYS_PER_ROUND = 10_000
PAUSE_S = 1.2
"""After each call of 50 plays, so that plays flow for as long as processes are killed."""


async def test_nothing_is_lost_or_doubled_whatever_is_killed(system: System) -> None:
    aurora, birch = system.demo.apps
    wanted = ROUNDS * PLAYS_PER_ROUND
    held_back = sum(len(plays) for plays in system.held_back)
    assert held_back >= wanted
    by_gateway, by_topic = (_first(plays, len(plays) * wanted // held_back + 1) for plays in system.held_back)

    def nothing(_: int) -> None: ...

    async def flow() -> None:
        await asyncio.gather(
            aurora.publish_plays(by_gateway, nothing, page=50, pause_s=PAUSE_S),
            birch.produce_plays(system.channels.producer, by_topic, nothing, page=50, pause_s=PAUSE_S),
        )
        await aurora.publish_plays(resent(by_gateway, 0.05), nothing)

    days = read_offset(system.deployment.clock_file).days + 2
    move_to(system.deployment.clock_file, datetime.now(UTC) + timedelta(days=days - 1))
    flowing = asyncio.create_task(flow())
    for name in KILLED * ROUNDS:
        await system.deployment.kill(name)
    await flowing
    await stages.counted(system.demo, system.channels)
    await stages.lists_made(system.demo, system.channels, f"Lists of {days} days", days=days)

    for app in system.demo.apps:
        tenant_id = app.world.tenant_id
        rows = await system.admin.fetch(
            "SELECT event_id FROM features.ledger WHERE tenant_id = $1", tenant_id, timeout_s=30
        )
        assert {bytes(row["event_id"]) for row in rows} == app.sent.acknowledged
        archive = await asyncio.to_thread(Archive(system.deployment.run_dir / "archive").read, tenant_id)
        assert {event.event_id for event in archive} == app.sent.acknowledged
        for schema in ("materialiser.daily_list", "playlists.daily_playlist"):
            lists = await system.admin.fetch(
                f"SELECT user_id, count(*) AS lists, count(DISTINCT playlist_date) AS dates FROM {schema}"
                " WHERE tenant_id = $1 GROUP BY user_id",
                tenant_id,
            )
            assert {row["user_id"] for row in lists} == {
                app.world.listeners.user_id[user] for user in set(app.world.plays.user.tolist())
            }
            assert {(row["lists"], row["dates"]) for row in lists} == {(days, days)}
        catalogue = set(app.world.tracks.track_id)
        for playlist in (await asking.all_lists(system.channels, app.world)).values():
            assert playlist.tenant_id == tenant_id
            assert {song.track_id for song in playlist.recommendations} <= catalogue


def _first(plays: Plays, count: int) -> Plays:
    return plays.where(np.arange(len(plays)) < count)
