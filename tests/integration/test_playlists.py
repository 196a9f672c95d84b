"""The playlist service as it runs, on real Kafka and Postgres."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from meiri.playlist.v1.daily_playlist_pb2 import DailyPlaylist, Recommendation
from meiri.playlist.v1.playlist_service_pb2 import GetDailyPlaylistRequest
from meiri.playlist.v1.playlist_service_pb2_grpc import PlaylistServiceStub

from infra.local.ports import free_port
from infra.local.schemas import Databases
from services.playlists.app import serve
from services.playlists.settings import PlaylistsSettings
from shared.errors import Permanent
from shared.ids import partition_of, user_topic_key
from shared.kafka.broker import KafkaLog
from shared.kafka.log import Member, Outgoing, TopicPartition
from shared.kafka.producer import Producer
from shared.rpc.client import channel, tenant_scope
from shared.rpc.errors import NotFound, PermissionDenied
from shared.rpc.principal import Scope
from shared.topics import ALL, DAILY_PLAYLISTS, Topic
from tests.conftest import RealServers
from tests.integration.doors import PUBLIC, new_tenant, token
from tests.integration.running import ends_on_sigterm, eventually, running

Topics = Callable[[Sequence[Topic]], None]


class Reader:
    """The service under test, and a producer in the materialiser's place."""

    def __init__(self, servers: RealServers, database: Databases, folder: Path) -> None:
        self._servers = servers
        self._key = folder / "key.pub.pem"
        self._key.write_text(PUBLIC)
        self._address = f"127.0.0.1:{free_port()}"
        self._url = database.urls["playlists"]
        self.tenant_id = new_tenant()

    @property
    def settings(self) -> PlaylistsSettings:
        return PlaylistsSettings(
            kafka_bootstrap_servers=self._servers.bootstrap_servers,
            token_public_key=str(self._key),
            playlists_listen=self._address,
            playlists_database_url=self._url,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with running(serve(self.settings), self._address):
            yield

    async def publish(self, *lists: DailyPlaylist | bytes, tenant_id: str | None = None) -> None:
        tenant_id = tenant_id or self.tenant_id
        async with Producer.open(self._servers.bootstrap_servers) as producer:
            await producer.send_many(
                [
                    Outgoing(
                        DAILY_PLAYLISTS,
                        partition_of(tenant_id, "mira", DAILY_PLAYLISTS.partitions),
                        user_topic_key(tenant_id, "mira"),
                        item if isinstance(item, bytes) else item.SerializeToString(deterministic=True),
                    )
                    for item in lists
                ]
            )

    async def get(self, bearer: str | None = None, tenant_id: str | None = None, **request: str) -> DailyPlaylist:
        bearer = bearer or token(tenant_id or self.tenant_id, "shop", Scope.APP)
        async with channel(self._address, token=bearer) as opened:
            answer = await PlaylistServiceStub(opened).GetDailyPlaylist(GetDailyPlaylistRequest(**request))
        found: DailyPlaylist = answer.playlist
        return found

    async def until(self, wanted: DailyPlaylist) -> None:
        """Until this list is what its date serves."""

        async def served() -> bool:
            try:
                return await self.get(user_id=wanted.user_id, playlist_date=wanted.playlist_date) == wanted
            except NotFound:
                return False

        await eventually(served)

    def made(self, day: str, version: int = 1, *, title: str = "Song", user_id: str = "mira") -> DailyPlaylist:
        songs = [Recommendation(track_id="t-1", title=title, artist_id="a-1", artist_name="Someone")]
        return DailyPlaylist(
            tenant_id=self.tenant_id, user_id=user_id, playlist_date=day, version=version, recommendations=songs
        )


@pytest.fixture
def reader(servers: RealServers, topics: Topics, database: Databases, tmp_path: Path) -> Reader:
    topics(ALL)
    return Reader(servers, database, tmp_path)


async def test_the_highest_version_of_a_date_is_served_as_it_was_published_and_repeats_change_nothing(
    reader: Reader,
) -> None:
    first, second, other = reader.made("2032-06-15"), reader.made("2032-06-15", 2), reader.made("2032-06-16")
    forged = reader.made("2032-06-15", title="Other bytes, no higher version")
    later = reader.made("2032-06-17")
    async with reader.running():
        await reader.publish(first)
        await reader.until(first)
        await reader.publish(second, first, forged, second, b"\xff\xff no list", other, later)
        await reader.until(later)
        assert await reader.get(user_id="mira", playlist_date="2032-06-15") == second
        assert await reader.get(user_id="mira", playlist_date="2032-06-16") == other
        assert await reader.get(user_id="mira") == later
        served = await reader.get(user_id="mira", playlist_date="2032-06-15")
        assert served.SerializeToString(deterministic=True) == second.SerializeToString(deterministic=True)


async def test_a_date_without_a_list_is_not_found_and_a_word_that_is_no_date_is_told_so(reader: Reader) -> None:
    async with reader.running():
        await reader.publish(reader.made("2032-06-15"))
        await reader.until(reader.made("2032-06-15"))
        with pytest.raises(NotFound, match="no list for that date"):
            await reader.get(user_id="mira", playlist_date="2032-06-14")
        with pytest.raises(NotFound):
            await reader.get(user_id="nobody")
        with pytest.raises(Permanent, match="must be a date like 2026-11-30"):
            await reader.get(user_id="mira", playlist_date="yesterday")
        with pytest.raises(Permanent, match="Say whose list"):
            await reader.get()
        with pytest.raises(Permanent, match="1 to 64 of A-Z"):
            await reader.get(user_id="mira\0")


async def test_a_listener_reads_their_own_list_and_nobody_elses(reader: Reader) -> None:
    async with reader.running():
        await reader.publish(reader.made("2032-06-15"))
        await reader.until(reader.made("2032-06-15"))
        assert (await reader.get(token(reader.tenant_id, "mira", Scope.USER))).user_id == "mira"
        with pytest.raises(PermissionDenied):
            await reader.get(token(reader.tenant_id, "noor", Scope.USER), user_id="mira")
        with pytest.raises(PermissionDenied):
            await reader.get(token(reader.tenant_id, "admin", Scope.ADMIN), user_id="mira")


async def test_another_tenant_finds_nothing_under_the_same_user_id(reader: Reader) -> None:
    async with reader.running():
        await reader.publish(reader.made("2032-06-15"))
        await reader.until(reader.made("2032-06-15"))
        with pytest.raises(NotFound):
            await reader.get(tenant_id=new_tenant(), user_id="mira")
        service = token(None, "anything", Scope.SERVICE)
        with tenant_scope(new_tenant()), pytest.raises(NotFound):
            await reader.get(service, user_id="mira")
        with tenant_scope(reader.tenant_id):
            assert (await reader.get(service, user_id="mira")).user_id == "mira"


async def test_a_restart_goes_on_from_the_offset_stored_with_the_lists_whatever_the_group_says(
    reader: Reader, servers: RealServers
) -> None:
    first, missed = reader.made("2032-06-15"), reader.made("2032-06-16")
    async with reader.running():
        await reader.publish(first)
        await reader.until(first)
    await reader.publish(missed)
    await _commit_the_end(servers.bootstrap_servers)
    async with reader.running():
        await reader.until(missed)


async def _commit_the_end(bootstrap_servers: str) -> None:
    """Tell the group that everything has been read, as a careless tool might."""
    assigned: asyncio.Queue[frozenset[TopicPartition]] = asyncio.Queue()

    async def on_assigned(_: Member, partitions: frozenset[TopicPartition]) -> None:
        await assigned.put(partitions)

    async def on_revoked(_: Member, partitions: frozenset[TopicPartition]) -> None:
        return

    async with (
        KafkaLog.open(bootstrap_servers) as log,
        log.join("playlists", [DAILY_PLAYLISTS], on_assigned=on_assigned, on_revoked=on_revoked) as member,
    ):
        partitions = await asyncio.wait_for(assigned.get(), 20)
        ends = {partition: bounds.end for partition, bounds in (await log.bounds(sorted(partitions))).items()}
        assert await member.commit(ends)


async def test_sigterm_ends_the_service(reader: Reader) -> None:
    await ends_on_sigterm(serve(reader.settings), reader._address)
