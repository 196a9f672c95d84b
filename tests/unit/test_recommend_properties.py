"""The promises of the daily list on any listener and any candidates."""

import random
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.recommend.fallback import fallback_list
from shared.recommend.pipeline import make_list
from shared.recommend.reason_check import History, verify_reason
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
)

DATE = date(2026, 3, 1)
TODAY = (DATE - date(1970, 1, 1)).days


@dataclass
class World:
    """One listener before a small catalogue, in plain numbers: what the checks below use instead of columns."""

    artist: list[int]
    genre: list[int]
    popular: list[int]
    plays: dict[int, int]
    listens: dict[int, int]
    last_played: dict[int, int]
    loved: set[int]
    disliked: set[int]
    banned: set[int]
    recommended: dict[int, int]
    share: float | None
    candidates: list[tuple[int, float, int]]
    rules: Rules

    def songs(self) -> CatalogueColumns:
        key = np.arange(len(self.artist), dtype=np.uint64) * 5
        return CatalogueColumns(key, np.array(self.artist, np.int32), np.array(self.genre, np.int32))

    def listener(self) -> Listener:
        heard = list(self.plays)
        return Listener.of(
            heard_row=heard,
            plays=[self.plays[row] for row in heard],
            listens=[self.listens[row] for row in heard],
            last_played_day=[self.last_played[row] for row in heard],
            loved=list(self.loved),
            disliked=list(self.disliked),
            banned_artist=list(self.banned),
            recommended_row=list(self.recommended),
            recommended_day=list(self.recommended.values()),
            familiar_share=self.share,
        )

    def history(self) -> History:
        return History(
            plays=self.plays,
            listens=self.listens,
            last_played={row: date(1970, 1, 1) + timedelta(days=day) for row, day in self.last_played.items()},
            artist_of=self.artist,
            genre_of=self.genre,
            loved=self.loved,
            popular=set(self.popular),
        )

    def made(self, candidates: list[tuple[int, float, int]] | None = None) -> ListOfTheDay:
        columns = list(zip(*(self.candidates if candidates is None else candidates), strict=True)) or [(), (), ()]
        songs = self.songs()
        return make_list(
            Candidates.of(*columns),
            self.listener(),
            catalogue=songs,
            popular=Popular.of(self.popular, songs),
            rules=self.rules,
            today=TODAY,
        )

    def valid(self) -> set[int]:
        return {row for row, _, _ in self.candidates if row >= 0 and self.may_stand(row)}

    def may_stand(self, row: int) -> bool:
        if row in self.disliked or self.artist[row] in self.banned:
            return False
        day = self.recommended.get(row)
        if day is None or day < TODAY - self.rules.recommended_window_days:
            return True
        return row in self.plays and self.last_played[row] >= day + 2

    def room(self, rows: set[int]) -> int:
        """How many of the rows an artist cap lets stand together."""
        by_artist: dict[int, int] = {}
        for row in rows:
            artist = self.artist[row] if self.artist[row] >= 0 else -2 - row
            by_artist[artist] = by_artist.get(artist, 0) + 1
        return sum(min(n, self.rules.artist_cap) for n in by_artist.values())


@st.composite
def worlds(draw: st.DrawFn) -> World:
    seed = draw(st.integers(0, 2**32))
    chance = random.Random(seed)
    tracks = draw(st.sampled_from([1, 12, 40, 120]))
    artists = draw(st.sampled_from([1, 4, 20, 60]))
    plays = {
        row: chance.randint(1, 5) for row in range(tracks) if chance.random() < draw(st.sampled_from([0, 0.2, 0.6]))
    }
    some = draw(st.sampled_from([0.0, 0.1, 0.5]))
    return World(
        artist=[chance.randrange(-1, artists) for _ in range(tracks)],
        genre=[chance.randrange(-1, 4) for _ in range(tracks)],
        popular=chance.sample(range(tracks), tracks // 3),
        plays=plays,
        listens={row: chance.randint(0, n) for row, n in plays.items()},
        last_played={row: TODAY - chance.choice([0, 1, 5, 40, 400]) for row in plays},
        loved={row for row in range(tracks) if chance.random() < 0.1},
        disliked={row for row in range(tracks) if chance.random() < some},
        banned={artist for artist in range(artists) if chance.random() < some},
        recommended={row: TODAY - chance.randint(0, 20) for row in range(tracks) if chance.random() < some},
        share=chance.choice([None, 0.0, 0.2, 0.5, 0.83, 1.0]),
        candidates=[
            (chance.randrange(-1, tracks), chance.choice([0.1, 0.5, chance.random()]), chance.choice([-1, *plays]))
            for _ in range(draw(st.sampled_from([0, 5, 60, 300])))
        ],
        rules=Rules(length=draw(st.sampled_from([1, 10, 30])), artist_cap=draw(st.sampled_from([1, 3]))),
    )


@given(world=worlds())
@settings(max_examples=150, deadline=None)
def test_only_valid_candidates_stand_each_once_under_the_cap_and_as_many_as_there_can_be(world: World) -> None:
    songs = world.made()
    listed = [song.row for song in songs.recommendations]
    all_rows = listed + [song.row for song in songs.spares]
    valid = world.valid()
    assert set(all_rows) <= valid
    assert len(set(all_rows)) == len(all_rows)
    assert world.room(set(all_rows)) == len(all_rows)
    assert len(listed) == min(world.rules.length, world.room(valid))
    assert len(all_rows) == min(world.rules.length + world.rules.spare_tracks, world.room(valid))
    assert (Shortfall.FEW_CANDIDATES in songs.shortfalls) == (len(listed) < world.rules.length)
    assert sum(songs.verdicts.values()) == len(world.candidates)
    assert all(song.familiar == (song.row in world.plays) for song in songs.recommendations + songs.spares)


@given(world=worlds())
@settings(max_examples=150, deadline=None)
def test_the_share_is_met_within_one_song_wherever_both_sides_suffice(world: World) -> None:
    songs = world.made()
    share = world.rules.familiar_share if world.share is None else world.share
    wanted = int(share * world.rules.length + 0.5)
    achieved = sum(song.familiar for song in songs.recommendations)
    assert songs.familiar_share == (achieved / len(songs.recommendations) if songs.recommendations else 0)
    valid = world.valid()
    familiar = {row for row in valid if row in world.plays}
    suffices = (
        world.room(familiar) >= wanted
        and world.room(valid - familiar) >= world.rules.length - wanted
        and world.room(valid) >= world.rules.length
    )
    if suffices:
        assert abs(achieved - share * world.rules.length) < 1
    assert (songs.shortfalls == ()) == suffices


@given(world=worlds(), seed=st.integers())
@settings(max_examples=100, deadline=None)
def test_the_order_of_the_candidates_does_not_matter(world: World, seed: int) -> None:
    shuffled = list(world.candidates)
    random.Random(seed).shuffle(shuffled)
    assert world.made(shuffled) == world.made()


@given(world=worlds())
@settings(max_examples=150, deadline=None)
def test_every_reason_is_true_and_a_heard_song_always_has_one(world: World) -> None:
    songs, history = world.made(), world.history()
    for song in songs.recommendations + songs.spares:
        assert verify_reason(song.reason, song.row, history, DATE), song
        assert not (song.familiar and song.reason.kind is ReasonKind.NONE)


@given(world=worlds())
@settings(max_examples=150, deadline=None)
def test_no_artist_plays_twice_in_a_row_while_it_is_avoidable(world: World) -> None:
    songs = world.made()
    artists = [
        world.artist[song.row] if world.artist[song.row] >= 0 else -2 - song.row for song in songs.recommendations
    ]
    most = max((artists.count(artist) for artist in artists), default=0)
    unavoidable = max(0, 2 * most - len(artists) - 1)
    assert sum(a == b for a, b in pairwise(artists)) == unavoidable


@given(world=worlds())
@settings(max_examples=100, deadline=None)
def test_a_fallback_obeys_the_same_rules(world: World) -> None:
    songs = world.songs()
    best = fallback_list(
        world.listener(),
        catalogue=songs,
        popular=Popular.of(world.popular, songs),
        rules=world.rules,
        today=TODAY,
        cause=Fallback.EMBEDDER_AWAY,
    )
    listed = best.recommendations + best.spares
    assert all(world.may_stand(song.row) for song in listed)
    assert all(song.familiar == (song.row in world.plays) for song in listed)
    assert all(verify_reason(song.reason, song.row, world.history(), DATE) for song in listed)
    assert all(song.reason.kind is not ReasonKind.NONE for song in listed)
    assert world.room({song.row for song in listed}) == len(listed)
    possible = set(world.popular) | {row for row, n in world.listens.items() if n}
    assert len(best.recommendations) == min(
        world.rules.length, world.room({row for row in possible if world.may_stand(row)})
    )
