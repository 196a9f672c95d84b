"""One play to that listener's next daily list, through all seven services on real Kafka and Postgres."""

from datetime import UTC, date, datetime, timedelta

import pytest
from meiri.feedback.v1.feedback_event_pb2 import FeedbackEvent, FeedbackKind
from meiri.feedback.v1.feedback_service_pb2 import SendFeedbackRequest
from meiri.feedback.v1.feedback_service_pb2_grpc import FeedbackServiceStub
from meiri.playlist.v1.playlist_service_pb2 import GetDailyPlaylistRequest

from infra.demo import asking
from infra.demo import run as stages
from infra.demo.check import Said
from shared.clock import move_to
from shared.ids import new_event_id
from shared.rpc.client import channel
from shared.rpc.errors import NotFound, PermissionDenied
from tests.e2e.system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")


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
