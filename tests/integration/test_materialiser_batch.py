"""One batch at a time on real Postgres, with features and the embedder faked behind real sockets."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from meiri.playlist.v1.daily_playlist_pb2 import DailyPlaylist, Fallback

from infra.local.schemas import Databases
from services.materialiser.catalogue import Catalogues
from services.materialiser.clients import EmbedderClient, FeatureClient
from services.materialiser.domain import kept
from services.materialiser.keeping import purge
from services.materialiser.listeners import Listeners
from services.materialiser.making import remake
from services.materialiser.materialise import Materialiser
from services.materialiser.store import Store
from shared.clock import Clock, move_to
from shared.codec.state import Tenant, User
from shared.errors import Transient
from shared.kafka.log import Headers, Outgoing
from shared.postgres import Database
from shared.rpc.client import channel
from shared.rpc.principal import Scope
from shared.topics import Topic
from tests.fakes import FakeEmbedder, FakeFeatures, Heard, embedder_server, features_server
from tests.integration.doors import PUBLIC, new_tenant, token
from tests.integration.lists_world import EPOCH, SmallTenant, recommended
from tests.integration.running import eventually

NOON = datetime(2032, 6, 15, 12, 0, tzinfo=UTC)


class Died(Exception):
    """The process is gone."""


class Records:
    """A publisher that keeps what it is given, or dies before it publishes anything."""

    def __init__(self) -> None:
        self.lists: list[DailyPlaylist] = []
        self.bytes: list[bytes] = []
        self.dies = False

    async def send(
        self, topic: Topic, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()
    ) -> int:
        raise NotImplementedError

    async def send_many(self, records: Sequence[Outgoing]) -> None:
        if self.dies:
            raise Died
        self.bytes += [record.value or b"" for record in records]
        self.lists += [DailyPlaylist.FromString(record.value or b"") for record in records]


class Bench:
    """One tenant, its listeners, and as many materialisers as a test wants."""

    def __init__(self, db: Database, clock_file: Path, features: FakeFeatures, embedder: FakeEmbedder) -> None:
        self.db, self.features, self.embedder = db, features, embedder
        self.clock_file = clock_file
        self.tenant = Tenant(new_tenant(), zone="UTC", list_length=20)
        self.users: dict[str, User] = {}
        self.records = Records()
        self.catalogues = Catalogues()
        self.store = Store(db)
        self.feature_client: FeatureClient
        self.embedder_client: EmbedderClient
        self.listeners: Listeners

    @property
    def clock(self) -> Clock:
        return Clock(self.clock_file)  # a new one reads the file at once

    def move(self, instant: datetime) -> None:
        move_to(self.clock_file, instant)

    def set_up(self, users: int = 12) -> SmallTenant:
        small = SmallTenant.make(self.tenant, self.features, self.clock.now().date(), users=users)
        for track in small.tracks.values():
            self.catalogues.changed("", None, track)
        self.embedder.tracks = {self.tenant.tenant_id: list(small.tracks)}
        return small

    def settings(self, user_id: str, **values: object) -> None:
        key = f"{self.tenant.tenant_id}|{user_id}"
        old, new = self.users.get(key), User(self.tenant.tenant_id, user_id, **values)  # type: ignore[arg-type]
        self.users[key] = new
        self.listeners.changed(key, old, new)

    def materialiser(self, *, patience_s: float = 15.0, records: Records | None = None) -> Materialiser:
        return Materialiser(
            self.store,
            self.feature_client,
            self.embedder_client,
            records or self.records,
            self.catalogues,
            self.users.get,
            self.clock,
            patience_s=patience_s,
        )

    async def look(self) -> None:
        """What the service's loop does first; a new one has no pause to keep."""
        await self.listeners.look(self.tenant)

    async def due(self) -> int:
        return (await self.store.counts(self.tenant.tenant_id, self.clock.now())).due


@pytest.fixture
async def bench(database: Databases, tmp_path: Path) -> AsyncIterator[Bench]:
    async with _bench(database, tmp_path) as made:
        yield made


@asynccontextmanager
async def _bench(database: Databases, folder: Path) -> AsyncIterator[Bench]:
    features, embedder = FakeFeatures(), FakeEmbedder()
    bearer = token(None, "materialiser", Scope.SERVICE)
    async with AsyncExitStack() as stack:
        db = await stack.enter_async_context(Database.open(database.urls["materialiser"]))
        bench = Bench(db, folder / "clock", features, embedder)
        bench.move(NOON)
        feature_address = await stack.enter_async_context(features_server(features, PUBLIC))
        embedder_address = await stack.enter_async_context(embedder_server(embedder, PUBLIC))
        feature_channel = await stack.enter_async_context(channel(feature_address, token=bearer))
        embedder_channel = await stack.enter_async_context(channel(embedder_address, token=bearer))
        bench.feature_client = FeatureClient(feature_channel)
        bench.embedder_client = EmbedderClient(embedder_channel)
        bench.listeners = Listeners(bench.feature_client, bench.store, bench.clock)
        yield bench


async def test_every_listener_gets_one_true_list_and_then_none_until_tomorrow(bench: Bench) -> None:
    small = bench.set_up(users=60)
    await bench.look()
    assert await bench.materialiser().batch(bench.tenant) == 60
    assert sorted(item.user_id for item in bench.records.lists) == small.users
    for item in bench.records.lists:
        small.check(item)
        assert (item.playlist_date, item.version) == ("2032-06-15", 1)
        assert item.fallback == (Fallback.FALLBACK_NO_HISTORY if item.user_id == small.users[-1] else 0)
        assert item.HasField("release_id") == (item.fallback == 0)
    assert await bench.materialiser().batch(bench.tenant) == 0
    assert await bench.due() == 0


async def test_what_was_recommended_yesterday_is_not_recommended_today(bench: Bench) -> None:
    small = bench.set_up()
    await bench.look()
    await bench.materialiser().batch(bench.tenant)
    first = {item.user_id: item for item in bench.records.lists}
    bench.records.lists.clear()
    bench.move(NOON + timedelta(days=1))
    await bench.materialiser().batch(bench.tenant)
    assert [item.playlist_date for item in bench.records.lists] == ["2032-06-16"] * len(small.users)
    for item in bench.records.lists:
        small.check(item)
        assert not recommended(item) & recommended(first[item.user_id])


async def test_a_list_that_was_stored_and_not_published_is_published_with_the_same_bytes(bench: Bench) -> None:
    bench.set_up()
    await bench.look()
    bench.records.dies = True
    with pytest.raises(Died):
        await bench.materialiser().batch(bench.tenant)
    stored = {row["message"] for row in await _rows(bench)}
    bench.records.dies = False
    bench.embedder.release_id = "r2"  # made anew, they would say so
    asked = bench.features.asked
    assert await bench.materialiser().batch(bench.tenant) == 12
    assert set(bench.records.bytes) == stored
    assert bench.features.asked == asked
    assert all(row["published"] for row in await _rows(bench))


async def test_a_list_that_was_never_published_is_published_on_a_later_date_beside_that_dates_own(bench: Bench) -> None:
    small = bench.set_up()
    await bench.look()
    bench.records.dies = True
    with pytest.raises(Died):
        await bench.materialiser().batch(bench.tenant)
    bench.records.dies = False
    bench.move(NOON + timedelta(days=1))
    await bench.materialiser().batch(bench.tenant)
    dates = [(item.user_id, item.playlist_date) for item in bench.records.lists]
    assert sorted(dates) == sorted((user, day) for user in small.users for day in ("2032-06-15", "2032-06-16"))


async def test_a_worker_that_lost_its_lease_writes_nothing(bench: Bench) -> None:
    bench.set_up()
    await bench.look()
    tenant_id, now = bench.tenant.tenant_id, bench.clock.now()
    lost = await bench.store.claim(tenant_id, now, 512)
    await bench.store.hold(tenant_id, lost, 0)
    held = await bench.store.claim(tenant_id, now, 512)
    assert [lease.user_id for lease in lost] == [lease.user_id for lease in held]

    dates = {lease.user_id: now.date() for lease in lost}
    made = await bench.materialiser()._make(bench.tenant, lost, dates, now)
    assert await bench.store.store(tenant_id, made, {lease.user_id: lease.epoch for lease in lost}) == set()
    assert await _rows(bench) == []
    await bench.store.finish(tenant_id, [], lost, {lease.user_id: now + timedelta(days=1) for lease in lost})
    assert await bench.due() == 12
    await bench.store.hold(tenant_id, lost, 0)
    assert await bench.store.claim(tenant_id, now, 512) == []
    epochs = {lease.user_id: lease.epoch for lease in held}
    assert await bench.store.store(tenant_id, made, epochs) == {lease.user_id for lease in held}


async def test_two_workers_at_once_make_one_list_each(bench: Bench) -> None:
    small = bench.set_up(users=700)
    await bench.look()
    others = Records()
    counts = await asyncio.gather(
        bench.materialiser().batch(bench.tenant), bench.materialiser(records=others).batch(bench.tenant)
    )
    assert sum(counts) == 700
    assert min(counts) > 0
    assert sorted(item.user_id for item in bench.records.lists + others.lists) == small.users


async def test_a_lease_that_nobody_renews_goes_to_another_worker(bench: Bench) -> None:
    bench.set_up()
    await bench.look()
    leases = await bench.store.claim(bench.tenant.tenant_id, bench.clock.now(), 512)
    assert await bench.materialiser().batch(bench.tenant) == 0
    await bench.store.hold(bench.tenant.tenant_id, leases, 0.05)
    await asyncio.sleep(0.1)
    assert await bench.materialiser().batch(bench.tenant) == 12


async def test_each_listener_has_the_date_of_their_own_zone(bench: Bench) -> None:
    small = bench.set_up()
    bench.settings(small.users[0], zone="Pacific/Auckland")
    bench.settings(small.users[1], zone="America/Los_Angeles")
    bench.settings(small.users[2], zone="no/such-zone")
    bench.move(datetime(2032, 6, 16, 2, 0, tzinfo=UTC))
    await bench.look()
    await bench.materialiser().batch(bench.tenant)
    dates = {item.user_id: item.playlist_date for item in bench.records.lists}
    assert [dates[user] for user in small.users[:4]] == ["2032-06-16", "2032-06-15", "2032-06-16", "2032-06-16"]
    bench.move(datetime(2032, 6, 16, 12, 30, tzinfo=UTC))
    bench.records.lists.clear()
    await bench.materialiser().batch(bench.tenant)
    dates = {item.user_id: item.playlist_date for item in bench.records.lists}
    assert dates == {small.users[0]: "2032-06-17", small.users[1]: "2032-06-16"}


async def test_a_listener_who_moves_east_gets_the_new_date_at_once_and_each_date_once(bench: Bench) -> None:
    small = bench.set_up(users=2)
    await bench.look()
    await bench.materialiser().batch(bench.tenant)
    bench.settings(small.users[0], zone="Pacific/Auckland")  # 00:00 of the next day there
    await bench.look()
    assert await bench.materialiser().batch(bench.tenant) == 1
    bench.settings(small.users[0], zone="America/Los_Angeles")  # and back over the date line
    await bench.look()
    assert await bench.materialiser().batch(bench.tenant) == 1
    dates = [item.playlist_date for item in bench.records.lists if item.user_id == small.users[0]]
    assert dates == ["2032-06-15", "2032-06-16"]


async def test_a_tenant_without_a_release_gets_fallback_lists_that_say_so(bench: Bench) -> None:
    small = bench.set_up()
    bench.embedder.tracks = {}
    await bench.look()
    await bench.materialiser().batch(bench.tenant)
    assert len(bench.records.lists) == 12
    for item in bench.records.lists:
        small.check(item)
        assert item.fallback == Fallback.FALLBACK_NO_RELEASE
        assert not item.HasField("release_id")


async def test_an_embedder_that_is_away_is_waited_for_and_then_done_without(bench: Bench) -> None:
    small = bench.set_up()
    bench.embedder.away = True
    await bench.look()
    patient = bench.materialiser(patience_s=0.5)
    with pytest.raises(Transient):
        await patient.batch(bench.tenant)
    assert (await _rows(bench), await bench.due()) == ([], 12)
    await asyncio.sleep(0.6)
    assert await patient.batch(bench.tenant) == 12  # the leases were given back
    for item in bench.records.lists:
        small.check(item)
        assert item.fallback == Fallback.FALLBACK_EMBEDDER_AWAY


async def test_no_list_is_made_while_features_is_away_since_nobody_knows_what_is_banned(bench: Bench) -> None:
    bench.set_up()
    await bench.look()
    bench.features.away = True
    with pytest.raises(Transient):
        await bench.materialiser().batch(bench.tenant)
    assert await _rows(bench) == []
    bench.features.away = False
    assert await bench.materialiser().batch(bench.tenant) == 12
    assert len(bench.records.lists) == 12


async def test_an_empty_list_is_not_published_and_the_listener_is_looked_at_again(bench: Bench) -> None:
    small = bench.set_up()
    bench.catalogues = Catalogues()
    await bench.look()
    assert await bench.materialiser().batch(bench.tenant) == 12
    assert bench.records.lists == []
    for track in small.tracks.values():
        bench.catalogues.changed("", None, track)
    assert await bench.materialiser().batch(bench.tenant) == 0
    bench.move(NOON + timedelta(minutes=2))
    assert await bench.materialiser().batch(bench.tenant) == 12
    assert len(bench.records.lists) == 12


async def test_a_listener_with_settings_alone_gets_the_tenants_popular_songs(bench: Bench) -> None:
    small = bench.set_up()
    bench.settings("new", familiar_share=0.9)
    await bench.look()
    await bench.materialiser().batch(bench.tenant)
    (item,) = (item for item in bench.records.lists if item.user_id == "new")
    small.check(item)
    assert item.fallback == Fallback.FALLBACK_NO_HISTORY
    assert "few_familiar" in item.shortfalls


async def test_the_listeners_own_dial_sets_the_familiar_share(bench: Bench) -> None:
    small = bench.set_up(users=3)
    today = (bench.clock.now().date() - EPOCH).days
    for user in small.users:
        tracks = {track: Heard(3, 3, today - 40) for track in list(small.tracks)[::3]}
        bench.features.heard[bench.tenant.tenant_id, user] = tracks
        bench.features.said[bench.tenant.tenant_id, user] = small.said[user] = []
    bench.settings(small.users[0], familiar_share=0.0)
    bench.settings(small.users[1], familiar_share=0.8)
    await bench.look()
    await bench.materialiser().batch(bench.tenant)
    shares = {item.user_id: round(item.familiar_share, 6) for item in bench.records.lists}
    assert [shares[user] for user in small.users] == [0.0, 0.8, 0.5]


async def test_each_lists_inputs_are_kept_beside_it_and_make_the_same_bytes_again(bench: Bench) -> None:
    small = bench.set_up(users=40)
    await bench.look()
    await bench.materialiser().batch(bench.tenant)
    bench.embedder.tracks = {}
    bench.settings("new", familiar_share=0.9)
    bench.move(NOON + timedelta(days=1))
    await bench.look()
    await bench.materialiser().batch(bench.tenant)
    rows = await _rows(bench)
    assert len(rows) == 2 * len(small.users) + 1
    assert {row["fallback"] for row in rows} == {0, Fallback.FALLBACK_NO_HISTORY, Fallback.FALLBACK_NO_RELEASE}
    for row in rows:
        assert remake(row["inputs"]) == row["message"]


async def test_inputs_go_after_a_week_and_lists_after_two_months_so_many_at_a_time(bench: Bench) -> None:
    await bench.db.execute("DELETE FROM daily_list")  # the other tests' lists are as old
    small = bench.set_up(users=5)
    for day in (0, 1):
        bench.move(NOON + timedelta(days=day))
        await bench.look()
        await bench.materialiser().batch(bench.tenant)

    async def left() -> tuple[int, int]:
        rows = await _rows(bench)
        return sum(row["inputs"] is not None for row in rows), len(rows)

    lists = len(small.users)
    assert await bench.store.purge(kept(NOON + timedelta(days=7)), 1000) == (0, 0)
    assert await bench.store.purge(kept(NOON + timedelta(days=8)), 2) == (2, 0)
    assert await bench.store.purge(kept(NOON + timedelta(days=8)), 1000) == (lists - 2, 0)
    assert await left() == (lists, 2 * lists)
    await bench.db.execute("UPDATE daily_list SET published = false WHERE user_id = $1", small.users[0])
    bench.move(NOON + timedelta(days=62))
    purging = asyncio.create_task(purge(bench.store, bench.clock))

    async def only_what_is_owed_is_left() -> bool:
        return await left() == (0, 2)

    await eventually(only_what_is_owed_is_left)
    purging.cancel()


async def _rows(bench: Bench) -> list[dict[str, Any]]:
    rows = await bench.db.fetch(
        "SELECT user_id, message, published, fallback, inputs FROM daily_list WHERE tenant_id = $1",
        bench.tenant.tenant_id,
    )
    return [dict(row) for row in rows]
