from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from infra.demo.world import TenantWorld, World, generate
from infra.demo.world.baselines import baselines

UNTIL = datetime(2026, 3, 4, 15, 30, tzinfo=UTC)
UNTIL_MS = int(UNTIL.timestamp() * 1000)


@pytest.fixture(scope="module")
def world() -> World:
    return generate(UNTIL)


@pytest.fixture(params=["aurora", "birch"])
def tenant(world: World, request: pytest.FixtureRequest) -> TenantWorld:
    return next(tenant for tenant in world.tenants if tenant.tenant_id == request.param)


def test_the_default_world_has_the_promised_size(world: World) -> None:
    assert len(world.tenants) == 2
    assert sum(len(tenant.listeners) for tenant in world.tenants) >= 2_000
    assert sum(len(tenant.tracks) for tenant in world.tenants) >= 10_000
    assert sum(len(tenant.plays) for tenant in world.tenants) >= 200_000


def test_the_same_seed_gives_the_same_world_and_another_seed_another() -> None:
    one, same, other = (generate(UNTIL, seed=seed, scale=0.05).tenants[0] for seed in (1, 1, 2))
    for column in ("user", "track", "started_at_ms", "played_ms", "session", "event_id"):
        assert np.array_equal(getattr(one.plays, column), getattr(same.plays, column))
    assert one.tracks == same.tracks
    assert one.listeners == same.listeners
    assert not np.array_equal(one.plays.track[:200], other.plays.track[:200])


def test_scale_multiplies_listeners_tracks_and_plays() -> None:
    small, double = (generate(UNTIL, scale=scale) for scale in (0.1, 0.2))
    assert len(double.tenants[0].listeners) == 2 * len(small.tenants[0].listeners)
    assert len(double.tenants[0].tracks) == 2 * len(small.tenants[0].tracks)
    assert 1.5 < len(double.tenants[0].plays) / len(small.tenants[0].plays) < 2.7


def test_until_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        generate(datetime(2026, 3, 4))  # noqa: DTZ001


def test_plays_are_in_time_order_and_end_before_until(tenant: TenantWorld) -> None:
    plays = tenant.plays
    assert (np.diff(plays.started_at_ms) >= 0).all()
    assert (plays.started_at_ms + np.maximum(plays.played_ms, 0) < UNTIL_MS).all()
    assert plays.started_at_ms[0] >= UNTIL_MS - 91 * 86_400_000
    assert plays.started_at_ms[-1] > UNTIL_MS - 6 * 3_600_000


def test_a_listener_hears_one_song_at_a_time_and_sessions_are_half_an_hour_apart(tenant: TenantWorld) -> None:
    plays = tenant.plays
    order = np.lexsort((plays.started_at_ms, plays.user))
    user, session = plays.user[order], plays.session[order]
    gap = np.diff(plays.started_at_ms[order]) - np.maximum(plays.played_ms[order][:-1], 0)
    same_user = np.diff(user) == 0
    assert (gap[same_user] > 0).all()
    between = same_user & (np.diff(session) != 0)
    assert between.any()
    assert (gap[between] >= 30 * 60_000).all()


def test_a_session_belongs_to_one_listener_and_its_numbers_are_dense(tenant: TenantWorld) -> None:
    pairs = np.unique(np.stack([tenant.plays.session, tenant.plays.user]), axis=1)
    assert pairs.shape[1] == tenant.plays.session.max() + 1
    assert np.array_equal(pairs[0], np.arange(pairs.shape[1]))


def test_nobody_hears_a_song_before_it_is_out(tenant: TenantWorld) -> None:
    released = np.array([(d or date(1900, 1, 1)).toordinal() for d in tenant.tracks.released_on])
    played_on = date(1970, 1, 1).toordinal() + tenant.plays.started_at_ms // 86_400_000
    assert (released[tenant.plays.track] <= played_on).all()


def test_new_songs_come_out_in_the_window_and_are_heard(tenant: TenantWorld) -> None:
    begin = (UNTIL - timedelta(days=88)).date()
    new = {i: d for i, d in enumerate(tenant.tracks.released_on) if d and d > begin}
    last_week = {i for i, d in new.items() if (UNTIL.date() - d).days <= 7}
    heard = set(tenant.plays.track.tolist())
    assert len(new) > 0.03 * len(tenant.tracks)
    assert len(new.keys() & heard) > 0.5 * len(new)
    assert last_week & heard


def test_event_ids_are_unique_uuid7_of_the_start(world: World) -> None:
    ids = np.concatenate([tenant.plays.event_id for tenant in world.tenants])
    starts = np.concatenate([tenant.plays.started_at_ms for tenant in world.tenants])
    assert len({row.tobytes() for row in ids}) == len(ids)
    assert (ids[:, 6] >> 4 == 7).all()
    assert (ids[:, 8] >> 6 == 0b10).all()
    assert all(int.from_bytes(ids[i, :6].tobytes(), "big") == starts[i] for i in range(0, len(ids), 997))


def test_what_apps_do_not_know_is_absent_and_never_zero(tenant: TenantWorld) -> None:
    tracks, plays = tenant.tracks, tenant.plays
    for column in (tracks.genre, tracks.released_on, tracks.duration_ms, tenant.listeners.zone):
        absent = sum(value is None for value in column) / len(column)
        assert 0 < absent < 0.12
    assert any(tags == () for tags in tracks.tags)
    assert all(value is None or value > 30_000 for value in tracks.duration_ms)
    assert 0 < (plays.played_ms == -1).mean() < 0.03
    assert (plays.played_ms[plays.played_ms != -1] > 0).all()


def test_no_play_is_longer_than_its_song_and_some_are_skips(tenant: TenantWorld) -> None:
    length = np.array([value or 10**9 for value in tenant.tracks.duration_ms])[tenant.plays.track]
    assert (tenant.plays.played_ms <= length).all()
    skipped = (tenant.plays.played_ms >= 0) & (tenant.plays.played_ms < 30_000)
    assert 0.05 < skipped.mean() < 0.25


def test_tags_are_weighted_follow_the_genre_and_number_about_150(world: World) -> None:
    tags = {tag for tenant in world.tenants for row in tenant.tracks.tags for tag, _ in row}
    assert 140 <= len(tags) <= 200
    tenant = world.tenants[0]
    weights = [weight for row in tenant.tracks.tags for _, weight in row]
    assert min(weights) > 0
    assert max(weights) <= 1
    genres_of_shoegaze = {
        genre for genre, row in zip(tenant.tracks.genre, tenant.tracks.tags, strict=True) if "shoegaze" in dict(row)
    }
    assert genres_of_shoegaze <= {"rock", None}


def test_names_are_readable_and_unique(world: World) -> None:
    artists: dict[str, str] = {}
    for tenant in world.tenants:
        for artist_id, name in zip(tenant.tracks.artist_id, tenant.tracks.artist_name, strict=True):
            assert artists.setdefault(name, artist_id) == artist_id
        songs = list(zip(tenant.tracks.artist_id, tenant.tracks.title, strict=True))
        assert len(set(songs)) == len(songs)


def test_tenants_share_user_ids_but_no_track_or_artist_id(world: World) -> None:
    one, two = world.tenants
    assert set(one.listeners.user_id) & set(two.listeners.user_id)
    assert not set(one.tracks.track_id) & set(two.tracks.track_id)
    assert not set(one.tracks.artist_id) & set(two.tracks.artist_id)


def test_zones_reach_from_honolulu_to_tonga_and_listeners_sleep_in_their_own(world: World) -> None:
    zones = {zone for tenant in world.tenants for zone in tenant.listeners.zone if zone}
    assert len(zones) >= 14
    assert {"Pacific/Tongatapu", "Pacific/Honolulu"} <= zones
    for name in ("Asia/Tokyo", "America/New_York"):
        hours = [
            datetime.fromtimestamp(ms / 1000, ZoneInfo(name)).hour
            for tenant in world.tenants
            for user, ms in zip(tenant.plays.user.tolist(), tenant.plays.started_at_ms.tolist(), strict=True)
            if tenant.listeners.zone[user] == name
        ]
        assert np.isin(hours, (1, 2, 3, 4)).mean() < 0.5 * np.isin(hours, (18, 19, 20, 21)).mean()


def test_favourites_wear_out_and_some_come_back_after_a_rest(tenant: TenantWorld) -> None:
    """Songs played at least 6 times: dense at first, thinner later, with returns after two quiet weeks."""
    plays = tenant.plays
    order = np.lexsort((plays.started_at_ms, plays.track, plays.user))
    pair = plays.user[order].astype(np.int64) * len(tenant.tracks) + plays.track[order]
    _, start, count = np.unique(pair, return_index=True, return_counts=True)
    days = plays.started_at_ms[order] / 86_400_000
    loved = [days[s : s + c] for s, c in zip(start, count, strict=True) if c >= 6]
    young = [at for at in loved if at[0] < days.max() - 40]
    first, later = (np.mean([((at - at[0] >= a) & (at - at[0] < a + 20)).sum() for at in young]) for a in (0, 20))
    assert len(loved) > 500
    assert first > 1.3 * later
    assert np.mean([np.diff(at).max() > 14 for at in young]) > 0.2


def test_the_world_can_be_learned(tenant: TenantWorld) -> None:
    """Own plays predict repeats; heard artists, genre and tags predict discoveries; popularity does neither well."""
    measured = baselines(tenant)
    assert measured.listeners >= 30
    assert measured.own_all > 2 * measured.popular_all
    assert measured.own_repeat_10 > measured.popular_repeat_10
    assert measured.artist_novel > 2 * measured.popular_novel
    assert measured.tags_novel > 1.5 * measured.popular_novel
