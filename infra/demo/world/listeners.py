"""The generated listeners: where they live, when and how much they listen, and whom they like."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np

from infra.demo.world.catalogue import GENRE_NAMES, STYLES, Catalogue
from infra.demo.world.model import Floats, Int32, Int64, Listeners

CIRCLE = 32  # artists that a listener may come to love, best first
TASTES = 3  # genres of a listener, best first

ZONES: dict[str, float] = {
    "Europe/Berlin": 16, "America/New_York": 14, "Europe/London": 11, "Asia/Tokyo": 8, "America/Sao_Paulo": 8,
    "America/Los_Angeles": 8, "Asia/Kolkata": 7, "Africa/Lagos": 5, "America/Mexico_City": 5, "Asia/Shanghai": 5,
    "Australia/Sydney": 4, "Africa/Nairobi": 3, "Asia/Kathmandu": 2, "Pacific/Honolulu": 2, "Pacific/Tongatapu": 2,
}  # fmt: skip
ZONE_NAMES = tuple(ZONES)


@dataclass(frozen=True, slots=True)
class People:
    """What the generator knows about the listeners; `listeners` is what the tenant tells. U = listeners."""

    listeners: Listeners
    zone: Int32  # [U] index into ZONE_NAMES, -1 = unknown (lives by UTC)
    sessions: Int64  # [U] how many sessions in the window
    joined_day: Int64  # [U] day of the window on which the listener appears
    evening: Floats  # [U] share of sessions in the evening
    repeats: Floats  # [U] wish for a song already known, 0..1
    genres: Int32  # [U, TASTES]
    genre_weight: Floats  # [U, TASTES]
    circle: Int32  # [U, CIRCLE] artists
    circle_weight: Floats  # [U, CIRCLE]
    scene: Int32  # [U, TASTES] the style that the listener prefers in each of the genres


def build(count: int, sessions_median: float, days: int, catalogue: Catalogue, rng: np.random.Generator) -> People:
    """`count` listeners of one tenant; the spread of activity is set D's (p90 = 4.3 and p99 = 12.5 medians)."""
    share = np.array(list(ZONES.values()))
    zone = rng.choice(len(ZONES), size=count, p=share / share.sum()).astype(np.int32)
    zone[rng.random(count) < 0.02] = -1
    sessions = rng.poisson(sessions_median * np.exp(rng.normal(0, 1.1, size=count)).clip(0, 16))
    joined = np.where(rng.random(count) < 0.15, rng.integers(0, days - 7, size=count), 0)

    genres, genre_weight = _genres(count, catalogue, rng)
    scene = (genres * STYLES + rng.integers(0, STYLES, size=(count, TASTES))).astype(np.int32)
    circle = _circles(genres, genre_weight, scene, catalogue, rng)
    circle_weight = np.broadcast_to(1.0 / (2 + np.arange(CIRCLE)) ** 0.9, (count, CIRCLE)).copy()
    people = Listeners(
        user_id=[f"u-{i:06d}" for i in range(1, count + 1)],
        zone=[None if z < 0 else ZONE_NAMES[z] for z in zone.tolist()],
        taste=_describe(genres, circle, catalogue),
    )
    return People(
        listeners=people,
        zone=zone,
        sessions=np.maximum(1, sessions),
        joined_day=joined,
        evening=rng.uniform(0.3, 0.9, size=count),
        repeats=rng.beta(2.0, 5.5, size=count),
        genres=genres,
        genre_weight=genre_weight,
        circle=circle,
        circle_weight=circle_weight,
        scene=scene,
    )


def _genres(count: int, catalogue: Catalogue, rng: np.random.Generator) -> tuple[Int32, Floats]:
    """Choose a first genre by popularity, then genres that stand near it in the ring."""
    genres = len(GENRE_NAMES)
    popular = np.bincount(catalogue.artist_genre, weights=catalogue.artist_weight, minlength=genres)
    first = rng.choice(genres, size=count, p=popular / popular.sum())
    gap = np.abs(np.arange(genres)[None, :] - first[:, None])
    gap = np.minimum(gap, genres - gap)
    liking = np.log(popular + 1e-9)[None, :] - gap / 1.5 + rng.gumbel(size=(count, genres))
    liking[np.arange(count), first] = np.inf
    chosen = np.argsort(-liking, axis=1)[:, :TASTES].astype(np.int32)
    weight = rng.dirichlet((4.0, 1.6, 0.8), size=count)
    return chosen, weight


def _circles(
    genres: Int32, genre_weight: Floats, scene: Int32, catalogue: Catalogue, rng: np.random.Generator
) -> Int32:
    """[U, CIRCLE] artists: popular ones of the listener's genres, above all of his preferred styles."""
    popularity = np.log(catalogue.artist_weight)
    count = len(genres)
    out = np.empty((count, CIRCLE), dtype=np.int32)
    for start in range(0, count, 1000):  # blocks keep the [U, A] matrix small
        rows = slice(start, start + 1000)
        score = np.full((len(genres[rows]), len(GENRE_NAMES)), -9.0)
        np.put_along_axis(score, genres[rows], np.log(genre_weight[rows] + 1e-3), axis=1)
        liking = score[:, catalogue.artist_genre]
        for taste in range(TASTES):
            preferred = scene[rows, taste, None]
            liking += 2.5 * (catalogue.artist_styles[None, :, 0] == preferred)
            liking += 1.5 * (catalogue.artist_styles[None, :, 1] == preferred)
        liking += popularity + rng.gumbel(size=liking.shape)
        out[rows] = np.argsort(-liking, axis=1)[:, :CIRCLE]
    return out


def _describe(genres: Int32, circle: Int32, catalogue: Catalogue) -> list[str]:
    names = catalogue.artist_name
    return [
        f"{GENRE_NAMES[g[0]]} with some {GENRE_NAMES[g[1]]}; {names[c[0]]}, {names[c[1]]}, {names[c[2]]}"
        for g, c in zip(genres.tolist(), circle.tolist(), strict=True)
    ]


def utc_offsets_ms(begin: datetime, days: int) -> Int64:
    """[len(ZONES) + 1, days + 2] offset at local noon of each day from `begin` on; the last row (index -1) is UTC."""
    noon = begin.astimezone(UTC).replace(hour=12, minute=0, second=0, microsecond=0, tzinfo=None)
    rows = [
        [
            int(((noon + timedelta(days=day)).replace(tzinfo=zone).utcoffset() or timedelta()).total_seconds() * 1000)
            for day in range(days + 2)
        ]
        for zone in (*(ZoneInfo(name) for name in ZONE_NAMES), UTC)
    ]
    return np.array(rows, dtype=np.int64)
