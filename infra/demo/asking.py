"""What the demo and the end-to-end tests ask of a running system: through its public and internal contracts, patiently."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import date
from functools import partial

from meiri.embedding.v1.embedding_service_pb2 import GetReleaseRequest
from meiri.embedding.v1.embedding_service_pb2_grpc import EmbeddingServiceStub
from meiri.features.v1.user_feature_service_pb2 import BatchGetRequest, GetLedgerCountsRequest, GetLedgerCountsResponse
from meiri.features.v1.user_feature_service_pb2_grpc import UserFeatureServiceStub
from meiri.feedback.v1.feedback_service_pb2_grpc import FeedbackServiceStub
from meiri.playlist.v1.daily_playlist_pb2 import DailyPlaylist
from meiri.playlist.v1.materialiser_service_pb2 import GetListCountsRequest
from meiri.playlist.v1.materialiser_service_pb2_grpc import MaterialiserServiceStub
from meiri.playlist.v1.playlist_service_pb2 import GetDailyPlaylistRequest, GetDailyPlaylistResponse
from meiri.playlist.v1.playlist_service_pb2_grpc import PlaylistServiceStub

from infra.demo.feed import patiently
from infra.demo.world import TenantWorld
from infra.local.deployment import Deployment
from shared.errors import MeiriError, Unusable
from shared.kafka.broker import KafkaLog
from shared.kafka.log import TopicPartition
from shared.kafka.producer import Producer
from shared.rpc.client import Channel, channel, tenant_scope
from shared.rpc.errors import NotFound
from shared.topics import PLAYS


@dataclass
class Channels:
    """The gRPC channels the demo speaks through: as operator, as a service, and one reader per tenant."""

    operator: Channel
    features: UserFeatureServiceStub
    embedder: EmbeddingServiceStub
    materialiser: MaterialiserServiceStub
    events: KafkaLog
    producer: Producer
    lists: dict[str, PlaylistServiceStub] = field(default_factory=dict)
    feedback: dict[str, FeedbackServiceStub] = field(default_factory=dict)


async def open_channels(deployment: Deployment, stack: AsyncExitStack) -> Channels:
    servers = deployment.servers.bootstrap_servers

    async def opened(name: str, token: str) -> Channel:
        return await stack.enter_async_context(channel(deployment.addresses[name], token=token))

    return Channels(
        operator=await opened("gateway", deployment.admin_token),
        features=UserFeatureServiceStub(await opened("features", deployment.service_token)),
        embedder=EmbeddingServiceStub(await opened("embedder", deployment.service_token)),
        materialiser=MaterialiserServiceStub(await opened("materialiser", deployment.service_token)),
        events=await stack.enter_async_context(KafkaLog.open(servers, client_id="demo")),
        producer=await stack.enter_async_context(Producer.open(servers, client_id="demo")),
    )


async def ledger(channels: Channels, tenant_id: str) -> GetLedgerCountsResponse:
    async def ask() -> GetLedgerCountsResponse:
        with tenant_scope(tenant_id):
            answer: GetLedgerCountsResponse = await channels.features.GetLedgerCounts(
                GetLedgerCountsRequest(), timeout=10
            )
            return answer

    return await patiently(ask)


async def archive_lag(channels: Channels) -> int:
    partitions = [TopicPartition(PLAYS.name, number) for number in range(PLAYS.partitions)]
    bounds = await channels.events.bounds(partitions)
    committed = await channels.events.committed("trainer", partitions)
    return sum(bounds[partition].end - committed.get(partition, bounds[partition].start) for partition in partitions)


async def released(channels: Channels, tenant_id: str) -> None:
    async def ask() -> int:
        with tenant_scope(tenant_id):
            try:
                await channels.embedder.GetRelease(GetReleaseRequest(), timeout=5)
            except NotFound:
                return 0
            return 1

    async for _ in watch(ask, until=1, patience_s=60, what="the embedder"):
        pass


async def lists_of(channels: Channels, tenant_id: str) -> int:
    """All lists of the tenant: listeners live on two dates at once, so dates alone do not say who lacks one."""
    with tenant_scope(tenant_id):
        answer = await channels.materialiser.GetListCounts(GetListCountsRequest(), timeout=10)
    return sum(of_date.lists for of_date in answer.dates)


async def read_list(
    channels: Channels, tenant_id: str, user_id: str, playlist_date: date | None = None
) -> DailyPlaylist:
    """The listener's list, waiting for it a moment: it reaches the playlist service by Kafka."""
    request = GetDailyPlaylistRequest(
        user_id=user_id, playlist_date=None if playlist_date is None else playlist_date.isoformat()
    )
    for _ in range(100):
        try:
            answer: GetDailyPlaylistResponse = await channels.lists[tenant_id].GetDailyPlaylist(request, timeout=5)
        except NotFound:
            await asyncio.sleep(0.2)
        else:
            return answer.playlist
    raise Unusable(f"There is no list of {user_id} after 20 s: look at the log of playlists.")


async def all_lists(channels: Channels, world: TenantWorld) -> dict[str, DailyPlaylist]:
    """The newest list of each listener who has one, by user id."""
    room = asyncio.Semaphore(16)
    stub = channels.lists[world.tenant_id]

    async def one(user_id: str) -> DailyPlaylist | None:
        async with room:
            try:
                answer: GetDailyPlaylistResponse = await patiently(
                    partial(stub.GetDailyPlaylist, GetDailyPlaylistRequest(user_id=user_id), timeout=10)
                )
            except NotFound:
                return None
            return answer.playlist

    found = await asyncio.gather(*(one(user_id) for user_id in world.listeners.user_id))
    return {playlist.user_id: playlist for playlist in found if playlist is not None}


async def feedback_known(channels: Channels, tenant_id: str, user_id: str, count: int) -> None:
    """Wait until features answers with that many things the listener said."""

    async def known() -> int:
        with tenant_scope(tenant_id):
            answer = await channels.features.BatchGet(BatchGetRequest(user_ids=[user_id]), timeout=10)
        return len(answer.feedback)

    async for _ in watch(known, until=count, patience_s=60, what="features"):
        pass


async def watch(ask: Callable[[], Awaitable[int]], *, until: int, patience_s: float, what: str) -> AsyncIterator[int]:
    """Yield the answer until it is `until`; Unusable when it does not get there, or does not move, within `patience_s`."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            answer = await ask()
        except MeiriError:
            answer = -1
        if answer >= 0:
            yield answer
        if answer == until:
            return
        if time.monotonic() > deadline:
            raise Unusable(f"Waited {patience_s:.0f} s for {what}, which is at {answer} of {until}: look at its log.")
        await asyncio.sleep(0.25)
