"""The generated catalogue: artists with a genre and two styles, their albums over the years, songs with tags."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import numpy as np

from infra.demo.world import names, words
from infra.demo.world.model import Floats, Int32, Int64, Tracks

STYLES = 6  # styles per genre; style `genre * STYLES + i` is a scene, the unit of taste
GENRE_NAMES = tuple(words.GENRES)
TRACKS_PER_ARTIST = 11
NEW_ALBUM_SHARE = 0.08  # albums that come out inside the window of plays
EPOCH = date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What the generator knows about a catalogue; `tracks` is what the tenant tells. Sorted by (artist, release)."""

    tracks: Tracks
    artist_genre: Int32  # [A]
    artist_styles: Int32  # [A, 2] scenes, the first weighs more
    artist_weight: Floats  # [A] popularity, a Zipf tail
    artist_name: list[str]
    track_artist: Int32  # [T]
    release_day: Int64  # [T] days since 1970, also where `tracks.released_on` is absent
    weight: Floats  # [T] popularity among the artist's songs
    length_ms: Int64  # [T] also where `tracks.duration_ms` is absent

    def release_key(self, artist: Int64, day: Int64) -> Int64:
        """Rises with (artist, day): the index of an artist's first song after `day` is one search."""
        return artist * (1 << 20) + day


def build(
    tenant_id: str, track_count: int, artist_names: list[str], until: datetime, rng: np.random.Generator
) -> Catalogue:
    """`track_count` songs of the named artists, none released after `until`'s date."""
    artists = len(artist_names)
    today = (until.astimezone(UTC).date() - EPOCH).days

    genre_weight = 1.0 / (1 + rng.permutation(len(GENRE_NAMES))) ** 0.6
    genre = rng.choice(len(GENRE_NAMES), size=artists, p=genre_weight / genre_weight.sum()).astype(np.int32)
    first_style = rng.integers(0, STYLES, size=artists)
    second_style = (first_style + rng.integers(1, STYLES, size=artists)) % STYLES
    styles = (genre[:, None] * STYLES + np.stack([first_style, second_style], axis=1)).astype(np.int32)
    weight = np.power(4.0 + rng.permutation(artists).astype(np.float64), -1.1)

    songs = _songs_per_artist(track_count, weight, rng)
    artist = np.repeat(np.arange(artists, dtype=np.int32), songs)
    release_day = _release_days(artist, artists, today, rng)
    order = np.lexsort((release_day, artist))
    release_day = release_day[order]
    song_weight = np.power(1.0 + (rng.permutation(track_count) % songs[artist]).astype(np.float64), -1.1)
    minutes = np.clip(np.exp(rng.normal(np.log(3.6), 0.28, size=track_count)), 1.0, 14.0)
    length_ms = (minutes * 60_000).astype(np.int64)

    # What apps do not know: an old song's date, now and then a genre or a length.
    no_date = (rng.random(track_count) < 0.05) & (release_day < today - 365)
    no_length = rng.random(track_count) < 0.02
    no_genre = rng.random(artists) < 0.03
    tracks = Tracks(
        track_id=[f"{tenant_id}-t{i:06d}" for i in range(track_count)],
        title=names.titles(artist.tolist(), rng),
        artist_id=[f"{tenant_id}-a{a:05d}" for a in artist.tolist()],
        artist_name=[artist_names[a] for a in artist.tolist()],
        genre=[None if no_genre[a] else GENRE_NAMES[genre[a]] for a in artist.tolist()],
        tags=_tags(artist, genre, styles, release_day, rng),
        released_on=[
            None if absent else EPOCH + timedelta(days=day)
            for absent, day in zip(no_date.tolist(), release_day.tolist(), strict=True)
        ],
        duration_ms=[None if absent else ms for absent, ms in zip(no_length.tolist(), length_ms.tolist(), strict=True)],
    )
    return Catalogue(tracks, genre, styles, weight, artist_names, artist, release_day, song_weight, length_ms)


def _songs_per_artist(track_count: int, weight: Floats, rng: np.random.Generator) -> Int64:
    """Popular artists have more songs; everyone has two."""
    share = np.sqrt(weight) * np.exp(rng.normal(0, 0.6, size=len(weight)))
    extra = rng.multinomial(track_count - 2 * len(weight), share / share.sum())
    return 2 + extra.astype(np.int64)


def _release_days(artist: Int32, artists: int, today: int, rng: np.random.Generator) -> Int64:
    """Songs come out as albums of one date. Every artist's first album is older than the window of plays."""
    albums = 8
    career_days = np.exp(rng.normal(np.log(9 * 365), 0.8, size=artists)).clip(400, 50 * 365)
    age = rng.random((artists, albums)) * career_days[:, None]
    new = rng.random((artists, albums)) < NEW_ALBUM_SHARE
    age = np.where(new, rng.random((artists, albums)) * 88, 100 + age)
    age[:, 0] = 100 + career_days
    first = np.r_[True, artist[1:] != artist[:-1]]
    album = np.where(first, 0, rng.integers(0, albums, size=len(artist)))
    return np.asarray(today - age[artist, album], dtype=np.int64)


def _tags(
    artist: Int32, genre: Int32, styles: Int32, release_day: Int64, rng: np.random.Generator
) -> list[tuple[tuple[str, float], ...]]:
    """Style and genre tags of the artist, moods of the genre and the decade; a few songs have none."""
    style_names = [style for genre_styles in words.GENRES.values() for style in genre_styles]
    count = len(artist)
    # A genre has its own moods, so moods say something about taste as well.
    moods_of_genre = np.argsort(rng.random((len(GENRE_NAMES), len(words.MOODS))), axis=1)[:, :7]
    mood = moods_of_genre[genre[artist], rng.integers(0, 7, size=count)]
    noise = rng.uniform(0.75, 1.0, size=(count, 4)).round(2).tolist()
    has = (rng.random((count, 5)) < (0.85, 0.6, 0.5, 0.6, 0.35)).tolist()
    untagged = (rng.random(count) < 0.04).tolist()
    year = (1970 + release_day / 365.2425).astype(int).tolist()
    style_rows = styles[artist].tolist()
    out: list[tuple[tuple[str, float], ...]] = []
    for i, (a, m) in enumerate(zip(artist.tolist(), mood.tolist(), strict=True)):
        if untagged[i]:
            out.append(())
            continue
        own, dice = noise[i], has[i]
        tags = []
        if dice[0]:
            tags.append((style_names[style_rows[i][0]], own[0]))
        if dice[2]:
            tags.append((GENRE_NAMES[genre[a]], round(own[1] * 0.8, 2)))
        if dice[1]:
            tags.append((style_names[style_rows[i][1]], round(own[2] * 0.6, 2)))
        if dice[3]:
            tags.append((words.MOODS[m], round(own[3] * 0.4, 2)))
        if dice[4]:
            tags.append((f"{year[i] // 10 * 10}s", 0.2))
        tags.sort(key=lambda tag: -tag[1])
        out.append(tuple(tags))
    return out
