"""One play to that listener's next daily list, through all seven services on real Kafka and Postgres; then under kill -9.

The tests run in this order on one system, since starting, feeding and training it costs more than they do.
"""

import asyncio
import os
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pytest
from meiri.feedback.v1.feedback_event_pb2 import FeedbackEvent, FeedbackKind
from meiri.feedback.v1.feedback_service_pb2 import SendFeedbackRequest
from meiri.feedback.v1.feedback_service_pb2_grpc import FeedbackServiceStub
from meiri.playlist.v1.playlist_service_pb2 import GetDailyPlaylistRequest

from infra.demo import asking
from infra.demo import run as stages
from infra.demo.check import Said
from infra.demo.feed import resent
from infra.demo.world import Plays
from services.trainer.archive import Archive
from shared.clock import move_to, read_offset
from shared.ids import new_event_id
from shared.rpc.client import channel
from shared.rpc.errors import NotFound, PermissionDenied
from tests.e2e.system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")

KILLED = ("gateway", "ingest", "features", "trainer", "embedder", "materialiser", "playlists", "kafka")
ROUNDS = int(os.environ.get("MEIRI_KILL_ROUNDS", "1"))
PLAYS_PER_ROUND = 10_000
PAUSE_S = 1.2
"""After each call of 50 plays, so that plays flow for as long as processes are killed."""


async def test_the_ledger_holds_exactly_the_acknowledged_events(system: System) -> None:
    for app in system.demo.apps:
        rows = await system.admin.fetch(
            "SELECT event_id FROM features.ledger WHERE tenant_id = $1", app.world.tenant_id, timeout_s=30
        )
        # The three impossible plays were acknowledged at the door and are dead letters, not plays.
        assert {bytes(row["event_id"]) for row in rows} == app.sent.acknowledged


async def test_every_listener_of_both_tenants_has_one_true_list(system: System) -> None:
    findings = await system.findings()
    assert findings.faults == {}, findings.examples
    assert findings.lists == sum(len(set(app.world.plays.user.tolist())) for app in system.demo.apps)
    assert findings.personal > 0, "no model passed its gate"
    assert findings.able_blended == findings.able > 0


async def test_an_app_reads_no_list_of_another_tenant(system: System) -> None:
    aurora, birch = system.demo.apps
    lists = await asking.all_lists(system.channels, birch.world)
    # User ids are the same in both tenants, so a forgotten tenant would answer with the other's list.
    for user_id in birch.world.listeners.user_id[:20]:
        assert lists[user_id].tenant_id == "birch"
    strangers = set(birch.world.listeners.user_id) - set(aurora.world.listeners.user_id)
    for user_id in sorted(strangers)[:5]:
        with pytest.raises(NotFound):
            await system.channels.lists["aurora"].GetDailyPlaylist(GetDailyPlaylistRequest(user_id=user_id), timeout=5)


async def test_a_service_is_not_an_app(system: System) -> None:
    async with channel(system.deployment.addresses["gateway"], token=system.deployment.service_token) as gateway:
        with pytest.raises(PermissionDenied):
            await FeedbackServiceStub(gateway).SendFeedback(SendFeedbackRequest(event=FeedbackEvent()), timeout=5)


async def test_feedback_holds_in_the_next_days_list_and_every_list_stays_true(system: System) -> None:
    app = system.demo.apps[0]
    tenant_id, user_id = app.world.tenant_id, app.world.listeners.user_id[int(app.world.plays.user[0])]
    today = await asking.read_list(system.channels, tenant_id, user_id)
    banned, disliked = today.recommendations[0].artist_id, today.recommendations[-1].track_id
    for event in (
        FeedbackEvent(kind=FeedbackKind.FEEDBACK_KIND_BAN, artist_id=banned),
        FeedbackEvent(kind=FeedbackKind.FEEDBACK_KIND_DISLIKE, track_id=disliked),
    ):
        event.event_id, event.user_id = new_event_id(0), user_id
        event.given_at.FromDatetime(datetime.now(UTC))
        await system.channels.feedback[tenant_id].SendFeedback(SendFeedbackRequest(event=event), timeout=10)
    await asking.feedback_known(system.channels, tenant_id, user_id, 2)
    move_to(system.deployment.clock_file, datetime.now(UTC) + timedelta(days=1))
    await stages.lists_made(system.demo, system.channels, "Tomorrow's lists", days=2)
    tomorrow = await asking.read_list(
        system.channels, tenant_id, user_id, date.fromisoformat(today.playlist_date) + timedelta(days=1)
    )
    assert len(tomorrow.recommendations) == len(today.recommendations)
    assert banned not in {song.artist_id for song in tomorrow.recommendations}
    recommended = {song.track_id for song in today.recommendations}
    assert recommended & {song.track_id for song in tomorrow.recommendations} == set()
    findings = await system.findings({tenant_id: {user_id: Said({disliked}, {banned})}})
    assert findings.faults == {}, findings.examples


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
