"""What a music app sends: its catalogue, its listeners' settings, their history, and plays as they happen."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np
from meiri.account.v1 import account_service_pb2 as account
from meiri.account.v1.account_service_pb2_grpc import AccountServiceStub
from meiri.account.v1.tenant_pb2 import Tenant
from meiri.account.v1.user_pb2 import User
from meiri.catalog.v1 import catalog_service_pb2 as catalog
from meiri.catalog.v1.catalog_service_pb2_grpc import CatalogServiceStub
from meiri.catalog.v1.track_pb2 import Tag, Track
from meiri.playback.v1 import play_event_service_pb2 as playback
from meiri.playback.v1.play_event_pb2 import PlayEvent
from meiri.playback.v1.play_event_service_pb2_grpc import PlayEventServiceStub

from infra.demo.world import Plays, TenantWorld
from shared.errors import Transient
from shared.ids import partition_of, user_topic_key
from shared.kafka.log import Outgoing
from shared.kafka.producer import Producer
from shared.rpc.client import Channel, channel
from shared.topics import ingress_topic

PAGE = 1000
"""Items per call, the contracts' limit."""
IN_FLIGHT = 4

Advance = Callable[[int], None]
T = TypeVar("T")


@dataclass
class Sent:
    """What one tenant's app has sent and what was acknowledged, by distinct event id."""

    acknowledged: set[bytes] = field(default_factory=set)
    sent: int = 0
    refused: int = 0


class App:
    """A tenant's back end: holds the tenant's token and speaks the public contracts only."""

    def __init__(self, world: TenantWorld, gateway: Channel) -> None:
        self.world = world
        self.sent = Sent()
        self._plays = PlayEventServiceStub(gateway)
        self._catalogue = CatalogServiceStub(gateway)
        self._accounts = AccountServiceStub(gateway)

    async def send_catalogue(self, advance: Advance) -> None:
        tracks = self.world.tracks
        for page in _pages(len(tracks)):
            request = catalog.UpsertTracksRequest(tracks=[_track(self.world, index) for index in page])
            answer = await patiently(partial(self._catalogue.UpsertTracks, request, timeout=30))
            if answer.refused:
                raise ValueError(f"The gateway refused a track of the demo: {answer.refused[0].sentence}")
            advance(len(page))

    async def send_users(self, advance: Advance) -> None:
        listeners = self.world.listeners
        for page in _pages(len(listeners)):
            users = [User(user_id=listeners.user_id[index], zone=listeners.zone[index]) for index in page]
            request = account.UpsertUsersRequest(users=users)
            await patiently(partial(self._accounts.UpsertUsers, request, timeout=30))
            advance(len(page))

    async def import_plays(self, plays: Plays, advance: Advance) -> None:
        async def call(events: list[PlayEvent]) -> int:
            request = playback.ImportPlaysRequest(events=events)
            answer = await patiently(lambda: self._plays.ImportPlays(request, timeout=30))
            return len(answer.refused)

        await self._send(plays, call, advance, page=PAGE)

    async def publish_plays(self, plays: Plays, advance: Advance, *, page: int = 200, pause_s: float = 0.0) -> None:
        async def call(events: list[PlayEvent]) -> int:
            request = playback.PublishPlaysRequest(events=events)
            answer = await patiently(lambda: self._plays.PublishPlays(request, timeout=30))
            return len(answer.refused)

        await self._send(plays, call, advance, page=page, pause_s=pause_s)

    async def publish_events(self, events: list[PlayEvent]) -> playback.PublishPlaysResponse:
        request = playback.PublishPlaysRequest(events=events)
        answer: playback.PublishPlaysResponse = await patiently(lambda: self._plays.PublishPlays(request, timeout=30))
        return answer

    async def produce_plays(
        self, producer: Producer, plays: Plays, advance: Advance, *, page: int = PAGE, pause_s: float = 0.0
    ) -> None:
        """By the tenant's own ingress topic, as a back end does that has Kafka and no need of the gateway."""
        tenant_id = self.world.tenant_id
        topic = ingress_topic(tenant_id)

        async def call(events: list[PlayEvent]) -> int:
            records = [
                Outgoing(
                    topic,
                    partition_of(tenant_id, event.user_id, topic.partitions),
                    user_topic_key(tenant_id, event.user_id),
                    event.SerializeToString(),
                )
                for event in events
            ]
            await patiently(lambda: producer.send_many(records))
            return 0

        await self._send(plays, call, advance, page=page, pause_s=pause_s)

    async def _send(
        self,
        plays: Plays,
        call: Callable[[list[PlayEvent]], Awaitable[int]],
        advance: Advance,
        *,
        page: int,
        pause_s: float = 0.0,
    ) -> None:
        """Send every play, IN_FLIGHT calls at a time with a pause after each; an event counts as acknowledged once its
        call has answered.
        """
        room = asyncio.Semaphore(IN_FLIGHT)

        async def one(indices: range) -> None:
            async with room:
                events = [play_event(self.world, plays, index) for index in indices]
                refused = await call(events)
                self.sent.sent += len(events)
                self.sent.refused += refused
                if not refused:
                    self.sent.acknowledged.update(event.event_id for event in events)
                advance(len(events))
                await asyncio.sleep(pause_s)

        async with asyncio.TaskGroup() as calls:
            for indices in _pages(len(plays), page):
                calls.create_task(one(indices))


@asynccontextmanager
async def app_of(world: TenantWorld, gateway: str, token: str) -> AsyncIterator[App]:
    async with channel(gateway, token=token) as opened:
        yield App(world, opened)


async def create_tenant(gateway: Channel, tenant_id: str) -> str:
    """As the operator: the tenant, its ingress topic and its back end's token, which is returned."""
    stub = AccountServiceStub(gateway)
    await patiently(
        lambda: stub.UpsertTenant(account.UpsertTenantRequest(tenant=Tenant(tenant_id=tenant_id)), timeout=20)
    )
    return await create_token(gateway, tenant_id, "back-end", account.TOKEN_SCOPE_APP)


async def create_token(gateway: Channel, tenant_id: str, subject: str, scope: account.TokenScope.ValueType) -> str:
    request = account.CreateTokenRequest(tenant_id=tenant_id, subject=subject, scope=scope)
    answer = await patiently(lambda: AccountServiceStub(gateway).CreateToken(request, timeout=10))
    return str(answer.token)


async def patiently(call: Callable[[], Awaitable[T]], *, patience_s: float = 120.0) -> T:
    """What every client does: send again what may succeed later. The same event ids make that safe."""
    deadline, pause_s = time.monotonic() + patience_s, 0.1
    while True:
        try:
            return await call()
        except Transient:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, 2.0)


def play_event(world: TenantWorld, plays: Plays, index: int) -> PlayEvent:
    track = int(plays.track[index])
    event = PlayEvent(
        event_id=plays.event_id[index].tobytes(),
        user_id=world.listeners.user_id[int(plays.user[index])],
        track_id=world.tracks.track_id[track],
    )
    event.started_at.FromMilliseconds(int(plays.started_at_ms[index]))
    played_ms = int(plays.played_ms[index])
    if played_ms >= 0:
        event.played_for.FromMilliseconds(played_ms)
    duration_ms = world.tracks.duration_ms[track]
    if duration_ms is not None:
        event.track_duration.FromMilliseconds(duration_ms)
    return event


def split_at(plays: Plays, instant_ms: int) -> tuple[Plays, Plays]:
    """(before, from then on)."""
    before = plays.started_at_ms < instant_ms
    return plays.where(before), plays.where(~before)


def resent(plays: Plays, share: float) -> Plays:
    """Every so-manieth play once more, as a client does whose acknowledgement got lost."""
    step = max(1, round(1 / share))
    return plays.where(np.arange(len(plays)) % step == 0)


def _track(world: TenantWorld, index: int) -> Track:
    tracks = world.tracks
    released_on = tracks.released_on[index]
    track = Track(
        track_id=tracks.track_id[index],
        title=tracks.title[index],
        artist_id=tracks.artist_id[index],
        artist_name=tracks.artist_name[index],
        genre=tracks.genre[index],
        tags=[Tag(name=name, weight=weight) for name, weight in tracks.tags[index]],
        released_on=None if released_on is None else released_on.isoformat(),
    )
    duration_ms = tracks.duration_ms[index]
    if duration_ms is not None:
        track.duration.FromMilliseconds(duration_ms)
    return track


def _pages(count: int, page: int = PAGE) -> Iterator[range]:
    return (range(start, min(start + page, count)) for start in range(0, count, page))
