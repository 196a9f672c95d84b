"""The demo, stage by stage: a world of listeners in, their daily lists out, on real servers and through public contracts."""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import cast

import numpy as np
from meiri.feedback.v1.feedback_event_pb2 import FeedbackEvent, FeedbackKind
from meiri.feedback.v1.feedback_service_pb2 import SendFeedbackRequest
from meiri.feedback.v1.feedback_service_pb2_grpc import FeedbackServiceStub
from meiri.playback.v1.play_event_pb2 import PlayEvent
from meiri.playlist.v1.playlist_service_pb2_grpc import PlaylistServiceStub

from infra.demo import check, show
from infra.demo.asking import (
    Channels,
    all_lists,
    archive_lag,
    feedback_known,
    ledger,
    lists_of,
    open_channels,
    read_list,
    released,
    watch,
)
from infra.demo.feed import App, app_of, create_tenant, patiently, resent, split_at
from infra.demo.world import Plays, World
from infra.local.deployment import Deployment
from shared.clock import Clock, move_to
from shared.errors import Unusable
from shared.ids import new_event_id
from shared.kafka.log import TopicPartition
from shared.rpc.client import channel
from shared.topics import DEAD_LETTERS

LIVE_DAYS = 7
RESENT_SHARE = 0.02
FIRST_SERVICES = ("gateway", "ingest", "features", "trainer", "embedder", "playlists")


@dataclass
class Demo:
    """The running system and everything the stages hand on."""

    deployment: Deployment
    world: World
    apps: list[App] = field(default_factory=list)
    stages: list[show.Stage] = field(default_factory=list)

    @contextmanager
    def stage(self, name: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
        """Show a progress bar of `total` items and keep the stage's numbers."""
        started = time.monotonic()
        with show.bar(name, total) as advance:
            yield advance
        self.stages.append(show.Stage(name, total, unit, time.monotonic() - started))


async def run(demo: Demo) -> None:
    """Raises MeiriError with a sentence when a stage does not come to its end."""
    async with AsyncExitStack() as stack:
        channels = await open_channels(demo.deployment, stack)
        await feed(demo, stack, channels)
        await counted(demo, channels)
        await train(demo, channels)
        await materialise(demo, channels)
        await checked(demo, channels)
        await three_listeners(demo, channels)
        await feedback(demo, channels)
        await kill_one(demo, channels)
        await numbers(demo, channels)


async def feed(demo: Demo, stack: AsyncExitStack, channels: Channels) -> None:
    """Tenants, catalogues, listeners; the history by the import rpc; the last week live: one tenant by the gateway, the
    other by its ingress topic; some plays again, as after a lost acknowledgement, and some that are no plays at all.
    """
    gateway = demo.deployment.addresses["gateway"]
    for world in demo.world.tenants:
        token = await create_tenant(channels.operator, world.tenant_id)
        demo.apps.append(await stack.enter_async_context(app_of(world, gateway, token)))
        tenant_channel = await stack.enter_async_context(channel(gateway, token=token))
        channels.feedback[world.tenant_id] = FeedbackServiceStub(tenant_channel)
        list_channel = await stack.enter_async_context(channel(demo.deployment.addresses["playlists"], token=token))
        channels.lists[world.tenant_id] = PlaylistServiceStub(list_channel)

    tracks = sum(len(app.world.tracks) for app in demo.apps)
    listeners = sum(len(app.world.listeners) for app in demo.apps)
    with demo.stage("Catalogues and listeners", tracks + listeners, "records") as advance:
        for app in demo.apps:
            await app.send_catalogue(advance)
            await app.send_users(advance)

    newest_ms = max(int(app.world.plays.started_at_ms[-1]) for app in demo.apps)
    parts = [split_at(app.world.plays, newest_ms - LIVE_DAYS * 86_400_000) for app in demo.apps]
    with demo.stage("History, by the import call", sum(len(old) for old, _ in parts), "plays") as advance:
        for app, (old, _) in zip(demo.apps, parts, strict=True):
            await app.import_plays(old, advance)

    again = [resent(recent, RESENT_SHARE) for _, recent in parts]
    live = sum(len(recent) + len(more) for (_, recent), more in zip(parts, again, strict=True))
    with demo.stage(f"Last {LIVE_DAYS} days, live", live, "plays") as advance:
        by_gateway, by_topic = demo.apps[0], demo.apps[1]
        await asyncio.gather(
            by_gateway.publish_plays(parts[0][1], advance),
            by_topic.produce_plays(channels.producer, parts[1][1], advance),
        )
        await by_gateway.publish_plays(again[0], advance)
        await by_topic.produce_plays(channels.producer, again[1], advance)
    await by_gateway.publish_events(_impossible_plays(by_gateway))


def _impossible_plays(app: App) -> list[PlayEvent]:
    """Three events that pass the door and fail ingest's checks: they must turn up as dead letters and stop nobody."""
    events = []
    for year in (1970, 1999, 2101):
        event = PlayEvent(
            event_id=new_event_id(year * 1000),
            user_id=app.world.listeners.user_id[0],
            track_id=app.world.tracks.track_id[0],
        )
        event.started_at.FromDatetime(datetime(year, 1, 2, tzinfo=UTC))
        events.append(event)
    return events


async def counted(demo: Demo, channels: Channels) -> None:
    """Wait until the ledger holds exactly the acknowledged plays and the archive has read what the ledger has."""
    expected = sum(len(app.sent.acknowledged) for app in demo.apps)
    with demo.stage("Plays counted in features", expected, "plays") as advance:
        shown = 0
        async for done in watch(lambda: _ledger_total(demo, channels), until=expected, patience_s=180, what="features"):
            advance(done - shown)
            shown = done
    with demo.stage("Plays archived", expected, "plays") as advance:
        async for _ in watch(lambda: archive_lag(channels), until=0, patience_s=120, what="the trainer's archive"):
            pass
        advance(expected)


async def _ledger_total(demo: Demo, channels: Channels) -> int:
    return sum([(await ledger(channels, app.world.tenant_id)).play_events for app in demo.apps])


async def train(demo: Demo, channels: Channels) -> None:
    """One tenant after the other: train, judge against popularity on the last day, release; wait until the embedder serves."""
    for app in demo.apps:
        tenant_id = app.world.tenant_id
        with demo.stage(f"Train and judge {tenant_id}", len(app.world.plays), "plays") as advance:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "services.trainer", "train", "--tenant", tenant_id, "--progress"),
                env=demo.deployment.env_for("trainer"),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            told: list[str] = []
            logged = asyncio.create_task(cast("asyncio.StreamReader", process.stdout).read())
            async for line in cast("asyncio.StreamReader", process.stderr):
                try:
                    epoch = json.loads(line)
                    advance(round(len(app.world.plays) / epoch["epochs"]))
                except ValueError:
                    told.append(line.decode(errors="replace"))
            status = await process.wait()
            show.gate(tenant_id, (await logged).decode(errors="replace"))
            if status not in {0, 3, 4}:
                raise Unusable(f"Training {tenant_id} ended with status {status}: {''.join(told[-3:]).strip()}")
            if status == 0:
                await released(channels, tenant_id)


async def materialise(demo: Demo, channels: Channels) -> None:
    """Start the materialiser and wait until every listener has today's list, and can read it."""
    await demo.deployment.start_service("materialiser")
    await lists_made(demo, channels, "Today's lists", days=1)


async def lists_made(demo: Demo, channels: Channels, name: str, *, days: int) -> None:
    """Wait until every listener who has played has one list for each of `days` days."""
    listeners = {app.world.tenant_id: len(set(app.world.plays.user.tolist())) for app in demo.apps}
    total = sum(listeners.values())

    async def made() -> int:
        return sum([await lists_of(channels, tenant_id) for tenant_id in listeners])

    with demo.stage(name, total, "lists") as advance:
        shown = total * (days - 1)
        async for done in watch(made, until=total * days, patience_s=180, what="the materialiser"):
            advance(done - shown)
            shown = done


async def checked(demo: Demo, channels: Channels) -> None:
    """Every list of every listener against the plays that were sent."""
    with demo.stage("Every list checked", sum(len(app.world.listeners) for app in demo.apps), "lists") as advance:
        findings = []
        for app in demo.apps:
            heard = await asyncio.to_thread(check.histories, app.world)
            findings.append(check.check(app.world, await all_lists(channels, app.world), heard))
            advance(len(app.world.listeners))
    show.findings(check.combined(findings))


async def three_listeners(demo: Demo, channels: Channels) -> None:
    """Two listeners of one tenant, one of the other: their taste and the list that was made of it."""
    for app, place in ((demo.apps[0], 0), (demo.apps[0], 1), (demo.apps[1], 0)):
        user = show.typical_listener(app.world, place)
        playlist = await read_list(channels, app.world.tenant_id, app.world.listeners.user_id[user])
        show.listener(app.world, user, playlist)


async def feedback(demo: Demo, channels: Channels) -> None:
    """A listener bans an artist and dislikes a track; tomorrow's list proves that it was heard."""
    app = demo.apps[0]
    tenant_id = app.world.tenant_id
    user_id = app.world.listeners.user_id[show.typical_listener(app.world, 0)]
    today = await read_list(channels, tenant_id, user_id)
    disliked = next(song for song in today.recommendations if song.familiar)
    banned = next(song for song in today.recommendations if song.artist_id != disliked.artist_id)
    clock = Clock(demo.deployment.clock_file)
    for event in (
        FeedbackEvent(kind=FeedbackKind.FEEDBACK_KIND_BAN, artist_id=banned.artist_id),
        FeedbackEvent(kind=FeedbackKind.FEEDBACK_KIND_DISLIKE, track_id=disliked.track_id),
    ):
        event.event_id = new_event_id(clock.now_ms())
        event.user_id = user_id
        event.given_at.FromDatetime(clock.now())
        request = SendFeedbackRequest(event=event)
        await patiently(partial(channels.feedback[tenant_id].SendFeedback, request, timeout=10))

    await feedback_known(channels, tenant_id, user_id, 2)
    move_to(demo.deployment.clock_file, datetime.now(UTC) + timedelta(days=1))
    await lists_made(demo, channels, "Tomorrow's lists (the clock moved)", days=2)
    tomorrow = await read_list(
        channels, tenant_id, user_id, date.fromisoformat(today.playlist_date) + timedelta(days=1)
    )
    show.proof(app.world, user_id, today, tomorrow, banned_artist=banned, disliked_track=disliked)


async def kill_one(demo: Demo, channels: Channels) -> None:
    """Kill -9 features in the middle of plays; it restarts; every acknowledged play is counted, and once."""
    app = demo.apps[0]
    before = await ledger(channels, app.world.tenant_id)
    flowing = asyncio.create_task(app.publish_plays(_fresh(app), lambda _: None, page=100))
    await asyncio.sleep(0.5)
    killed, restarted = await demo.deployment.kill("features")
    await flowing
    expected = len(app.sent.acknowledged)

    async def total() -> int:
        return (await ledger(channels, app.world.tenant_id)).play_events

    async for _ in watch(total, until=expected, patience_s=90, what="features"):
        pass
    after = await ledger(channels, app.world.tenant_id)
    show.survived(killed, restarted, before.play_events, len(app.sent.acknowledged), after.play_events)
    if after.play_events != expected:
        raise Unusable(f"{expected} plays were acknowledged and {after.play_events} are counted.")


def _fresh(app: App) -> Plays:
    """The last plays of the world once more under new ids: plays that nobody has counted yet."""
    last = app.world.plays.where(np.arange(len(app.world.plays)) >= len(app.world.plays) - 3000)
    ids = last.event_id.copy()
    ids[:, 15] ^= 0xA5
    ids[:, 14] ^= 0x5A
    return Plays(last.user, last.track, last.started_at_ms, last.played_ms, last.session, ids)


async def numbers(demo: Demo, channels: Channels) -> None:
    counts = {app.world.tenant_id: await ledger(channels, app.world.tenant_id) for app in demo.apps}
    partitions = [TopicPartition(DEAD_LETTERS.name, number) for number in range(DEAD_LETTERS.partitions)]
    bounds = await channels.events.bounds(partitions)
    dead_letters = sum(found.end - found.start for found in bounds.values())
    lists = sum([await lists_of(channels, app.world.tenant_id) for app in demo.apps])
    show.numbers(demo.apps, counts, dead_letters, lists, demo.stages)
