"""What the two towers read: plain numpy columns, checked once at the door.

Ragged columns are `splits i64[U+1]` beside flat arrays: the rows of user u are `splits[u]:splits[u+1]`.
Units: instants in milliseconds since the epoch (UTC), ages in days, `track_key` as in `shared.ids` (never 0).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from shared.errors import Permanent

U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]
Bool = NDArray[np.bool_]

DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True, eq=False)
class TrackFeatures:
    """The catalogue of one tenant, N tracks in any order.

    `artist` and `genre` are rows of their vocabularies, -1 when the catalogue does not say. Tags are ragged; a weight
    is how strongly the tag holds (>= 0), relative to the track's other tags.
    """

    track_key: U64  # [N]
    artist: I32  # [N]
    genre: I32  # [N]
    tag_splits: I64  # [N+1]
    tag_ids: I32  # [T]
    tag_weights: F32  # [T]
    artist_vocab: Sequence[str]
    genre_vocab: Sequence[str]
    tag_vocab: Sequence[str]

    def __len__(self) -> int:
        return len(self.track_key)

    def checked(self) -> Self:
        """Return itself, or raise Permanent with what is wrong with the catalogue."""
        n = len(self.track_key)
        if n == 0:
            raise Permanent("catalogue_empty", "The catalogue holds no track: load tracks before training.")
        if len(self.artist) != n or len(self.genre) != n:
            raise _broken(f"{n} tracks, but {len(self.artist)} artists and {len(self.genre)} genres")
        check_splits(self.tag_splits, n, len(self.tag_ids), "tags of the catalogue")
        if len(self.tag_weights) != len(self.tag_ids):
            raise _broken(f"{len(self.tag_ids)} tag ids, but {len(self.tag_weights)} tag weights")
        if not np.isfinite(self.tag_weights).all() or (self.tag_weights < 0).any():
            raise _broken("a tag weight is not a finite number of at least 0")
        keys = np.sort(self.track_key)
        if keys[0] == 0 or (keys[1:] == keys[:-1]).any():
            raise _broken("a track key is 0 or occurs twice")
        for name, ids, vocabulary, lowest in (
            ("artist", self.artist, self.artist_vocab, -1),
            ("genre", self.genre, self.genre_vocab, -1),
            ("tag", self.tag_ids, self.tag_vocab, 0),
        ):
            if len(ids) and (ids.min() < lowest or ids.max() >= len(vocabulary)):
                raise _broken(f"a row of the {name} column is not in its vocabulary of {len(vocabulary)}")
        return self


@dataclass(frozen=True, slots=True, eq=False)
class Plays:
    """Derived listens (skips excluded by the caller), m rows in any order.

    `user` is any dense numbering from 0; `track` is a row of the `TrackFeatures` they go with.
    """

    user: I32  # [m]
    track: I32  # [m]
    started_at_ms: I64  # [m]

    def __len__(self) -> int:
        return len(self.user)

    def where(self, rows: Bool) -> "Plays":
        return Plays(self.user[rows], self.track[rows], self.started_at_ms[rows])

    def checked(self, n_tracks: int) -> Self:
        """Return itself, or raise Permanent when columns differ in length or a row points outside the catalogue."""
        if not len(self.user) == len(self.track) == len(self.started_at_ms):
            raise Permanent("plays_broken", "The columns of the plays differ in length.")
        if len(self) and (self.user.min() < 0 or self.track.min() < 0 or self.track.max() >= n_tracks):
            raise Permanent("plays_broken", f"A play names a user below 0 or a track outside the {n_tracks} given.")
        return self


@dataclass(frozen=True, slots=True, eq=False)
class Histories:
    """What each of U users has heard, as it is sent over the wire: one row for each distinct (user, track)."""

    splits: I64  # [U+1]
    track_key: U64  # [H]
    listens: F32  # [H] how often; 0: heard, but only skipped
    age_days: F32  # [H] since the last listen, >= 0

    def __len__(self) -> int:
        return len(self.splits) - 1

    def users(self, first: int, last: int) -> "Histories":
        rows = slice(int(self.splits[first]), int(self.splits[last]))
        splits = self.splits[first : last + 1] - self.splits[first]
        return Histories(splits, self.track_key[rows], self.listens[rows], self.age_days[rows])

    def checked(self) -> "Histories":
        """Give the same rows, each user's by track_key (so that no answer depends on the order of arrival).

        Raises Permanent when a number is not finite, a listen count is below 0, or a (user, track) occurs twice.
        """
        rows = len(self.track_key)
        check_splits(self.splits, len(self), rows, "histories")
        if len(self.listens) != rows or len(self.age_days) != rows:
            raise Permanent("histories_broken", "The columns of the histories differ in length.")
        if not (np.isfinite(self.listens).all() and np.isfinite(self.age_days).all()) or (self.listens < 0).any():
            raise Permanent("histories_broken", "A history row has listens or an age that is no number or below 0.")
        user = row_users(self.splits)
        key, listens, age = self.track_key, self.listens, self.age_days
        if not _increasing(user, key):
            order = np.lexsort((key, user))
            key, listens, age = key[order], listens[order], age[order]
            if not _increasing(user, key):
                raise Permanent("histories_broken", "A track occurs twice in one history: send one row for each track.")
        return Histories(self.splits, key, listens, np.maximum(age, np.float32(0)))


@dataclass(frozen=True, slots=True, eq=False)
class Lists:
    """A list of tracks for each of U users (extra candidates, exclusions, targets); repeats in a list count once."""

    splits: I64  # [U+1]
    track_key: U64  # [R]

    def __len__(self) -> int:
        return len(self.splits) - 1

    @classmethod
    def empty(cls, users: int) -> Self:
        return cls(np.zeros(users + 1, np.int64), np.zeros(0, np.uint64))

    @classmethod
    def of(cls, lists: Sequence[Sequence[int]]) -> Self:
        splits = np.cumsum([0, *map(len, lists)], dtype=np.int64)
        return cls(splits, np.array([key for keys in lists for key in keys], np.uint64))


def check_splits(splits: I64, n: int, rows: int, of: str) -> None:
    """Raise Permanent unless `splits` cuts `rows` rows into `n` runs."""
    if len(splits) != n + 1 or n < 0 or splits[0] != 0 or splits[-1] != rows or (np.diff(splits) < 0).any():
        raise Permanent("columns_broken", f"The splits of the {of} do not cut {rows} rows into {n} runs.")


def row_users(splits: I64) -> I64:
    """[R] the user of each row."""
    return np.repeat(np.arange(len(splits) - 1), np.diff(splits))


def splits_of(user: NDArray[Any], users: int) -> I64:
    """[U+1] the splits of rows that are sorted by user."""
    splits = np.zeros(users + 1, np.int64)
    np.cumsum(np.bincount(user, minlength=users), out=splits[1:])
    return splits


def ragged_take(splits: I64, runs: I64) -> tuple[I64, I64]:
    """Give the rows of the chosen runs, one run after the other, and their splits [len(runs)+1]."""
    counts = np.diff(splits)[runs]
    taken = np.concatenate(([0], np.cumsum(counts)))
    return np.arange(taken[-1]) + np.repeat(splits[runs] - taken[:-1], counts), taken


@dataclass(frozen=True, slots=True, eq=False)
class HistoryRows:
    """Histories whose tracks are rows of a table [N] instead of keys: what training reads."""

    splits: I64  # [B+1]
    track: I32  # [H]
    listens: F32  # [H]
    age_days: F32  # [H]

    def __len__(self) -> int:
        return len(self.splits) - 1


def history_rows(owner: I64, track: I32, started_at_ms: I64, at_ms: I64) -> HistoryRows:
    """Fold the plays of each owner (users or sessions, 0..B-1) into distinct tracks; `at_ms` [B] is each one's now."""
    order = np.lexsort((started_at_ms, track, owner))
    owner, track, started = owner[order], track[order], started_at_ms[order]
    last = np.ones(len(owner), bool)
    last[:-1] = (owner[1:] != owner[:-1]) | (track[1:] != track[:-1])
    ends = np.flatnonzero(last)
    listens = np.diff(ends, prepend=-1).astype(np.float32)
    age = ((at_ms[owner[ends]] - started[ends]) / DAY_MS).astype(np.float32)
    return HistoryRows(splits_of(owner[ends], len(at_ms)), track[ends], listens, age)


def histories_at(plays: Plays, track_key: U64, users: I32, at_ms: int) -> Histories:
    """The histories of `users` (distinct) at an instant, from the plays before it."""
    place = np.full(int(max(plays.user.max(initial=0), users.max(initial=0))) + 1, -1, np.int64)
    place[users] = np.arange(len(users))
    known = plays.where((plays.started_at_ms < at_ms) & (place[plays.user] >= 0))
    rows = history_rows(place[known.user], known.track, known.started_at_ms, np.full(len(users), at_ms, np.int64))
    return Histories(rows.splits, track_key[rows.track], rows.listens, rows.age_days).checked()


def _increasing(user: I64, key: U64) -> bool:
    return bool(((user[1:] > user[:-1]) | (key[1:] > key[:-1])).all())


def _broken(what: str) -> Permanent:
    return Permanent("catalogue_broken", f"The catalogue cannot be trained on: {what}.")
