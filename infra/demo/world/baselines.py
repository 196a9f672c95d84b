"""Can the world be learned? Three simple recommenders, trained on all but the last day and asked for the last day.

recall@k of a listener = hits / min(k, targets). `all`: targets are the day's distinct tracks; `repeat`: those heard
before; `novel`: those not heard before, with heard tracks barred from the list. Listeners: a play on the last day and 5
before.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from infra.demo.world.model import DAY_MS, TenantWorld

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Baselines:
    """Means over listeners; nan where nobody has such a target."""

    listeners: int
    popular_all: float
    own_all: float  # own most played
    popular_novel: float
    artist_novel: float  # unheard songs of heard artists, by plays of the artist x popularity
    tags_novel: float  # unheard songs by likeness of genre and tags x popularity
    popular_repeat_10: float  # @10, only heard songs are ranked
    own_repeat_10: float


def baselines(tenant: TenantWorld, k: int = 50) -> Baselines:
    """Trains on the plays that start more than 24 h before the last one."""
    plays = tenant.plays
    cut = int(plays.started_at_ms[-1]) - DAY_MS
    before = plays.started_at_ms <= cut
    history = np.bincount(plays.user[before], minlength=len(tenant.listeners))
    users = np.flatnonzero((history >= 5) & (np.bincount(plays.user[~before], minlength=len(history)) > 0))
    row_of = np.full(len(history), -1)
    row_of[users] = np.arange(len(users))

    shape = (len(users), len(tenant.tracks))
    own, targets = np.zeros(shape), np.zeros(shape, dtype=bool)
    known = row_of[plays.user] >= 0
    np.add.at(own, (row_of[plays.user[known & before]], plays.track[known & before]), 1.0)
    targets[row_of[plays.user[known & ~before]], plays.track[known & ~before]] = True
    popular = np.bincount(plays.track[before], minlength=shape[1]) + 0.5
    everyone = np.broadcast_to(popular, shape)
    heard = own > 0

    _, artist = np.unique(tenant.tracks.artist_id, return_inverse=True)
    by_artist = np.zeros((shape[1], artist.max() + 1))
    by_artist[np.arange(shape[1]), artist] = 1.0
    artist_score = (np.log1p(own @ by_artist) @ by_artist.T) * np.log1p(popular)
    content = _content(tenant)
    tag_score = (np.log1p(own) @ content @ content.T) * np.log1p(popular)

    def novel(score: Matrix) -> float:
        return _recall(np.where(heard, -np.inf, score), targets & ~heard, k)

    def repeat(score: Matrix) -> float:
        return _recall(np.where(heard, score, -np.inf), targets & heard, 10)

    return Baselines(
        listeners=len(users),
        popular_all=_recall(everyone, targets, k),
        own_all=_recall(own + 1e-9 * popular, targets, k),
        popular_novel=novel(everyone),
        artist_novel=novel(artist_score),
        tags_novel=novel(tag_score),
        popular_repeat_10=repeat(everyone),
        own_repeat_10=repeat(own + 1e-9 * popular),
    )


def _content(tenant: TenantWorld) -> Matrix:
    """[T, F] unit rows of tag weights and genre."""
    features: dict[str, int] = {}
    rows, columns, values = [], [], []
    for row, (tags, genre) in enumerate(zip(tenant.tracks.tags, tenant.tracks.genre, strict=True)):
        for name, weight in (*tags, *([("genre " + genre, 0.5)] if genre else [])):
            rows.append(row)
            columns.append(features.setdefault(name, len(features)))
            values.append(weight)
    matrix = np.zeros((len(tenant.tracks), max(1, len(features))))
    matrix[rows, columns] = values
    matrix /= np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), 1e-9)
    return matrix


def _recall(score: Matrix, targets: npt.NDArray[np.bool_], k: int) -> float:
    count = targets.sum(axis=1)
    asked = count > 0
    if not asked.any():
        return float("nan")
    score, targets, count = score[asked], targets[asked], count[asked]
    top = np.argpartition(-score, k, axis=1)[:, :k]
    listed = np.isfinite(np.take_along_axis(score, top, axis=1))
    hits = (np.take_along_axis(targets, top, axis=1) & listed).sum(axis=1)
    return float((hits / np.minimum(count, k)).mean())
