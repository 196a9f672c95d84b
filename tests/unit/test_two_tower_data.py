from dataclasses import replace

import numpy as np
import pytest

from shared.errors import Permanent
from shared.two_tower.data import DAY_MS, Lists, Plays, histories_at, ragged_take, row_users
from tests.unit.two_tower_world import NOW_MS, histories, world


def plays(*rows: tuple[int, int, int]) -> Plays:
    user, track, at = (np.array(column) for column in zip(*rows, strict=True))
    return Plays(user.astype(np.int32), track.astype(np.int32), at.astype(np.int64))


def test_history_counts_listens_and_keeps_the_age_of_the_last() -> None:
    keys = np.array([30, 20, 10], np.uint64)
    heard = plays((0, 0, NOW_MS - 5 * DAY_MS), (0, 0, NOW_MS - 2 * DAY_MS), (0, 2, NOW_MS - DAY_MS), (1, 1, NOW_MS))
    found = histories_at(heard, keys, np.array([1, 0], np.int32), NOW_MS)
    assert found.splits.tolist() == [0, 0, 2], "a play at the instant itself is not before it"
    assert found.track_key.tolist() == [10, 30]
    assert found.listens.tolist() == [1, 2]
    assert found.age_days.tolist() == [1, 2]


def test_history_rows_in_any_order_are_the_same_history() -> None:
    one = histories([(5, 1, 1), (3, 2, 2)], [(9, 1, 1)]).checked()
    other = histories([(3, 2, 2), (5, 1, 1)], [(9, 1, 1)]).checked()
    assert one.track_key.tolist() == other.track_key.tolist() == [3, 5, 9]
    assert one.listens.tolist() == other.listens.tolist()


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([(3, 1, 1), (3, 2, 2)], "twice"),
        ([(3, float("nan"), 1)], "no number"),
        ([(3, 1, float("inf"))], "no number"),
        ([(3, -1, 1)], "below 0"),
    ],
)
def test_broken_history_is_refused_with_a_sentence(rows: list[tuple[int, float, float]], complaint: str) -> None:
    with pytest.raises(Permanent, match=complaint):
        histories(rows).checked()


def test_future_plays_in_a_history_have_age_zero() -> None:
    assert histories([(3, 1, -2.0)]).checked().age_days.tolist() == [0]


def test_broken_catalogue_is_refused_with_a_sentence() -> None:
    tracks, _ = world()
    weights = tracks.tag_weights.copy()
    weights[7] = np.nan
    keys = tracks.track_key.copy()
    keys[1] = keys[0]
    for broken, complaint in (
        (replace(tracks, tag_weights=weights), "tag weight"),
        (replace(tracks, track_key=keys), "twice"),
        (replace(tracks, genre=tracks.genre + 100), "genre column is not in its vocabulary"),
        (replace(tracks, tag_splits=tracks.tag_splits[:-1]), "splits"),
        (replace(tracks, track_key=keys[:0], artist=tracks.artist[:0], genre=tracks.genre[:0]), "no track"),
    ):
        with pytest.raises(Permanent, match=complaint):
            broken.checked()


def test_play_outside_the_catalogue_is_refused_with_a_sentence() -> None:
    with pytest.raises(Permanent, match="outside the 3"):
        plays((0, 3, NOW_MS)).checked(3)


def test_ragged_take_gives_the_chosen_runs_in_the_order_asked() -> None:
    rows, splits = ragged_take(np.array([0, 2, 2, 5]), np.array([2, 1, 0]))
    assert rows.tolist() == [2, 3, 4, 0, 1]
    assert splits.tolist() == [0, 3, 3, 5]
    assert row_users(splits).tolist() == [0, 0, 0, 2, 2]


def test_lists_are_columns_of_keys() -> None:
    lists = Lists.of([[1, 2], [], [2**64 - 1]])
    assert lists.splits.tolist() == [0, 2, 2, 3]
    assert lists.track_key.tolist() == [1, 2, 2**64 - 1]
    assert len(Lists.empty(4)) == 4
