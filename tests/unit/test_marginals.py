from datetime import UTC, datetime
from io import StringIO

import numpy as np
from rich.console import Console

from infra.demo.marginals import compare_table, last_days, marginals
from infra.demo.world import Listeners, Plays, TenantWorld, Tracks, World, generate

UNTIL = datetime(2026, 3, 4, 15, 30, tzinfo=UTC)


def _tenant(tenant_id: str, user: list[int], track: list[int], session: list[int], track_ids: list[str]) -> TenantWorld:
    n, t = len(user), len(track_ids)
    plays = Plays(
        user=np.array(user, dtype=np.int32),
        track=np.array(track, dtype=np.int32),
        started_at_ms=np.arange(n, dtype=np.int64) * 86_400_000,
        played_ms=np.full(n, -1, dtype=np.int64),
        session=np.array(session, dtype=np.int32),
        event_id=np.zeros((n, 16), dtype=np.uint8),
    )
    tracks = Tracks(track_ids, [""] * t, [""] * t, [""] * t, [None] * t, [()] * t, [None] * t, [None] * t)
    return TenantWorld(tenant_id, tracks, Listeners(["u-1", "u-2", "u-3"], [None] * 3, [""] * 3), plays)


def test_marginals_of_a_small_world_are_counted_by_hand() -> None:
    one = _tenant("one", [0, 0, 0, 1], [0, 0, 1, 0], [0, 0, 1, 2], ["a", "b"])
    two = _tenant("two", [0, 2], [0, 0], [0, 1], ["a"])
    measured = marginals(World((one, two)))
    assert measured.tenants["one"].listeners == 2
    assert measured.tenants["one"].plays_per_listener == (1.0, 1.0, 1.0)
    assert measured.tenants["one"].repeat_share == 0.25
    assert measured.tenants["one"].top_share == 0.75
    assert measured.total.listeners == 4  # u-1 of one tenant is not u-1 of the other
    assert measured.total.tracks == 2  # the same id in both tenants is one track
    assert measured.total.plays_per_track == (1.0, 1.0, 1.0)
    assert measured.total.session_plays[0] == 1.0


def test_last_days_keeps_only_the_end() -> None:
    one = _tenant("one", [0, 0, 0, 1], [0, 0, 1, 0], [0, 0, 1, 2], ["a", "b"])
    assert len(last_days(World((one,)), 2).tenants[0].plays) == 2


def test_a_world_without_plays_has_zero_measures() -> None:
    measured = marginals(World((_tenant("one", [], [], [], ["a"]),)))
    assert measured.total.plays == 0
    assert measured.total.plays_per_listener == (0.0, 0.0, 0.0)


def test_the_default_world_is_near_set_d() -> None:
    """Set D: sessions 8/25/78, top 1 % has 10.4 %, listeners 4.3 and 12.5 medians at p90 and p99, 18 % repeats."""
    world = generate(UNTIL)
    total, five_days = marginals(world).total, marginals(last_days(world, 5)).total
    p50, p90, p99 = total.session_plays
    assert (7 <= p50 <= 9, 22 <= p90 <= 31, 65 <= p99 <= 90) == (True, True, True)
    p50, p90, p99 = total.plays_per_listener
    assert 3.5 < p90 / p50 < 5.5
    assert 10 < p99 / p50 < 16
    assert 0.08 < total.top_share < 0.13
    assert 0.14 < five_days.repeat_share < 0.23
    assert 10 <= five_days.plays_per_listener[0] <= 18


def test_the_table_has_a_column_for_set_d_only_when_it_is_there() -> None:
    world = generate(UNTIL, scale=0.05)
    without, beside = compare_table(world, None), compare_table(world, world)
    assert [column.header for column in without.columns] == ["", "aurora", "birch", "total", "last 5 days"]
    assert beside.columns[-1].header == "set D (real)"
    console = Console(width=160, record=True, file=StringIO())
    console.print(beside)
    assert "repeat share" in console.export_text()
