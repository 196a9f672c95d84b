"""Two materialisers as they run, on real Kafka and Postgres, for two tenants whose users bear the same ids."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from meiri.playlist.v1.daily_playlist_pb2 import DailyPlaylist, Fallback
from meiri.playlist.v1.materialiser_service_pb2 import GetListCountsRequest, GetListCountsResponse
from meiri.playlist.v1.materialiser_service_pb2_grpc import MaterialiserServiceStub

from infra.local.ports import free_port
from infra.local.schemas import Databases
from services.materialiser.app import serve
from services.materialiser.settings import MaterialiserSettings
from shared.clock import move_to
from shared.codec.state import (
    Tenant,
    User,
    encode_tenant,
    encode_track,
    encode_user,
    key_partition,
    tenant_record_key,
    track_record_key,
)
from shared.ids import partition_of, user_topic_key
from shared.kafka.broker import KafkaLog
from shared.kafka.log import Outgoing, trace_of
from shared.kafka.producer import Producer
from shared.rpc.client import channel, tenant_scope
from shared.rpc.errors import PermissionDenied
from shared.rpc.principal import Scope
from shared.rpc.tokens import mint
from shared.topics import ALL, DAILY_PLAYLISTS, TENANTS, TRACKS, USERS, Topic
from tests.conftest import RealServers
from tests.fakes import FakeEmbedder, FakeFeatures, Heard, embedder_server, features_server
from tests.integration.doors import PRIVATE, PUBLIC, everything, new_tenant
from tests.integration.lists_world import EPOCH, SmallTenant, recommended
from tests.integration.running import ends_on_sigterm, eventually, running

Topics = Callable[[Sequence[Topic]], None]
NOON = datetime(2032, 6, 15, 12, 0, tzinfo=UTC)


class Bench:
    """Two tenants, the fakes of what the materialiser asks, and as many materialisers as a test starts."""

    def __init__(self, servers: RealServers, database: Databases, folder: Path) -> None:
        self.servers = servers.bootstrap_servers
        self.url = database.urls["materialiser"]
        self.key, self.clock_file = folder / "key.pub.pem", folder / "clock"
        self.key.write_text(PUBLIC)
        move_to(self.clock_file, NOON)
        self.token_file = folder / "materialiser.token"
        self.token_file.write_text(bearer(Scope.SERVICE) + "\n")
        self.features, self.embedder = FakeFeatures(), FakeEmbedder()
        tenants = [Tenant(new_tenant(), zone="Europe/Paris"), Tenant(new_tenant(), list_length=12, familiar_share=0.25)]
        self.tenants = {
            tenant.tenant_id: SmallTenant.make(tenant, self.features, NOON.date(), users=30) for tenant in tenants
        }
        self.embedder.tracks = {tenant_id: list(small.tracks) for tenant_id, small in self.tenants.items()}

    @asynccontextmanager
    async def running(self, count: int = 1) -> AsyncIterator[list[str]]:
        """The addresses of `count` materialisers."""
        async with AsyncExitStack() as stack:
            features = await stack.enter_async_context(features_server(self.features, PUBLIC))
            embedder = await stack.enter_async_context(embedder_server(self.embedder, PUBLIC))
            addresses = [f"127.0.0.1:{free_port()}" for _ in range(count)]
            for address in addresses:
                await stack.enter_async_context(running(serve(self.settings(address, features, embedder)), address))
            yield addresses

    def settings(self, address: str, features: str, embedder: str) -> MaterialiserSettings:
        return MaterialiserSettings(
            kafka_bootstrap_servers=self.servers,
            token_public_key=str(self.key),
            clock_file=str(self.clock_file),
            materialiser_listen=address,
            materialiser_database_url=self.url,
            service_token=str(self.token_file),
            features_address=features,
            embedder_address=embedder,
        )

    async def announce(self) -> None:
        """Catalogues first, then the tenants: from their record on, their lists are made."""
        tracks = [
            (track_record_key(t.tenant_id, t.track_id), t) for s in self.tenants.values() for t in s.tracks.values()
        ]
        async with Producer.open(self.servers) as producer:
            await producer.send_many(
                [Outgoing(TRACKS, key_partition(key, TRACKS.partitions), key, encode_track(t)) for key, t in tracks]
            )
            for small in self.tenants.values():
                key = tenant_record_key(small.tenant.tenant_id)
                await producer.send(TENANTS, key_partition(key, TENANTS.partitions), key, encode_tenant(small.tenant))

    async def say(self, user: User) -> None:
        async with Producer.open(self.servers) as producer:
            await producer.send(
                USERS,
                partition_of(user.tenant_id, user.user_id, USERS.partitions),
                user_topic_key(user.tenant_id, user.user_id),
                encode_user(user),
            )

    async def lists(self) -> list[DailyPlaylist]:
        """Every list of the two tenants that was published, repeats included."""
        async with KafkaLog.open(self.servers) as log:
            records = await everything(log, DAILY_PLAYLISTS)
        for record in records:
            assert trace_of(record)
        lists = [DailyPlaylist.FromString(record.value or b"") for record in records]
        return [item for item in lists if item.tenant_id in self.tenants]

    async def until(self, count: int) -> list[DailyPlaylist]:
        """The lists, once there are so many."""

        async def asked() -> bool:
            return len(await self.lists()) >= count

        await eventually(asked)
        return await self.lists()


def bearer(scope: Scope, tenant_id: str | None = None) -> str:
    """A token that the clock of these tests finds valid."""
    now = datetime.now(UTC)
    ttl = NOON + timedelta(days=366) - now
    return mint(PRIVATE, tenant_id=tenant_id, subject="someone", scope=scope, now=now, ttl=ttl)


@pytest.fixture
def bench(servers: RealServers, topics: Topics, database: Databases, tmp_path: Path) -> Bench:
    topics(ALL)
    return Bench(servers, database, tmp_path)


async def counts(address: str, tenant_id: str) -> GetListCountsResponse:
    async with channel(address, token=bearer(Scope.SERVICE)) as opened:
        with tenant_scope(tenant_id):
            answer: GetListCountsResponse = await MaterialiserServiceStub(opened).GetListCounts(GetListCountsRequest())
    return answer


async def test_two_materialisers_make_one_true_list_per_listener_and_date_and_mix_no_tenants(bench: Bench) -> None:
    await bench.announce()
    async with bench.running(count=2) as addresses:
        today = await bench.until(60)
        move_to(bench.clock_file, NOON + timedelta(days=1))
        both = await bench.until(120)
        await asyncio.sleep(1.5)  # nothing more comes
        assert len(await bench.lists()) == 120
        for tenant_id, small in bench.tenants.items():
            told = await counts(addresses[0], tenant_id)
            assert (told.users, told.due) == (30, 0)
            assert [(day.playlist_date, day.lists) for day in told.dates] == [("2032-06-16", 30), ("2032-06-15", 30)]
            assert {item.user_id for item in today if item.tenant_id == tenant_id} == set(small.users)
    made = {(item.tenant_id, item.user_id, item.playlist_date): item for item in both}
    assert len(made) == 120
    for (tenant_id, user_id, day), item in made.items():
        bench.tenants[tenant_id].check(item)
        assert item.familiar_share_wanted == bench.tenants[tenant_id].tenant.familiar_share
        if day == "2032-06-16":
            assert not recommended(item) & recommended(made[tenant_id, user_id, "2032-06-15"])


async def test_a_new_listener_and_a_moved_one_get_their_lists_within_seconds(bench: Bench) -> None:
    tenant_id, small = next(iter(bench.tenants.items()))
    async with bench.running():
        await bench.announce()
        await bench.until(60)
        track = next(iter(small.tracks))
        bench.features.heard[tenant_id, "new"] = {track: Heard(2, 2, (NOON.date() - EPOCH).days)}
        (first,) = [item for item in await bench.until(61) if item.user_id == "new"]
        small.check(first)
        await bench.say(User(tenant_id, "new", zone="Pacific/Kiritimati", familiar_share=0.0))  # UTC + 14 h
        lists = [item for item in await bench.until(62) if item.user_id == "new"]
        assert [item.playlist_date for item in lists] == ["2032-06-15", "2032-06-16"]
        assert lists[-1].familiar_share_wanted == 0.0


async def test_lists_wait_for_features_to_come_back(bench: Bench) -> None:
    bench.features.away = True
    await bench.announce()
    async with bench.running():
        await asyncio.sleep(2.5)
        assert await bench.lists() == []
        bench.features.away = False
        lists = await bench.until(60)
        assert len(lists) == 60
        assert {item.fallback for item in lists} == {0, Fallback.FALLBACK_NO_HISTORY}


async def test_only_services_and_operators_may_ask_how_far_the_lists_are(bench: Bench) -> None:
    tenant_id = next(iter(bench.tenants))
    async with bench.running() as (address,), channel(address, token=bearer(Scope.APP, tenant_id)) as opened:
        with pytest.raises(PermissionDenied):
            await MaterialiserServiceStub(opened).GetListCounts(GetListCountsRequest())


async def test_sigterm_ends_the_service_though_nothing_it_needs_is_there(bench: Bench) -> None:
    address, nobody = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    await bench.announce()
    await ends_on_sigterm(serve(bench.settings(address, nobody, nobody)), address)
