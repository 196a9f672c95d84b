import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from infra.demo.marginals import marginals
from infra.demo.set_d import FOLDER, load_set_d
from infra.demo.world import WorldUnavailable

UNTIL = datetime(2026, 3, 4, 15, 30, tzinfo=UTC)
EVENTS = """UserId,SessionId,ItemId,Time,ArtistId,slice
7,1,100,1397982525,9,0
8,2,101,1397982526,9,0
7,1,101,1397983236,9,0
9,3,102,1419153822,10,4
9,3,100,1419153000,9,4
"""
TAGS = """ItemId,tag_ids
100,21 0 873 0 21
101,0 0 0 0 0
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "events.csv").write_text(EVENTS)
    (tmp_path / "item_tags.csv").write_text(TAGS)
    return tmp_path


def test_every_play_is_in_one_tenant_in_time_order(folder: Path) -> None:
    world = load_set_d(folder, UNTIL)
    users = [set(tenant.listeners.user_id) for tenant in world.tenants]
    assert set.union(*users) == {"u-7", "u-8", "u-9"}
    assert not users[0] & users[1]
    assert sum(len(tenant.plays) for tenant in world.tenants) == 5
    assert all((np.diff(tenant.plays.started_at_ms) >= 0).all() for tenant in world.tenants)


def test_one_shift_of_whole_days_ends_the_plays_yesterday(folder: Path) -> None:
    world = load_set_d(folder, UNTIL)
    starts = np.sort(np.concatenate([tenant.plays.started_at_ms for tenant in world.tenants]))
    last = datetime.fromtimestamp(starts[-1] / 1000, UTC)
    assert last.date() == UNTIL.date() - timedelta(days=1)
    shift_ms = starts[-1] - 1419153822_000
    assert shift_ms % 86_400_000 == 0
    assert starts[0] == 1397982525_000 + shift_ms


def test_what_the_files_lack_is_absent(folder: Path) -> None:
    tenant = load_set_d(folder, UNTIL).tenants[0]
    tracks = tenant.tracks
    assert tracks.title == ["Track 100", "Track 101", "Track 102"]
    assert tracks.artist_name == ["Artist 9", "Artist 9", "Artist 10"]
    assert {*tracks.genre, *tracks.duration_ms, *tracks.released_on} == {None}
    assert set(tenant.listeners.zone) <= {None}
    assert (tenant.plays.played_ms == -1).all()


def test_tag_zero_means_unlinked_and_is_left_out(folder: Path) -> None:
    tracks = load_set_d(folder, UNTIL).tenants[0].tracks
    assert tracks.tags == [(("tag-21", 1.0), ("tag-873", 1.0)), (), ()]


def test_loading_twice_gives_the_same_event_ids(folder: Path) -> None:
    one, two = load_set_d(folder, UNTIL), load_set_d(folder, UNTIL)
    for a, b in zip(one.tenants, two.tenants, strict=True):
        assert np.array_equal(a.plays.event_id, b.plays.event_id)


def test_a_missing_folder_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(WorldUnavailable, match="MEIRI_DATA must name the folder") as caught:
        load_set_d(tmp_path / "nowhere", UNTIL)
    assert "\n" not in str(caught.value)


def test_a_missing_tag_file_is_one_sentence(folder: Path) -> None:
    (folder / "item_tags.csv").unlink()
    with pytest.raises(WorldUnavailable, match=r"item_tags\.csv"):
        load_set_d(folder, UNTIL)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("UserId,ItemId\n1,2\n", "needs the columns"),
        (EVENTS + "7,1,100,yesterday,9,0\n", "line 7: expected ids and a time"),
        (EVENTS + "7,1,100\n", "line 7: expected 6 fields, found 3"),
        (EVENTS.splitlines()[0] + "\n", "has no plays"),
        ("", "needs the columns"),
    ],
)
def test_a_damaged_file_is_one_sentence(folder: Path, text: str, sentence: str) -> None:
    (folder / "events.csv").write_text(text)
    with pytest.raises(WorldUnavailable, match=sentence):
        load_set_d(folder, UNTIL)


def test_the_real_set_d_has_its_known_marginals() -> None:
    data = os.environ.get("MEIRI_DATA")
    if not data:
        pytest.skip("MEIRI_DATA is not set: the real set D is not here")
    folder = Path(data) / FOLDER
    if not folder.is_dir():
        pytest.skip(f"MEIRI_DATA has no {FOLDER}: the real set D is not here")
    world = load_set_d(folder, UNTIL)
    total = marginals(world).total
    assert (total.listeners, total.tracks, total.plays) == (4_620, 57_684, 121_547)
    assert total.session_plays == (8.0, 25.0, 78.0)
    assert round(total.top_share, 3) == 0.104
    assert round(total.repeat_share, 3) == 0.178
