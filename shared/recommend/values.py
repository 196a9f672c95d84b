"""What the rules take and return. A track is a row of its tenant's catalogue; row order is track_key order."""

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

I32 = NDArray[np.int32]
Array = NDArray[Any]

ABSENT = -1
OFTEN = 3
"""Listens from which a listener is said to play a track often."""


def int32(values: ArrayLike) -> I32:
    return np.asarray(values, dtype=np.int32).reshape(-1)


@dataclass(frozen=True, slots=True, eq=False)
class CatalogueColumns:
    """A tenant's catalogue of N tracks, shared by all its listeners.

    track_key uint64[N] strictly ascending; artist int32[N], genre int32[N]: the caller's numbers of names, -1 = absent.
    Raises ValueError where the columns do not fit or two tracks share a key.
    """

    track_key: NDArray[np.uint64]
    artist: I32
    genre: I32

    def __post_init__(self) -> None:
        if not len(self.track_key) == len(self.artist) == len(self.genre):
            raise ValueError(
                "The catalogue's columns differ in length: pass one artist and one genre for each track_key."
            )
        if bool(np.any(self.track_key[1:] <= self.track_key[:-1])):
            raise ValueError(
                "track_key must strictly ascend: sort the catalogue by it, and rename one of two equal keys."
            )

    def __len__(self) -> int:
        return len(self.track_key)

    def rows_of(self, track_keys: Array) -> I32:
        """int32[n] rows of uint64[n] keys; -1 where the catalogue has no such track."""
        row, found = find(np.asarray(track_keys, dtype=np.uint64), self.track_key)
        return np.where(found, row, ABSENT).astype(np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Popular:
    """The tenant's most listened tracks: row int32[p], most listened first; mask bool[N] over the catalogue."""

    row: I32
    mask: NDArray[np.bool_]

    @classmethod
    def of(cls, rows: ArrayLike, catalogue: CatalogueColumns) -> Self:
        row = int32(rows)
        row = row[row >= 0]
        mask = np.zeros(len(catalogue), dtype=np.bool_)
        mask[row] = True
        return cls(row, mask)


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """One listener's scored candidates, in any order: row int32[n] (-1 = not in the catalogue), score float32[n],
    evidence int32[n]: the row of the listener's history that speaks most for it (-1 = none).
    """

    row: I32
    score: NDArray[np.float32]
    evidence: I32

    @classmethod
    def of(cls, row: ArrayLike, score: ArrayLike, evidence: ArrayLike | None = None) -> Self:
        rows = int32(row)
        return cls(
            rows,
            np.asarray(score, dtype=np.float32).reshape(-1),
            np.full(len(rows), ABSENT, dtype=np.int32) if evidence is None else int32(evidence),
        )

    def __len__(self) -> int:
        return len(self.row)

    def best_first(self) -> "Candidates":
        """By falling score, equal scores by track_key; what has no finite score comes last."""
        score = np.where(np.isfinite(self.score), self.score, -np.inf)
        order = (-score).argsort()
        ordered = score[order]
        if bool((ordered[1:] == ordered[:-1]).any()):  # rare, and three sorts cost three times as much
            order = np.lexsort((self.evidence, self.row, -score))
        return Candidates(self.row[order], self.score[order], self.evidence[order])


@dataclass(frozen=True, slots=True, eq=False)
class Listener:
    """What is known of one listener. Make it with `of`: rows ascend and stand once each.

    heard_row int32[h] with plays, listens, last_played_day (UTC, days since the epoch) int32[h]; a track with at least
    one play, be it a skip, is heard. recommended_row int32[r] with recommended_day (the newest playlist date it stood
    in). A banned track stands in `disliked`.
    """

    heard_row: I32
    plays: I32
    listens: I32
    last_played_day: I32
    loved: I32
    disliked: I32
    banned_artist: I32
    recommended_row: I32
    recommended_day: I32
    familiar_share: float | None  # the listener's dial, 0 to 1; None: the rules' default

    @classmethod
    def of(
        cls,
        *,
        heard_row: ArrayLike = (),
        plays: ArrayLike = (),
        listens: ArrayLike = (),
        last_played_day: ArrayLike = (),
        loved: ArrayLike = (),
        disliked: ArrayLike = (),
        banned_artist: ArrayLike = (),
        recommended_row: ArrayLike = (),
        recommended_day: ArrayLike = (),
        familiar_share: float | None = None,
    ) -> Self:
        """From columns in any order; rows of -1 (tracks that the catalogue lacks) are left out."""
        heard, order, keep = _ascending(int32(heard_row))
        played, listened, last_day = (int32(column)[order] for column in (plays, listens, last_played_day))
        if keep is not None:  # the same row twice, as after a merge of two tracks
            played, listened = np.add.reduceat(played, keep), np.add.reduceat(listened, keep)
            last_day = np.maximum.reduceat(last_day, keep)
        recommended, order, keep = _ascending(int32(recommended_row))
        day = int32(recommended_day)[order]
        if keep is not None:
            day = np.maximum.reduceat(day, keep)
        return cls(
            heard, played, listened, last_day,
            _ascending(int32(loved))[0], _ascending(int32(disliked))[0], _ascending(int32(banned_artist))[0],
            recommended, day, familiar_share,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rules:
    """A tenant's settings of the list."""

    length: int = 30
    familiar_share: float = 0.5  # of listeners who set no dial
    artist_cap: int = 3  # songs of one artist in list and spares together
    spare_tracks: int = 5
    recommended_window_days: int = 14
    rest_days: int = 30  # a familiar song unheard for so long comes back as "not heard for"


class Verdict(IntEnum):
    """Why a candidate may not stand in the list; the first that applies."""

    KEPT = 0
    UNKNOWN_TRACK = 1  # not in the catalogue
    NO_SCORE = 2  # not a finite number
    REPEATED = 3  # the same track with a better score is there
    DISLIKED = 4
    BANNED_ARTIST = 5
    RECENTLY_RECOMMENDED = 6  # within the window, and not come back to on a later date


class ReasonKind(IntEnum):
    """Numbers as in meiri.playlist.v1.ReasonKind. NONE claims nothing."""

    NONE = 0
    YOU_OFTEN_PLAY = 1
    NOT_HEARD_FOR = 2
    BECAUSE_YOU_LOVED = 3
    BECAUSE_YOU_PLAY = 4
    UNHEARD_FROM_ARTIST = 5
    POPULAR_IN_GENRE = 6
    POPULAR = 7
    YOU_HAVE_PLAYED = 8


class Fallback(IntEnum):
    """Why a list is not personal; numbers as in meiri.playlist.v1.Fallback. NONE: it is."""

    NONE = 0
    NO_RELEASE = 1
    NO_HISTORY = 2
    EMBEDDER_AWAY = 3
    PERSONAL_FAILED = 4


class Shortfall(StrEnum):
    """Why a list is otherwise mixed, or shorter, than asked."""

    FEW_FAMILIAR = "few_familiar"
    FEW_DISCOVERIES = "few_discoveries"
    FEW_CANDIDATES = "few_candidates"


class Reason(NamedTuple):
    kind: ReasonKind
    track: int | None = None  # row
    artist: int | None = None
    genre: int | None = None
    number: int | None = None  # count or days, as the kind says


class Recommendation(NamedTuple):
    row: int
    score: float
    familiar: bool
    reason: Reason


@dataclass(frozen=True, slots=True)
class ListOfTheDay:
    """`familiar_share` is the achieved one (0 of an empty list), `familiar_share_wanted` the dial's or the rules'."""

    recommendations: tuple[Recommendation, ...]
    spares: tuple[Recommendation, ...]
    familiar_share_wanted: float
    familiar_share: float
    shortfalls: tuple[Shortfall, ...]
    fallback: Fallback
    verdicts: dict[Verdict, int] = field(default_factory=dict)  # candidates by verdict; zeros left out


def find(values: Array, ascending: Array) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Positions of values[n] in the ascending array, and whether they are there; a position counts only where found."""
    if not len(ascending):
        return np.zeros(len(values), dtype=np.intp), np.zeros(len(values), dtype=np.bool_)
    position = ascending.searchsorted(values)
    np.minimum(position, len(ascending) - 1, out=position)
    return position, ascending[position] == values


def _ascending(rows: I32) -> tuple[I32, NDArray[np.intp], NDArray[np.intp] | None]:
    """Distinct rows without -1, the order that sorts the input, and where each row's run begins (None: no repeats)."""
    order = np.arange(len(rows)) if bool((rows[1:] > rows[:-1]).all()) else rows.argsort(kind="stable")
    ordered = rows[order]
    start = int(ordered.searchsorted(0))
    order, ordered = order[start:], ordered[start:]
    first = np.ones(len(ordered), dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    if bool(first.all()):
        return ordered, order, None
    return ordered[first], order, first.nonzero()[0]
