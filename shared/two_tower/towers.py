"""The two towers: a track vector from its id and its features, a user vector from the tracks in the history.

One table of track vectors serves both the histories and the scoring (tied: untied tables lost 6-8 % of recall).
score(user, track) = user · track + bias[track], a logit of "the user listens to this track".

Shapes: N tracks, D dimensions, B rows (users or sessions), H history entries over all rows, C candidates.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, embedding_bag

from shared.two_tower.data import F32, I64, TrackFeatures

PARTS = ("id", "artist", "tags", "genre")
COLD_PLAYS = 3
"""A track with fewer plays has no id embedding: what little is known of it would only be noise."""

LISTENS_KNOTS = np.log1p(np.array([1, 2, 3, 5, 9, 17, 33, 65], np.float64))
AGE_KNOTS = np.log1p(np.array([0, 1, 3, 7, 14, 30, 60, 120, 365], np.float64))
"""Where the two learned pooling curves bend; between the knots they are straight, beyond the ends level."""

_NORM_POWER = 0.6
_TINY = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class TrackInputs:
    """What the track tower reads. Row 0 of each table is "absent" and stays zero, so ids are shifted by one."""

    id_row: Tensor  # [N] i64, 0 for a cold track
    artist_row: Tensor  # [N] i64
    genre_row: Tensor  # [N] i64
    tag_splits: Tensor  # [N+1] i64
    tag_rows: Tensor  # [T] i64
    tag_weights: Tensor  # [T] f32, of each track sums to 1 (or 0: a track whose weights are all 0 has no tags)
    log_popularity: Tensor  # [N] f32

    @classmethod
    def of(cls, tracks: TrackFeatures, play_counts: I64) -> "TrackInputs":
        warm = play_counts >= COLD_PLAYS
        id_row = np.where(warm, np.cumsum(warm), 0)
        owner = np.repeat(np.arange(len(tracks)), np.diff(tracks.tag_splits))
        total = np.bincount(owner, tracks.tag_weights, minlength=len(tracks))
        weights = tracks.tag_weights / np.maximum(total, _TINY)[owner]
        return cls(
            id_row=torch.from_numpy(id_row.astype(np.int64)),
            artist_row=torch.from_numpy(tracks.artist.astype(np.int64) + 1),
            genre_row=torch.from_numpy(tracks.genre.astype(np.int64) + 1),
            tag_splits=torch.from_numpy(tracks.tag_splits.astype(np.int64)),
            tag_rows=torch.from_numpy(tracks.tag_ids.astype(np.int64) + 1),
            tag_weights=torch.from_numpy(weights.astype(np.float32)),
            log_popularity=torch.from_numpy(log_popularity(play_counts)),
        )

    def __len__(self) -> int:
        return len(self.id_row)

    def take(self, rows: Tensor) -> "TrackInputs":
        """The inputs of some tracks [n], in that order."""
        counts = self.tag_splits.diff()[rows]
        splits = torch.cat((counts.new_zeros(1), counts.cumsum(0)))
        places = torch.arange(int(splits[-1])) + (self.tag_splits[rows] - splits[:-1]).repeat_interleave(counts)
        return TrackInputs(
            id_row=self.id_row[rows],
            artist_row=self.artist_row[rows],
            genre_row=self.genre_row[rows],
            tag_splits=splits,
            tag_rows=self.tag_rows[places],
            tag_weights=self.tag_weights[places],
            log_popularity=self.log_popularity[rows],
        )


class Towers(nn.Module):
    """All learned weights of a release; row 0 of each table is kept at zero."""

    def __init__(self, *, ids: int, artists: int, tags: int, genres: int, dim: int, generator: torch.Generator) -> None:
        """`ids`, `artists`, … are how many there are, without the absent row 0."""
        super().__init__()

        def table(rows: int) -> nn.Parameter:
            values = torch.randn(rows + 1, dim, generator=generator) * 0.1
            values[0] = 0
            return nn.Parameter(values)

        self.id_table = table(ids)
        self.artist_table = table(artists)
        self.tag_table = table(tags)
        self.genre_table = table(genres)
        self.part_gain = nn.Parameter(torch.ones(len(PARTS)))
        self.id_bias = nn.Parameter(torch.zeros(ids + 1))
        self.listens_curve = nn.Parameter(torch.from_numpy(0.5 * (LISTENS_KNOTS - LISTENS_KNOTS[0])).float())
        self.age_curve = nn.Parameter(torch.from_numpy(-0.1 * AGE_KNOTS).float())
        self.user_map = nn.Parameter(torch.eye(dim) * 3.0)

    def track_parts(self, tracks: TrackInputs) -> list[Tensor]:
        """[n, D] for each of PARTS, gains applied; a part that a track lacks is zero."""
        tags = embedding_bag(
            tracks.tag_rows,
            self.tag_table,
            tracks.tag_splits,
            mode="sum",
            per_sample_weights=tracks.tag_weights,
            include_last_offset=True,
        )
        parts = (
            embedding(tracks.id_row, self.id_table, padding_idx=0),
            embedding(tracks.artist_row, self.artist_table, padding_idx=0),
            tags,
            embedding(tracks.genre_row, self.genre_table, padding_idx=0),
        )
        return [part * gain for part, gain in zip(parts, self.part_gain, strict=True)]

    def track_vectors(self, tracks: TrackInputs, keep_id: Tensor | None = None) -> Tensor:
        """[n, D]. `keep_id` [n] of 0 or 1 hides ids in training, so that the features learn to stand alone."""
        identity, artist, tags, genre = self.track_parts(tracks)
        if keep_id is not None:
            identity = identity * keep_id[:, None]
        return identity + artist + tags + genre

    def bias(self, tracks: TrackInputs) -> Tensor:
        """[n] log popularity, corrected by what was learned for tracks that have an id."""
        return tracks.log_popularity + embedding(tracks.id_row, self.id_bias[:, None], padding_idx=0)[:, 0]

    def user_vectors(self, vectors: Tensor, rows: Tensor, splits: Tensor, weights: Tensor) -> Tensor:
        """[B, D] from track vectors [n, D] and histories: `rows` [H] of them, cut by `splits` [B+1], `weights` [H]."""
        pooled = embedding_bag(
            rows, vectors, splits, mode="sum", per_sample_weights=weights, include_last_offset=True
        )  # [B, D]
        return pooled / pooled_norm(weights, splits)[:, None] @ self.user_map

    def pooling_weights(self, listens: Tensor, age_days: Tensor) -> Tensor:
        """[H] how much each history entry says about its user."""
        return pooling_weights(self.listens_curve, self.age_curve, listens, age_days)

    def content_weights(self, tracks: TrackInputs, play_counts: I64) -> dict[str, float]:
        """How much of a track vector each part makes up: its mean length over the plays, as a share of 1."""
        plays = torch.from_numpy(play_counts / max(int(play_counts.sum()), 1)).float()
        with torch.no_grad():
            lengths = [float(part.norm(dim=1) @ plays) for part in self.track_parts(tracks)]
        total = sum(lengths) or 1.0
        return {part: round(length / total, 4) for part, length in zip(PARTS, lengths, strict=True)}


def pooling_weights(listens_curve: Tensor, age_curve: Tensor, listens: Tensor, age_days: Tensor) -> Tensor:
    """[H]; 0 for an entry without a listen. Elementwise, so a weight does not depend on the entries beside it."""
    log_weight = _curve(listens_curve, LISTENS_KNOTS, listens) + _curve(age_curve, AGE_KNOTS, age_days)
    return log_weight.exp() * (listens > 0)


def pooled_norm(weights: Tensor, splits: Tensor) -> Tensor:
    """[B] sum of the weights to the power of 0.6: a longer history speaks louder, but less than in proportion."""
    ones = weights.new_ones(1, 1)
    zeros = torch.zeros(len(weights), dtype=torch.int64)
    total = embedding_bag(zeros, ones, splits, mode="sum", per_sample_weights=weights, include_last_offset=True)
    return (total[:, 0] + _TINY) ** _NORM_POWER


def log_popularity(play_counts: I64) -> F32:
    """[N] log of each track's smoothed share of the plays, where the biases start."""
    counts = play_counts.astype(np.float64) + 0.5
    return np.asarray(np.log(counts / counts.sum()), np.float32)


def _curve(values: Tensor, knots: np.ndarray[tuple[int], np.dtype[np.float64]], x: Tensor) -> Tensor:
    """Read the curve [K] at log1p(x), by straight lines between its knots."""
    at = torch.from_numpy(knots).float()
    place = torch.log1p(x).clamp(float(at[0]), float(at[-1]))
    left = (torch.searchsorted(at, place, right=True) - 1).clamp(0, len(at) - 2)
    share = (place - at[left]) / (at[left + 1] - at[left])
    return values[left] * (1 - share) + values[left + 1] * share
