"""The scorer of production and of the gate: retrieval, components, blend and evidence, for many users at once.

    score = sum over the components present of blend weight x component

"tower": user . track + bias, on a scale of its own for each user: 0 = the mean of the whole index, 1 = the mean of the
user's 50 best tracks. "own": log1p(listens x 0.5^(age / half-life)), divided by the mean of the user's 50 largest.
Both scales depend on the history alone, not on extras, exclusions or k.

Promise: the answer for a user is bit-identical whichever other users are in the call, in whatever order its history
rows arrive (on one machine, with one torch build and thread count).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from safetensors.numpy import load as load_arrays
from torch import Tensor
from torch.nn.functional import embedding_bag

from shared.errors import Permanent
from shared.registry import ReleaseContent, read_content
from shared.two_tower.data import F32, I64, U8, U64, Histories, Lists, check_splits, row_users, splits_of
from shared.two_tower.retrieve import NOTHING, TILE, evidence, padded, top_k
from shared.two_tower.towers import pooled_norm, pooling_weights

RETRIEVED, HISTORY, EXTRA = 1, 2, 3
COMPONENTS = ("tower", "own")
TOWER, OWN = 0, 1
SCALE_OF = 50
"""The mean of this many best values of a user is 1."""


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """R scored rows of U users. A user's rows: retrieved, then history, then extra, each by falling score, then key.

    A track has one row: history wins over extra, extra over retrieved. A component which does not exist for a row has
    its bit in `component_mask` unset (then its value is 0 and means nothing). Each row has at least one component: a
    track that the release cannot score (an extra it does not know) has no row. History rows of tracks that the release
    does not know have "own" alone; retrieved and extra rows have "tower" alone.
    """

    splits: I64  # [U+1]
    track_key: U64  # [R]
    source: U8  # [R] RETRIEVED, HISTORY or EXTRA
    score: F32  # [R] blended; comparable within one user only
    components: F32  # [R, C]
    component_mask: U8  # [R] bit c: component c exists
    evidence: U64  # [R] the track of the user's history that speaks most for this row; 0: none does
    component_names: tuple[str, ...]


class Scorer:
    """Holds one release in memory; `score` may be called from several threads."""

    def __init__(self, content: ReleaseContent) -> None:
        """Raises Permanent when the release is not one this code can serve."""
        facts = content.facts
        if tuple(facts.get("component_names", ())) != COMPONENTS:
            raise Permanent("release_unknown_components", "The release has other components than this code knows.")
        index = load_arrays(content.files["index.safetensors"])
        weights = load_arrays(content.files["weights.safetensors"])
        for name, array in {**index, **weights}.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise Permanent("release_not_finite", f"The release must not be used: {name} holds NaN or infinity.")
        self.track_key: U64 = index["track_key"]  # [N], rising
        if not len(self.track_key) or (self.track_key[1:] <= self.track_key[:-1]).any():
            raise Permanent("release_broken_index", "The release's index holds no track, or its keys do not rise.")
        self.component_names = COMPONENTS
        self.blend = np.array([facts["blend_weights"][name] for name in COMPONENTS], np.float32)
        self.own_half_life_days = float(facts["own_half_life_days"])
        n, space = len(self.track_key), padded(len(self.track_key))
        vectors = torch.from_numpy(index["vectors"])  # [N, D]
        self._vectors = torch.zeros(space, vectors.shape[1])
        self._vectors[:n] = vectors
        self._columns = self._vectors.T.contiguous()  # [D, N']: one layout for the one product
        self._bias = torch.full((space,), NOTHING)
        self._bias[:n] = torch.from_numpy(index["bias"])
        self._mean_vector, self._mean_bias = vectors.mean(0), self._bias[:n].mean()
        lengths = vectors.norm(dim=1, keepdim=True)
        self._units = torch.where(lengths > 0, vectors / lengths.clamp(min=1e-12), 0)
        self._user_map = torch.from_numpy(weights["user_map"])
        self._listens_curve = torch.from_numpy(weights["listens_curve"])
        self._age_curve = torch.from_numpy(weights["age_curve"])

    @classmethod
    def load(cls, release_dir: Path) -> Self:
        """Read a folder that `Registry.open` has verified."""
        return cls(read_content(release_dir))

    def __len__(self) -> int:
        return len(self.track_key)

    def rows_of(self, track_key: U64) -> I64:
        """[R] rows of the index, -1 for tracks that the release does not know."""
        place = np.searchsorted(self.track_key, track_key)
        place[place == len(self.track_key)] = 0
        return np.where(self.track_key[place] == track_key, place, -1)

    def score(self, histories: Histories, extra: Lists, exclusions: Lists, k: int) -> Scores:
        """Score each user's history and extras, and the k best tracks that are none of these, nor excluded.

        `exclusions` bind retrieval alone: history and extra rows are what the caller named. Fewer than k tracks are
        retrieved only where the index has no more. Raises Permanent when the columns do not fit together.
        """
        users = len(histories)
        if k < 1 or len(extra) != users or len(exclusions) != users:
            raise Permanent("bad_columns", "Give k of at least 1, and one list of extras and of exclusions per user.")
        check_splits(extra.splits, users, len(extra.track_key), "extras")
        check_splits(exclusions.splits, users, len(exclusions.track_key), "exclusions")
        histories = histories.checked()
        tiles = []
        with torch.inference_mode():
            for first in range(0, users, TILE):
                last = min(first + TILE, users)
                some = histories.users(first, last)
                tiles.append(self._tile(some, _cut(extra, first, last), _cut(exclusions, first, last), k))
        return _joined(tiles)

    def _tile(self, histories: Histories, extra: Lists, exclusions: Lists, k: int) -> Scores:
        """Score at most TILE users. A cell is user * N' + row of the index: a place in the tile's scores."""
        users, width = len(histories), len(self._bias)
        own_user, own_row = row_users(histories.splits), self.rows_of(histories.track_key)  # [H]
        known = own_row >= 0

        # The user tower, and every tower score of the tile.
        weights = self._weights(histories)  # [H]
        vectors = self._user_vectors(own_user, own_row, weights)  # [TILE, D]
        scores = torch.addmm(self._bias, vectors, self._columns)  # [TILE, N']
        mean = ((vectors * self._mean_vector).sum(dim=1) + self._mean_bias).numpy()  # [TILE]

        # What is heard, named or excluded is read, then struck out before the best of the rest are sought.
        own_cell = own_user * width + np.maximum(own_row, 0)
        extra_cell = np.setdiff1d(self._cells(extra), own_cell[known])
        struck = np.unique(np.concatenate((own_cell[known], extra_cell, self._cells(exclusions))))
        cells = scores.view(-1).numpy()
        own_score, extra_score, struck_score = cells[own_cell], cells[extra_cell], cells[struck]
        cells[struck] = NOTHING
        best, column = top_k(scores[:users], max(k, SCALE_OF))  # [U, K]

        # Each user's own scale: 0 is the mean of the index, 1 the mean of the best 50, heard or not.
        level = _mean_of_best(best[:, :SCALE_OF].numpy(), struck // width, struck_score)  # [U]
        scale = np.maximum(level - mean[:users], np.float32(1e-6))

        # The rows of each source, one source after the other.
        found_user, found_row, found_score = _flat(best[:, :k], column[:, :k])
        extra_user, extra_row = extra_cell // width, extra_cell % width
        n_found, n_own, n_extra = len(found_user), len(own_user), len(extra_user)
        user = np.concatenate((found_user, own_user, extra_user))
        row = np.concatenate((found_row, own_row, extra_row))
        source = np.repeat(np.array([RETRIEVED, HISTORY, EXTRA], np.uint8), (n_found, n_own, n_extra))
        mask = np.repeat(np.array([1 << TOWER, 1 << OWN, 1 << TOWER], np.uint8), (n_found, n_own, n_extra))
        heard = slice(n_found, n_found + n_own)
        mask[heard] |= known.astype(np.uint8) << TOWER
        components = np.zeros((len(user), len(COMPONENTS)), np.float32)
        tower = (np.concatenate((found_score, own_score, extra_score)) - mean[user]) / scale[user]
        components[:, TOWER] = np.where(row >= 0, tower, 0)
        components[heard, OWN] = self._own(histories, own_user)
        score = components[:, TOWER] * self.blend[TOWER] + components[:, OWN] * self.blend[OWN]
        key = self.track_key[row]
        key[heard] = histories.track_key
        speaks = np.zeros(len(user), np.uint64)
        speaks[heard] = np.where(histories.listens > 0, histories.track_key, 0)
        for rows in (slice(0, n_found), slice(n_found + n_own, None)):
            speaks[rows] = self._evidence(histories, own_row, weights, user[rows], row[rows])

        order = np.lexsort((key, -score, source, user))
        return Scores(
            splits=splits_of(user, users),
            track_key=key[order],
            source=source[order],
            score=score[order],
            components=components[order],
            component_mask=mask[order],
            evidence=speaks[order],
            component_names=COMPONENTS,
        )

    def _weights(self, histories: Histories) -> Tensor:
        """[H] pooling weights, in float64 so that no rounding of a vectorised exp or log reaches the float32 result."""
        listens, age = torch.from_numpy(histories.listens).double(), torch.from_numpy(histories.age_days).double()
        return pooling_weights(self._listens_curve.double(), self._age_curve.double(), listens, age).float()

    def _user_vectors(self, user: I64, row: I64, weights: Tensor) -> Tensor:
        """[TILE, D]; the user tower on the tracks that the release knows. Zero for users without one."""
        known = row >= 0
        rows, splits = torch.from_numpy(row[known]), torch.from_numpy(splits_of(user[known], TILE))
        known_weights = weights[torch.from_numpy(known)]
        pooled = embedding_bag(
            rows, self._vectors, splits, mode="sum", per_sample_weights=known_weights, include_last_offset=True
        )
        return pooled / pooled_norm(known_weights, splits)[:, None] @ self._user_map

    def _own(self, histories: Histories, user: I64) -> F32:
        """[H] the own-play component."""
        decayed = histories.listens * np.exp2(-histories.age_days.astype(np.float64) / self.own_half_life_days)
        own = np.log1p(decayed)
        order = np.lexsort((-own, user))
        top = order[np.arange(len(user)) - histories.splits[:-1][user] < SCALE_OF]  # lexsort keeps users in their runs
        total = np.bincount(user[top], own[top], minlength=len(histories))
        count = np.bincount(user[top], minlength=len(histories))
        return (own / np.maximum(total / np.maximum(count, 1), 1e-12)[user]).astype(np.float32)

    def _cells(self, lists: Lists) -> I64:
        row = self.rows_of(lists.track_key)
        return (row_users(lists.splits) * len(self._bias) + row)[row >= 0]

    def _evidence(self, histories: Histories, own_row: I64, weights: Tensor, user: I64, row: I64) -> U64:
        place = evidence(
            self._units,
            history_splits=histories.splits,
            history=torch.from_numpy(own_row),
            weights=weights,
            candidate_splits=splits_of(user, len(histories)),
            candidates=torch.from_numpy(row),
        ).numpy()
        return np.where(place >= 0, np.append(histories.track_key, np.uint64(0))[place], np.uint64(0))


def _mean_of_best(best: F32, struck_user: I64, struck_score: F32) -> F32:
    """[U] mean of the SCALE_OF largest, or all there are, of the unstruck best [U, K] and of the struck."""
    users = len(best)
    place = np.arange(len(struck_user)) - splits_of(struck_user, users)[:-1][struck_user]
    struck = np.full((users, int(place.max(initial=-1)) + 1), NOTHING, np.float32)
    struck[struck_user, place] = struck_score
    both = torch.from_numpy(np.concatenate((best, struck), axis=1))
    top = both.topk(min(SCALE_OF, both.shape[1]), dim=1).values.double().numpy()
    real = np.isfinite(top)
    return np.asarray(np.where(real, top, 0).sum(axis=1) / np.maximum(real.sum(axis=1), 1), np.float32)


def _flat(best: Tensor, column: Tensor) -> tuple[I64, I64, F32]:
    """User, row and score of what was found, without what stands for nothing."""
    score, row = best.numpy(), column.numpy()
    user, place = np.nonzero(np.isfinite(score))
    return user, row[user, place], score[user, place]


def _cut(lists: Lists, first: int, last: int) -> Lists:
    start, stop = lists.splits[first], lists.splits[last]
    return Lists(lists.splits[first : last + 1] - start, lists.track_key[start:stop])


def _joined(tiles: list[Scores]) -> Scores:
    counts = [np.diff(tile.splits) for tile in tiles]
    return Scores(
        splits=np.cumsum(np.concatenate(([0], *counts)), dtype=np.int64),
        track_key=np.concatenate([np.zeros(0, np.uint64), *(tile.track_key for tile in tiles)]),
        source=np.concatenate([np.zeros(0, np.uint8), *(tile.source for tile in tiles)]),
        score=np.concatenate([np.zeros(0, np.float32), *(tile.score for tile in tiles)]),
        components=np.concatenate([np.zeros((0, len(COMPONENTS)), np.float32), *(tile.components for tile in tiles)]),
        component_mask=np.concatenate([np.zeros(0, np.uint8), *(tile.component_mask for tile in tiles)]),
        evidence=np.concatenate([np.zeros(0, np.uint64), *(tile.evidence for tile in tiles)]),
        component_names=COMPONENTS,
    )
