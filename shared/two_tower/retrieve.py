"""Exact retrieval and evidence on tiles of fixed shape, so that no answer depends on which users share a call.

A matrix product may round differently for another shape (the library then picks another kernel), so every product has
one shape whatever the batch: `TILE` users by the whole index, or `BLOCK` candidates by `BLOCK` history tracks. Short
tiles are padded with zeros. All else is elementwise or along one user's own row.
"""

import numpy as np
import torch
from torch import Tensor

from shared.two_tower.data import I64, row_users

TILE = 64
"""Users scored at once: a tile of 64 x 60,000 scores (15 MB) stays near the cache."""
BLOCK = 64
"""Candidates and history tracks compared at once when evidence is looked for."""
_GROUPS = 16
"""Tracks whose maximum is taken first when the best k are sought."""
NOTHING = float("-inf")


def padded(n: int) -> int:
    """The index's length with padding, so that it divides into groups."""
    return -(-n // _GROUPS) * _GROUPS


def top_k(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Give the k best of each row, best first: values [U, k] and columns [U, k]. Exact.

    Two stages: the k best tracks lie in the k groups with the best maxima, so only these are sorted. A group is a
    strided set of columns, which makes the first stage (reading every score once) a plain vectorised maximum.
    """
    users, tracks = scores.shape
    k = min(k, tracks)
    groups = tracks // _GROUPS
    if groups <= 2 * k:
        values, columns = scores.topk(k, dim=1)
        return values, columns
    maxima = scores.view(users, _GROUPS, groups).amax(dim=1)  # [U, G]
    chosen = maxima.topk(k, dim=1, sorted=False).indices  # [U, k]
    members = (chosen[:, None, :] + groups * torch.arange(_GROUPS)[None, :, None]).flatten(1)  # [U, 16 k]
    values, place = scores.gather(1, members).topk(k, dim=1)
    return values, members.gather(1, place)


def blocks(splits: I64) -> tuple[I64, I64, I64]:
    """Cut each user's rows into n blocks: splits [U+1], the user of each [n], its rows [n, BLOCK] (-1: padding)."""
    counts = -(-np.diff(splits) // BLOCK)
    block_splits = np.concatenate(([0], np.cumsum(counts)))
    user = row_users(block_splits)
    first = splits[:-1][user] + BLOCK * (np.arange(len(user)) - block_splits[:-1][user])
    rows = first[:, None] + np.arange(BLOCK)
    return block_splits, user, np.where(rows < splits[1:][user][:, None], rows, -1)


def evidence(
    units: Tensor, *, history_splits: I64, history: Tensor, weights: Tensor, candidate_splits: I64, candidates: Tensor
) -> Tensor:
    """Find each candidate's [R] row of its user's history with the largest weight x cosine; -1 if none is above 0.

    `units` [N, D] are track vectors of length 1 (or 0), `history` [H] and `candidates` [R] rows of it (-1: not in the
    index). Among equals the earliest row wins.
    """
    found = torch.full((len(candidates),), -1, dtype=torch.int64)
    history_blocks, _, history_rows = blocks(history_splits)
    _, user, candidate_rows = blocks(candidate_splits)
    if not len(user) or not len(history_rows):
        return found
    rows = torch.from_numpy(history_rows)  # [n, BLOCK]
    tracks = history[rows.clamp(min=0)]
    known = (rows >= 0) & (tracks >= 0)
    left = _gather(units, tracks.clamp(min=0))  # [n, BLOCK, D]
    left *= (weights[rows.clamp(min=0)] * known)[:, :, None]
    candidate_at = torch.from_numpy(candidate_rows)  # [m, BLOCK]
    right = _gather(units, candidates[candidate_at.clamp(min=0)].clamp(min=0))  # [m, BLOCK, D]

    best = torch.zeros(candidate_at.shape)
    best_row = torch.full(candidate_at.shape, -1, dtype=torch.int64)
    per_user = np.diff(history_blocks)
    for turn in range(int(per_user[user].max())):
        some = torch.from_numpy(np.flatnonzero(per_user[user] > turn))  # candidate blocks whose user has this block
        block = torch.from_numpy(history_blocks[:-1][user])[some] + turn
        products = torch.bmm(
            _gather(left, block), _gather(right, some).transpose(1, 2)
        )  # [s, BLOCK history, BLOCK candidates]
        value, place = products.max(dim=1)
        better = value > best[some]
        best_row[some] = torch.where(better, rows[block].gather(1, place), best_row[some])
        best[some] = torch.where(better, value, best[some])
    real = candidate_at >= 0
    found[candidate_at[real]] = best_row[real]
    return torch.where(candidates >= 0, found, -1)


def _gather(rows: Tensor, places: Tensor) -> Tensor:
    """`rows[places]`, several times faster than by indexing."""
    return rows.index_select(0, places.flatten()).view(*places.shape, *rows.shape[1:])
