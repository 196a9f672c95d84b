"""kill -9 of every service and of the broker, twice each, while plays flow through both doors and lists are made."""

import asyncio
from datetime import UTC, datetime, timedelta

from infra.demo import asking
from infra.demo import run as stages
from infra.demo.feed import resent
from services.trainer.archive import Archive
from shared.clock import move_to
from tests.e2e.system import running, small_world

KILLED = ("gateway", "ingest", "features", "trainer", "embedder", "materialiser", "playlists", "kafka")
ROUNDS = 2
PLAYS = 20_000
PAUSE_S = 1.2
"""After each call of 50 plays, so that plays flow for as long as processes are killed."""


async def test_nothing_is_lost_or_doubled_whatever_is_killed() -> None:
    async with running("kill-each", small_world(0.2), held_back=0.5) as system:
        assert sum(len(plays) for plays in system.held_back) >= PLAYS
        aurora, birch = system.demo.apps

        def nothing(_: int) -> None: ...

        async def flow() -> None:
            await asyncio.gather(
                aurora.publish_plays(system.held_back[0], nothing, page=50, pause_s=PAUSE_S),
                birch.produce_plays(system.channels.producer, system.held_back[1], nothing, page=50, pause_s=PAUSE_S),
            )
            await aurora.publish_plays(resent(system.held_back[0], 0.05), nothing)

        move_to(system.deployment.clock_file, datetime.now(UTC) + timedelta(days=1))
        flowing = asyncio.create_task(flow())
        for name in KILLED * ROUNDS:
            await system.deployment.kill(name)
        await flowing
        await stages.counted(system.demo, system.channels)
        await stages.lists_made(system.demo, system.channels, "Lists of two days", days=2)

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
                assert {(row["lists"], row["dates"]) for row in lists} == {(2, 2)}
            catalogue = set(app.world.tracks.track_id)
            for playlist in (await asking.all_lists(system.channels, app.world)).values():
                assert playlist.tenant_id == tenant_id
                assert {song.track_id for song in playlist.recommendations} <= catalogue
