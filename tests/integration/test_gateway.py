"""The gateway on real Kafka and Postgres, called by gRPC."""

import asyncio
from contextlib import suppress
from datetime import timedelta

import pytest
from meiri.account.v1.account_service_pb2 import (
    CreateTokenRequest,
    TokenScope,
    UpsertTenantRequest,
    UpsertUsersRequest,
)
from meiri.account.v1.account_service_pb2_grpc import AccountServiceStub
from meiri.account.v1.tenant_pb2 import Tenant
from meiri.account.v1.user_pb2 import User
from meiri.catalog.v1.catalog_service_pb2 import UpsertTracksRequest
from meiri.catalog.v1.catalog_service_pb2_grpc import CatalogServiceStub
from meiri.catalog.v1.track_pb2 import Track
from meiri.playback.v1.play_event_pb2 import PlayEvent
from meiri.playback.v1.play_event_service_pb2 import PublishPlaysRequest
from meiri.playback.v1.play_event_service_pb2_grpc import PlayEventServiceStub

from infra.local.schemas import Databases
from services.gateway.relay import Relay
from services.gateway.store import StateStore
from shared.codec.state import decode_tenant, decode_track, decode_user
from shared.errors import Permanent, Transient
from shared.kafka.log import Outgoing
from shared.kafka.memory import MemoryLog
from shared.kafka.producer import Producer
from shared.postgres import Database
from shared.rpc.errors import NotFound, PermissionDenied
from shared.rpc.principal import Scope
from shared.topics import PLAY_EVENTS, TENANTS, TRACKS, USERS, Topic, ingress_topic
from tests.integration.doors import Doors, calling, everything, latest, new_tenant, play, token, until


def _tracks(count: int, *, title: str = "Low Tide") -> list[Track]:
    return [Track(track_id=f"t-{n}", title=title, artist_id="a-1", artist_name="Glass Heron") for n in range(count)]


async def test_an_acknowledged_play_is_in_kafka_under_its_user(doors: Doors) -> None:
    tenant_id = new_tenant()
    events = [play(user_id=f"u-{n % 5}") for n in range(50)]
    async with doors.gateway() as address, calling(address, token(tenant_id, "backend", Scope.APP)) as opened:
        stub = PlayEventServiceStub(opened)
        answer = await stub.PublishPlays(PublishPlaysRequest(events=events))
        lone = await stub.PublishPlays(PublishPlaysRequest(events=[play(), PlayEvent()]))
    assert (answer.accepted_count, len(answer.refused)) == (50, 0)
    assert (lone.accepted_count, [refused.index for refused in lone.refused]) == (1, [1])
    async with doors.log() as log:
        found = [r for r in await everything(log, PLAY_EVENTS) if (r.key or b"").startswith(f"{tenant_id}|".encode())]
    stored = {PlayEvent.FromString(record.value or b"").event_id for record in found}
    assert len(found) == 51
    assert stored >= {event.event_id for event in events}
    assert all(name == "meiri-trace-id" for record in found for name, _ in record.headers)


async def test_an_operator_makes_a_tenant_and_tokens_that_work(doors: Doors) -> None:
    tenant_id = new_tenant()
    async with doors.gateway() as address:
        async with calling(address, token(None, "operator", Scope.ADMIN)) as operator:
            accounts = AccountServiceStub(operator)
            tenant = Tenant(tenant_id=tenant_id, zone="Asia/Tokyo", list_length=12)
            for _ in range(2):
                made = await accounts.UpsertTenant(UpsertTenantRequest(tenant=tenant))
            app, user = [
                (await accounts.CreateToken(CreateTokenRequest(tenant_id=tenant_id, subject="mira", scope=scope))).token
                for scope in (TokenScope.TOKEN_SCOPE_APP, TokenScope.TOKEN_SCOPE_USER)
            ]
            with pytest.raises(NotFound):
                await accounts.CreateToken(
                    CreateTokenRequest(tenant_id=new_tenant(), subject="mira", scope=TokenScope.TOKEN_SCOPE_APP)
                )
            with pytest.raises(Permanent, match="tenant_id must be"):
                await accounts.CreateToken(
                    CreateTokenRequest(tenant_id="a\0", subject="mira", scope=TokenScope.TOKEN_SCOPE_APP)
                )
            too_long = CreateTokenRequest(tenant_id=tenant_id, subject="mira", scope=TokenScope.TOKEN_SCOPE_APP)
            too_long.ttl.FromTimedelta(timedelta(days=367))
            with pytest.raises(Permanent, match="366 days"):
                await accounts.CreateToken(too_long)
        async with calling(address, user) as mine:
            own = await PlayEventServiceStub(mine).PublishPlays(PublishPlaysRequest(events=[play(user_id="tobin")]))
            assert own.accepted_count == 1
            users = AccountServiceStub(mine)
            await users.UpsertUsers(UpsertUsersRequest(users=[User(user_id="mira", zone="Asia/Tokyo")]))
            with pytest.raises(PermissionDenied):
                await users.UpsertUsers(UpsertUsersRequest(users=[User(user_id="tobin")]))
            with pytest.raises(PermissionDenied):
                await CatalogServiceStub(mine).UpsertTracks(UpsertTracksRequest(tracks=_tracks(1)))
        async with calling(address, app) as backend:
            with pytest.raises(PermissionDenied):
                await AccountServiceStub(backend).UpsertTenant(UpsertTenantRequest(tenant=tenant))
        async with doors.log() as log:
            assert made.ingress_topic == ingress_topic(tenant_id).name
            assert (await log.topics())[made.ingress_topic] == 4
            await until(lambda: _keys(doors, USERS, tenant_id), {f"{tenant_id}|mira"})
            assert decode_user((await latest(log, USERS, tenant_id))[f"{tenant_id}|mira"]).zone == "Asia/Tokyo"
            assert decode_tenant((await latest(log, TENANTS, tenant_id))[tenant_id]).list_length == 12
            published = [r for r in await everything(log, TENANTS) if r.key == tenant_id.encode()]
            assert len(published) == 1, "an unchanged state is not published again"


async def test_a_faulty_track_is_told_and_the_others_reach_the_topic(doors: Doors) -> None:
    tenant_id = new_tenant()
    async with doors.gateway() as address, calling(address, token(tenant_id, "backend", Scope.APP)) as opened:
        catalogue = CatalogServiceStub(opened)
        tracks = [*_tracks(20), Track(track_id="t-x")]
        answer = await catalogue.UpsertTracks(UpsertTracksRequest(tracks=tracks))
        assert (answer.stored_count, [(r.index, r.reason) for r in answer.refused]) == (20, [(20, "title_bad")])
        await catalogue.UpsertTracks(UpsertTracksRequest(tracks=_tracks(1, title="High Tide")))

        async def title() -> str | None:
            async with doors.log() as log:
                found = (await latest(log, TRACKS, tenant_id)).get(f"{tenant_id}|t-0")
                return decode_track(found).title if found else None

        await until(title, "High Tide")
        assert len(await _keys(doors, TRACKS, tenant_id)) == 20


async def test_a_state_that_was_written_before_a_crash_is_published_after_it(doors: Doors, database: Databases) -> None:
    tenant_id = new_tenant()
    async with Database.open(database.urls["gateway"]) as db:
        await StateStore(db).put(USERS, {f"{tenant_id}|u-{n}": b"" for n in range(3)})  # and the process dies here
    async with doors.gateway():
        await until(lambda: _keys(doors, USERS, tenant_id), {f"{tenant_id}|u-{n}" for n in range(3)})


class _CrashesAfterSending:
    """A publisher whose acknowledgement never comes back: the records are there, the mark is not."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    async def send_many(self, records: list[Outgoing]) -> None:
        await self._producer.send_many(records)
        raise Transient("The connection broke after the send.")


async def test_a_crash_between_the_publish_and_the_mark_publishes_again(doors: Doors, database: Databases) -> None:
    tenant_id = new_tenant()
    async with (
        Database.open(database.urls["gateway"]) as db,
        Producer.open(doors.bootstrap_servers) as producer,
        doors.log() as log,
    ):
        store = StateStore(db)
        await store.put(USERS, {f"{tenant_id}|u": b"settings"})
        with pytest.raises(Transient):
            await Relay(db, store, _CrashesAfterSending(producer)).publish(USERS)  # type: ignore[arg-type]
        relay = Relay(db, store, producer)
        assert [await relay.publish(USERS), await relay.publish(USERS)] == [1, 0]
        values = [r.value for r in await everything(log, USERS) if r.key == f"{tenant_id}|u".encode()]
    assert values == [b"settings", b"settings"]


async def test_many_relays_publish_each_revision_in_its_order(doors: Doors, database: Databases) -> None:
    tenant_id = new_tenant()
    keys = [f"{tenant_id}|u-{n}" for n in range(40)]
    async with (
        Database.open(database.urls["gateway"], pool_size=12) as db,
        Producer.open(doors.bootstrap_servers) as out,
    ):
        store = StateStore(db)
        relays = [asyncio.create_task(Relay(db, store, out).run()) for _ in range(3)]
        for revision in range(15):
            half = keys[revision % 2 :: 2]
            await asyncio.gather(
                store.put(USERS, dict.fromkeys(half, b"%03d" % revision)),
                store.put(USERS, dict.fromkeys(reversed(half), b"%03d" % revision)),
            )
        await until(lambda: db.fetchval("SELECT count(*) FROM state WHERE published_revision < revision"), 0)
        for relay in relays:
            relay.cancel()
            with suppress(asyncio.CancelledError):
                await relay
    async with doors.log() as log:
        records = [r for r in await everything(log, USERS) if (r.key or b"").startswith(tenant_id.encode())]
    for key in keys:
        values = [record.value for record in records if record.key == key.encode()]
        assert values == sorted(values)  # type: ignore[type-var]
        assert values[-1] in (b"013", b"014")


async def test_a_write_is_not_held_up_by_a_publish_that_hangs(doors: Doors, database: Databases) -> None:
    tenant_id = new_tenant()

    class Hangs(MemoryLog):
        async def send_many(self, records: object) -> None:
            await asyncio.Event().wait()

    async with Database.open(database.urls["gateway"]) as db:
        store = StateStore(db)
        await store.put(TRACKS, {f"{tenant_id}|t": b"1"})
        publishing = asyncio.create_task(Relay(db, store, Hangs()).publish(TRACKS))
        await asyncio.sleep(0.2)
        async with asyncio.timeout(2.0):
            await store.put(TRACKS, {f"{tenant_id}|t": b"2"})
        publishing.cancel()
        with suppress(asyncio.CancelledError):
            await publishing


async def _keys(doors: Doors, topic: Topic, prefix: str) -> set[str]:
    async with doors.log() as log:
        return set(await latest(log, topic, prefix))
