"""The rules of the daily list, one promise a test."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from shared.recommend.fallback import fallback_list, with_popular
from shared.recommend.pipeline import make_list
from shared.recommend.values import (
    Candidates,
    CatalogueColumns,
    Fallback,
    Listener,
    ListOfTheDay,
    Popular,
    ReasonKind,
    Rules,
    Shortfall,
    Verdict,
)

TODAY = 20_500


def catalogue(tracks: int, songs_per_artist: int = 1, genres: int = 5) -> CatalogueColumns:
    row = np.arange(tracks)
    return CatalogueColumns(
        (row * 3 + 7).astype(np.uint64),
        (row // songs_per_artist).astype(np.int32),
        (row // songs_per_artist % genres).astype(np.int32),
    )


def heard(rows: list[int], **more: Any) -> Listener:
    n = len(rows)
    history: dict[str, Any] = {
        "heard_row": rows,
        "plays": [3] * n,
        "listens": [3] * n,
        "last_played_day": [TODAY - 1] * n,
    }
    return Listener.of(**(history | more))


def made(
    songs: CatalogueColumns,
    candidates: Candidates,
    listener: Listener,
    rules: Rules | None = None,
    popular: tuple[int, ...] = (),
) -> ListOfTheDay:
    return make_list(
        candidates,
        listener,
        catalogue=songs,
        popular=Popular.of(popular, songs),
        rules=rules or Rules(),
        today=TODAY,
    )


def falling(rows: list[int]) -> Candidates:
    return Candidates.of(rows, np.linspace(1, 0.1, len(rows)))


def rows(songs: ListOfTheDay) -> list[int]:
    return [song.row for song in songs.recommendations]


def test_half_the_list_is_familiar_by_default_and_half_discovery() -> None:
    songs = made(catalogue(400), falling(list(range(400))), heard(list(range(100))))
    assert len(songs.recommendations) == 30
    assert sum(song.familiar for song in songs.recommendations) == 15
    assert (songs.familiar_share_wanted, songs.familiar_share, songs.shortfalls) == (0.5, 0.5, ())


@pytest.mark.parametrize(("dial", "familiar"), [(0.0, 0), (0.1, 3), (0.25, 8), (0.75, 23), (1.0, 30)])
def test_the_dial_of_the_listener_sets_the_blend(dial: float, familiar: int) -> None:
    songs = made(catalogue(400), falling(list(range(400))), heard(list(range(100)), familiar_share=dial))
    assert sum(song.familiar for song in songs.recommendations) == familiar


def test_discoveries_fill_up_when_the_listener_knows_few_songs_and_the_list_says_so() -> None:
    songs = made(catalogue(400), falling(list(range(400))), heard([5, 6, 7]))
    assert len(songs.recommendations) == 30
    assert songs.familiar_share == 0.1
    assert songs.shortfalls == (Shortfall.FEW_FAMILIAR,)


def test_familiar_songs_fill_up_when_every_song_was_heard() -> None:
    songs = made(catalogue(100), falling(list(range(100))), heard(list(range(100))))
    assert songs.familiar_share == 1
    assert songs.shortfalls == (Shortfall.FEW_DISCOVERIES,)


def test_a_catalogue_of_twelve_songs_gives_twelve_songs_once_each() -> None:
    songs = made(catalogue(12), falling(list(range(12)) * 2), heard([1, 2]))
    assert sorted(rows(songs)) == list(range(12))
    assert Shortfall.FEW_CANDIDATES in songs.shortfalls
    assert songs.verdicts[Verdict.REPEATED] == 12


def test_no_candidate_gives_an_empty_list_and_no_error() -> None:
    for songs in (catalogue(0), catalogue(5)):
        assert made(songs, Candidates.of([], []), Listener.of()).recommendations == ()


def test_what_is_banned_disliked_or_recently_recommended_is_out_and_the_next_best_refill() -> None:
    listener = heard(
        [],
        banned_artist=[0],
        disliked=[10],
        recommended_row=[20, 21],
        recommended_day=[TODAY - 14, TODAY - 15],
    )
    songs = made(catalogue(60, songs_per_artist=3), falling([0, 1, 2, 10, 20, 21, -1, *range(22, 60)]), listener)
    assert len(songs.recommendations) == 30
    assert {0, 1, 2, 10, 20, -1}.isdisjoint(rows(songs))
    assert 21 in rows(songs)
    assert songs.verdicts == {
        Verdict.KEPT: 39,
        Verdict.UNKNOWN_TRACK: 1,
        Verdict.DISLIKED: 1,
        Verdict.BANNED_ARTIST: 3,
        Verdict.RECENTLY_RECOMMENDED: 1,
    }


@pytest.mark.parametrize(("played_day", "may_return"), [(0, False), (1, False), (2, True), (3, True)])
def test_a_recommended_song_returns_inside_the_window_only_if_it_was_played_on_a_later_date(
    played_day: int, may_return: bool
) -> None:
    listener = heard([3], last_played_day=[TODAY - 5 + played_day], recommended_row=[3], recommended_day=[TODAY - 5])
    assert (3 in rows(made(catalogue(10), falling(list(range(10))), listener))) is may_return


def test_a_score_that_is_no_number_is_left_out() -> None:
    songs = made(catalogue(3), Candidates.of([0, 1, 2], [np.nan, np.inf, 0.5]), Listener.of())
    assert rows(songs) == [2]
    assert songs.verdicts[Verdict.NO_SCORE] == 2


def test_an_artist_stands_three_times_at_most_even_if_all_the_best_are_theirs() -> None:
    songs = catalogue(400, songs_per_artist=80)
    best = made(songs, falling(list(range(400))), heard([]))
    artists = songs.artist[rows(best) + [song.row for song in best.spares]]
    assert np.bincount(artists).max() == 3
    assert len(best.recommendations) == 15  # five artists


def test_the_share_is_met_even_if_one_side_would_take_the_artists_of_the_other() -> None:
    # artist 0 has the only discoveries but also the best familiar songs
    songs = CatalogueColumns(
        np.arange(12, dtype=np.uint64), np.array([0] * 6 + list(range(1, 7)), np.int32), np.zeros(12, np.int32)
    )
    listener = heard([0, 1, 2, *range(6, 12)])
    best = made(songs, falling([0, 1, 2, 6, 7, 8, 9, 10, 11, 3, 4, 5]), listener, Rules(length=6, spare_tracks=0))
    assert best.shortfalls == ()
    assert {row for row in rows(best) if row in (3, 4, 5)} == {3, 4, 5}


def test_no_artist_plays_twice_in_a_row() -> None:
    songs = catalogue(60, songs_per_artist=3)
    best = made(songs, falling(list(range(60))), heard(list(range(15))))
    artists = songs.artist[rows(best)].tolist()
    assert all(a != b for a, b in pairwise(artists))


def test_an_artist_with_most_of_the_songs_is_spread_as_far_as_it_can_be() -> None:
    songs = CatalogueColumns(np.arange(5, dtype=np.uint64), np.array([0, 0, 0, 1, 2], np.int32), np.zeros(5, np.int32))
    best = made(songs, Candidates.of([0, 1, 2, 3, 4], [0.1, 0.2, 0.3, 0.9, 0.8]), Listener.of(), Rules(length=5))
    assert songs.artist[rows(best)].tolist() in ([0, 1, 0, 2, 0], [0, 2, 0, 1, 0])


def test_the_library_of_one_artist_still_gives_a_list() -> None:
    songs = CatalogueColumns(np.arange(5, dtype=np.uint64), np.zeros(5, np.int32), np.zeros(5, np.int32))
    assert rows(made(songs, falling([4, 3, 2, 1, 0]), Listener.of())) == [4, 3, 2]


def test_songs_without_a_known_artist_are_not_one_giant_artist() -> None:
    songs = CatalogueColumns(np.arange(9, dtype=np.uint64), np.full(9, -1, np.int32), np.full(9, -1, np.int32))
    assert len(made(songs, falling(list(range(9))), Listener.of()).recommendations) == 9


def test_the_best_known_song_opens_and_both_sides_alternate() -> None:
    best = made(catalogue(400), falling(list(range(400))), heard(list(range(200, 300))))
    assert best.recommendations[0].row == 200
    assert [song.familiar for song in best.recommendations] == [True, False] * 15


def test_equal_scores_are_ordered_by_track_key() -> None:
    best = made(catalogue(50), Candidates.of(list(range(49, -1, -1)), np.ones(50)), Listener.of(), Rules(length=10))
    assert rows(best) == list(range(10))


def test_spares_are_valid_not_in_the_list_and_have_reasons() -> None:
    best = made(catalogue(400), falling(list(range(400))), heard(list(range(100))))
    assert len(best.spares) == 5
    assert not {song.row for song in best.spares} & set(rows(best))
    assert {song.familiar for song in best.spares} == {True, False}


def test_popular_songs_fill_a_list_that_filters_made_short() -> None:
    songs = catalogue(200)
    few = falling(list(range(10)))
    best = made(songs, with_popular(few, Popular.of(range(5, 200), songs)), heard([]), popular=tuple(range(5, 200)))
    assert rows(best)[:10] == list(range(10))
    assert len(best.recommendations) == 30


def test_without_history_the_fallback_is_what_is_popular_and_says_why() -> None:
    songs = catalogue(100)
    best = fallback_list(
        Listener.of(banned_artist=[50]),
        catalogue=songs,
        popular=Popular.of(range(50, 100), songs),
        rules=Rules(),
        today=TODAY,
        cause=Fallback.NO_HISTORY,
    )
    assert rows(best) == list(range(51, 81))
    assert {song.reason.kind for song in best.recommendations} == {ReasonKind.POPULAR}
    assert best.fallback is Fallback.NO_HISTORY


def test_without_a_release_the_fallback_has_own_favourites_and_popular_songs_of_own_genres_first() -> None:
    songs = catalogue(100)
    best = fallback_list(
        heard([0, 5, 10], familiar_share=0.1),  # genre 0
        catalogue=songs,
        popular=Popular.of(range(50, 100), songs),
        rules=Rules(length=10, spare_tracks=0),
        today=TODAY,
        cause=Fallback.NO_RELEASE,
    )
    assert sum(song.familiar for song in best.recommendations) == 1
    assert [song.row for song in best.recommendations if not song.familiar] == [50, 55, 60, 65, 70, 75, 80, 85, 90]
    assert {song.reason.kind for song in best.recommendations if not song.familiar} == {ReasonKind.POPULAR_IN_GENRE}


def test_an_empty_catalogue_has_an_empty_fallback() -> None:
    songs = catalogue(0)
    best = fallback_list(
        Listener.of(),
        catalogue=songs,
        popular=Popular.of([], songs),
        rules=Rules(),
        today=TODAY,
        cause=Fallback.NO_RELEASE,
    )
    assert (best.recommendations, best.familiar_share) == ((), 0.0)


def test_a_catalogue_with_two_tracks_of_one_key_is_refused() -> None:
    with pytest.raises(ValueError, match="track_key must strictly ascend"):
        CatalogueColumns(np.array([1, 1], np.uint64), np.zeros(2, np.int32), np.zeros(2, np.int32))


def test_rows_of_unknown_keys_are_absent() -> None:
    assert catalogue(3).rows_of(np.array([13, 8, 7], np.uint64)).tolist() == [2, -1, 0]


def test_a_listeners_columns_may_come_in_any_order_with_repeats_and_unknown_tracks() -> None:
    listener = Listener.of(
        heard_row=[9, -1, 4, 9],
        plays=[1, 7, 2, 3],
        listens=[1, 7, 0, 2],
        last_played_day=[5, 9, 6, 4],
        recommended_row=[3, 1, 3],
        recommended_day=[10, 11, 12],
    )
    assert listener.heard_row.tolist() == [4, 9]
    assert listener.plays.tolist() == [2, 4]
    assert listener.listens.tolist() == [0, 3]
    assert listener.last_played_day.tolist() == [6, 5]
    assert (listener.recommended_row.tolist(), listener.recommended_day.tolist()) == ([1, 3], [11, 12])
