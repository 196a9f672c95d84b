"""A small made-up world of listening for the tests of the model: listeners keep to their tastes, and repeat."""

import numpy as np

from shared.ids import track_key
from shared.two_tower.data import DAY_MS, Histories, Plays, TrackFeatures
from shared.two_tower.train import Recipe

NOW_MS = 1_700_000_000_000
TASTES, ARTISTS, TRACKS = 6, 60, 480
QUICK = Recipe(dim=16, epochs=8, batch_rows=128, learning_rate=4e-3)


def world(seed: int = 0, users: int = 150, plays_each: int = 60) -> tuple[TrackFeatures, Plays]:
    """Ten days of plays: each listener has one taste of ten artists, now and then something else, and favourites."""
    rng = np.random.default_rng(seed)
    artist = np.arange(TRACKS) % ARTISTS
    taste = artist % TASTES
    popularity = 1 / (1 + rng.permutation(TRACKS)) ** 0.5
    tracks = TrackFeatures(
        track_key=np.array([track_key(f"track-{i}") for i in range(TRACKS)], np.uint64),
        artist=artist.astype(np.int32),
        genre=taste.astype(np.int32),
        tag_splits=np.arange(TRACKS + 1) * 2,
        tag_ids=np.stack((taste, TASTES + artist % 4), axis=1).ravel().astype(np.int32),
        tag_weights=np.ones(TRACKS * 2, np.float32),
        artist_vocab=[f"artist-{i}" for i in range(ARTISTS)],
        genre_vocab=[f"genre-{i}" for i in range(TASTES)],
        tag_vocab=[f"tag-{i}" for i in range(TASTES + 4)],
    )
    user, track, at = [], [], []
    for listener in range(users):
        mine = popularity * np.where(taste == listener % TASTES, 12.0, 0.3)
        days = rng.integers(0, 10, plays_each)
        begun = NOW_MS - (days + 1) * DAY_MS + rng.integers(1, DAY_MS, plays_each)
        user.append(np.full(plays_each, listener))
        track.append(rng.choice(TRACKS, plays_each, p=mine / mine.sum()))
        at.append(begun)
    return tracks, Plays(
        np.concatenate(user).astype(np.int32), np.concatenate(track).astype(np.int32), np.concatenate(at)
    )


def histories(*users: list[tuple[int, float, float]]) -> Histories:
    """Rows of (track_key, listens, age_days) for each user."""
    rows = [row for user in users for row in user]
    return Histories(
        np.cumsum([0, *map(len, users)], dtype=np.int64),
        np.array([row[0] for row in rows], np.uint64),
        np.array([row[1] for row in rows], np.float32),
        np.array([row[2] for row in rows], np.float32),
    )
