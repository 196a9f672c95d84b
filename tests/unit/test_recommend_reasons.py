"""Reasons: which is given, that each is true, and what it reads like."""

from datetime import date, timedelta

import numpy as np
import pytest

from shared.recommend.reason_check import History, verify_reason
from shared.recommend.reason_text import Names, render
from shared.recommend.reasons import reasons
from shared.recommend.values import CatalogueColumns, Listener, Popular, Reason, ReasonKind, Rules

TODAY = date(2026, 3, 1)
DAY = (TODAY - date(1970, 1, 1)).days
# rows:     0  1  2  3  4  5  6   7
ARTIST = [0, 0, 1, 1, 2, 3, 4, -1]
GENRE = [0, 0, 0, 1, 1, 2, 0, -1]
SONGS = CatalogueColumns(np.arange(8, dtype=np.uint64), np.array(ARTIST, np.int32), np.array(GENRE, np.int32))
POPULAR = Popular.of([4, 6, 7], SONGS)
LISTENER = Listener.of(
    heard_row=[0, 2, 5],
    plays=[5, 1, 4],
    listens=[4, 1, 3],
    last_played_day=[DAY - 2, DAY, DAY - 270],
    loved=[2],
)
HISTORY = History(
    plays={0: 5, 2: 1, 5: 4},
    listens={0: 4, 2: 1, 5: 3},
    last_played={0: TODAY - timedelta(2), 2: TODAY, 5: TODAY - timedelta(270)},
    artist_of=ARTIST,
    genre_of=GENRE,
    loved={2},
    popular={4, 6, 7},
)


def reason(row: int, evidence: int = -1, listener: Listener = LISTENER) -> Reason:
    (only,) = reasons(
        np.array([row], np.int32),
        np.array([evidence], np.int32),
        listener,
        catalogue=SONGS,
        popular=POPULAR,
        rules=Rules(),
        today=DAY,
    )
    return only


@pytest.mark.parametrize(
    ("row", "evidence", "given"),
    [
        (0, -1, Reason(ReasonKind.YOU_OFTEN_PLAY, track=0, number=4)),
        (5, -1, Reason(ReasonKind.NOT_HEARD_FOR, number=270)),
        (2, -1, Reason(ReasonKind.BECAUSE_YOU_LOVED, track=2)),
        (4, 2, Reason(ReasonKind.BECAUSE_YOU_LOVED, track=2)),
        (4, 0, Reason(ReasonKind.BECAUSE_YOU_PLAY, track=0, number=4)),
        (1, 0, Reason(ReasonKind.UNHEARD_FROM_ARTIST, artist=0, number=4)),
        (6, -1, Reason(ReasonKind.POPULAR_IN_GENRE, genre=0, number=5)),
        (4, -1, Reason(ReasonKind.POPULAR)),
        (7, -1, Reason(ReasonKind.POPULAR)),
    ],
)
def test_the_most_telling_true_reason_is_given(row: int, evidence: int, given: Reason) -> None:
    assert reason(row, evidence) == given
    assert verify_reason(given, row, HISTORY, TODAY)


def test_a_song_heard_once_and_lately_is_one_that_was_played() -> None:
    once = Listener.of(heard_row=[3], plays=[1], listens=[0], last_played_day=[DAY - 1])
    assert reason(3, listener=once) == Reason(ReasonKind.YOU_HAVE_PLAYED, track=3, number=1)


def test_where_nothing_speaks_for_a_song_nothing_is_claimed() -> None:
    assert reason(3, listener=Listener.of()) == Reason(ReasonKind.NONE)
    assert verify_reason(Reason(ReasonKind.NONE), 3, HISTORY, TODAY)


@pytest.mark.parametrize(
    ("row", "untrue"),
    [
        (0, Reason(ReasonKind.YOU_OFTEN_PLAY, track=0, number=5)),
        (2, Reason(ReasonKind.YOU_OFTEN_PLAY, track=2, number=1)),
        (1, Reason(ReasonKind.YOU_OFTEN_PLAY, track=0, number=4)),
        (5, Reason(ReasonKind.NOT_HEARD_FOR, number=271)),
        (1, Reason(ReasonKind.NOT_HEARD_FOR, number=30)),
        (4, Reason(ReasonKind.BECAUSE_YOU_LOVED, track=0)),
        (4, Reason(ReasonKind.BECAUSE_YOU_LOVED)),
        (4, Reason(ReasonKind.BECAUSE_YOU_PLAY, track=1, number=0)),
        (0, Reason(ReasonKind.BECAUSE_YOU_PLAY, track=0, number=4)),
        (4, Reason(ReasonKind.UNHEARD_FROM_ARTIST, artist=2, number=0)),
        (0, Reason(ReasonKind.UNHEARD_FROM_ARTIST, artist=0, number=4)),
        (1, Reason(ReasonKind.UNHEARD_FROM_ARTIST, artist=1, number=1)),
        (1, Reason(ReasonKind.POPULAR_IN_GENRE, genre=0, number=5)),
        (4, Reason(ReasonKind.POPULAR_IN_GENRE, genre=1, number=0)),
        (7, Reason(ReasonKind.POPULAR_IN_GENRE, genre=-1, number=0)),
        (0, Reason(ReasonKind.POPULAR)),
        (3, Reason(ReasonKind.YOU_HAVE_PLAYED, track=3, number=1)),
        (3, Reason(ReasonKind.NONE, number=1)),
    ],
)
def test_an_untrue_reason_is_found_out(row: int, untrue: Reason) -> None:
    assert not verify_reason(untrue, row, HISTORY, TODAY)


@pytest.mark.parametrize(
    ("given", "english", "chinese"),
    [
        (Reason(ReasonKind.YOU_OFTEN_PLAY, number=12), "You often play this (12 listens)", "你常听这首歌：12 次"),
        (Reason(ReasonKind.YOU_HAVE_PLAYED, number=1), "You have played this 1 time", "你播放过这首歌 1 次"),
        (
            Reason(ReasonKind.NOT_HEARD_FOR, number=275),
            "You have not heard this for 9 months",
            "你已经 9 个月没听这首歌了",
        ),
        (
            Reason(ReasonKind.NOT_HEARD_FOR, number=364),
            "You have not heard this for 12 months",
            "你已经 12 个月没听这首歌了",
        ),
        (
            Reason(ReasonKind.NOT_HEARD_FOR, number=800),
            "You have not heard this for 2 years",
            "你已经 2 年没听这首歌了",
        ),
        (Reason(ReasonKind.BECAUSE_YOU_LOVED, track=1), "Because you loved Low {Tide}", "因为你喜爱《Low {Tide}》"),
        (Reason(ReasonKind.POPULAR), "Popular with listeners here", "这里的热门歌曲"),
    ],
)
def test_a_reason_reads_like_a_sentence(given: Reason, english: str, chinese: str) -> None:
    names = Names(track="Low {Tide}", artist="Glass Heron", genre="Folk")
    assert render(given, names) == english
    assert render(given, names, "zh-CN") == chinese


def test_every_kind_has_a_sentence_in_both_languages() -> None:
    for kind in set(ReasonKind) - {ReasonKind.NONE}:
        for language in ("en", "zh"):
            assert render(Reason(kind, number=2), Names("T", "A", "G"), language)


def test_a_loved_song_is_not_called_its_own_cause() -> None:
    assert render(Reason(ReasonKind.BECAUSE_YOU_LOVED, track=3), Names("Bell"), recommended=3) == "You love this song"
