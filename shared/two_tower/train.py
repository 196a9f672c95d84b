"""Training of the two towers, from top to bottom.

Objective: hide a part of what a user (or one of their sessions) listened to, and predict it from the rest by a softmax
over all played tracks. Exact where that is cheap, sampled with log-Q correction where it is not.

Shapes: N played tracks, D dimensions, B rows of a batch, H history entries of a batch, C candidates (C = N when exact).
Seeded: the same input, seed and thread count give the same weights on one CPU. The caller chooses the thread count.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shared.errors import Permanent
from shared.two_tower.data import (
    F32,
    I32,
    I64,
    HistoryRows,
    Plays,
    TrackFeatures,
    history_rows,
    ragged_take,
    splits_of,
)
from shared.two_tower.towers import Towers, TrackInputs

SESSION_GAP_MS = 30 * 60 * 1000


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the towers are trained. The defaults fit tenants from a handful of listeners to some 100,000 tracks."""

    dim: int = 64
    epochs: int = 12
    batch_rows: int = 256
    learning_rate: float = 2e-3
    weight_decay: float = 0.01
    hidden_share: float = 0.3
    dropped_inputs: float = 0.2
    dropped_ids: float = 0.2
    averaging: float = 0.99
    exact_up_to: int = 20_000
    """Played tracks up to which the softmax is exact."""
    negatives: int = 4096
    """Tracks drawn per batch where it is not."""
    sessions_per_user: int = 2
    """Session rows in an epoch for each user row, drawn anew each time: more would drown the users."""


@dataclass(frozen=True, slots=True)
class Progress:
    epoch: int  # from 1
    epochs: int
    loss: float  # mean over the epoch's hidden tracks, nats
    examples_per_s: float  # rows (users and sessions)


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """The averaged weights, and the inputs of all tracks of the catalogue (also those never played) to embed them."""

    towers: Towers
    inputs: TrackInputs
    play_counts: I64  # [all tracks]
    loss: float


def train(
    tracks: TrackFeatures,
    plays: Plays,
    *,
    until_ms: int,
    seed: int,
    recipe: Recipe | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
) -> Trained:
    """Train on the plays before `until_ms`. Raises Permanent when there is nothing to learn from, or it diverges."""
    recipe = recipe or Recipe()
    plays = plays.where(plays.started_at_ms < until_ms)
    if len(plays) == 0:
        raise Permanent("training_no_plays", "There is no play to learn from: train again once listeners have played.")
    rng = np.random.default_rng(seed)
    play_counts = np.bincount(plays.track, minlength=len(tracks))
    all_inputs = TrackInputs.of(tracks, play_counts)

    # Only played tracks can be targets; the others get their vectors from what they share with played ones.
    played = np.flatnonzero(play_counts)
    row_of = np.zeros(len(tracks), np.int32)
    row_of[played] = np.arange(len(played))
    rows, user_rows = training_rows(Plays(plays.user, row_of[plays.track], plays.started_at_ms), until_ms)
    inputs = all_inputs.take(torch.from_numpy(played))

    towers = Towers(
        ids=int(all_inputs.id_row.max()),
        artists=len(tracks.artist_vocab),
        tags=len(tracks.tag_vocab),
        genres=len(tracks.genre_vocab),
        dim=recipe.dim,
        generator=torch.Generator().manual_seed(seed),
    )
    weights = list(towers.parameters())
    averaged = [weight.detach().clone() for weight in weights]
    optimiser = torch.optim.AdamW(weights, recipe.learning_rate, weight_decay=recipe.weight_decay, fused=True)

    steps, loss_of_epoch = 0, 0.0
    for epoch in range(1, recipe.epochs + 1):
        began, summed, targets = time.perf_counter(), torch.zeros(()), 0
        sessions = rng.permutation(np.arange(user_rows, len(rows)))[: recipe.sessions_per_user * user_rows]
        order = rng.permutation(np.concatenate((np.arange(user_rows), sessions)))
        for first in range(0, len(order), recipe.batch_rows):
            batch = make_batch(rows, order[first : first + recipe.batch_rows], len(inputs), recipe, rng)
            if len(batch.target_row) == 0:
                continue
            involved = inputs if batch.tracks is None else inputs.take(batch.tracks)
            vectors = towers.track_vectors(involved, batch.keep_id)  # [n, D]
            pooling = towers.pooling_weights(batch.listens, batch.age_days)  # [H]
            users = towers.user_vectors(vectors, batch.history, batch.splits, pooling)  # [B, D]
            c = len(vectors) if batch.log_weight is None else len(batch.log_weight)
            logits = users @ vectors[:c].T + towers.bias(involved)[:c]  # [B, C]
            loss = hidden_track_loss(logits, batch.target_row, batch.target, batch.log_weight)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            steps += 1
            decay = min(recipe.averaging, steps / (steps + 10))  # young averages forget their random start
            torch._foreach_lerp_(averaged, [weight.detach() for weight in weights], 1 - decay)
            summed += loss.detach() * len(batch.target_row)
            targets += len(batch.target_row)
        loss_of_epoch = float(summed) / max(targets, 1)
        if not np.isfinite(loss_of_epoch):
            raise Permanent("training_diverged", f"The loss is no number in epoch {epoch}: look for broken plays.")
        progress(Progress(epoch, recipe.epochs, loss_of_epoch, len(order) / (time.perf_counter() - began)))

    with torch.no_grad():
        for weight, average in zip(weights, averaged, strict=True):
            weight.copy_(average)
    return Trained(towers, all_inputs, play_counts, loss_of_epoch)


def training_rows(plays: Plays, until_ms: int) -> tuple[HistoryRows, int]:
    """One row for each user, then one for each session, of at least two different tracks; and how many are users."""
    order = np.lexsort((plays.started_at_ms, plays.user))
    user, track, started = plays.user[order], plays.track[order], plays.started_at_ms[order]
    new_user = np.diff(user, prepend=-1) != 0
    new_session = new_user | (np.diff(started, prepend=started[0]) > SESSION_GAP_MS)
    owner, session = np.cumsum(new_user) - 1, np.cumsum(new_session) - 1
    of_users = history_rows(owner, track, started, np.full(owner[-1] + 1, until_ms, np.int64))
    of_sessions = history_rows(session, track, started, started[np.append(np.flatnonzero(new_session)[1:] - 1, -1)])
    splits = np.concatenate((of_users.splits, of_users.splits[-1] + of_sessions.splits[1:]))
    kept = np.flatnonzero(np.diff(splits) >= 2)
    entries, kept_splits = ragged_take(splits, kept)
    rows = HistoryRows(
        kept_splits,
        np.concatenate((of_users.track, of_sessions.track))[entries],
        np.concatenate((of_users.listens, of_sessions.listens))[entries],
        np.concatenate((of_users.age_days, of_sessions.age_days))[entries],
    )
    return rows, int((kept < len(of_users)).sum())


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """B rows with a part of their tracks hidden, over n tracks of which the first C are candidates."""

    tracks: Tensor | None  # [n] which of the played tracks; None: all of them (exact softmax)
    history: Tensor  # [H] rows of `tracks`
    splits: Tensor  # [B+1]
    listens: Tensor  # [H]
    age_days: Tensor  # [H]
    target_row: Tensor  # [P] which row of the batch hides it
    target: Tensor  # [P] rows of `tracks`, below C
    keep_id: Tensor  # [n] 0 where the id is hidden
    log_weight: (
        Tensor | None
    )  # [C] log of how many tracks a candidate stands for (-inf: none); None: all are candidates


def make_batch(rows: HistoryRows, chosen: I64, n_tracks: int, recipe: Recipe, rng: np.random.Generator) -> Batch:
    entries, splits = ragged_take(rows.splits, chosen)  # [H of the whole rows], [B+1]
    row = np.repeat(np.arange(len(chosen)), np.diff(splits))
    chance = rng.random(len(entries))
    hidden = chance < recipe.hidden_share
    seen = chance >= recipe.hidden_share + (1 - recipe.hidden_share) * recipe.dropped_inputs
    history, target = rows.track[entries[seen]].astype(np.int64), rows.track[entries[hidden]].astype(np.int64)
    tracks = log_weight = None
    if n_tracks > recipe.exact_up_to:
        drawn = draw_negatives(rows.track, n_tracks, recipe.negatives, rng)
        candidates = np.union1d(target, drawn.track)
        tracks = np.concatenate((candidates, np.setdiff1d(history, candidates)))
        place = np.empty(n_tracks, np.int64)
        place[tracks] = np.arange(len(tracks))
        history, target = place[history], place[target]
        log_weight = np.full(len(candidates), -np.inf, np.float32)
        log_weight[place[drawn.track]] = drawn.log_weight
    keep_id = rng.random(n_tracks if tracks is None else len(tracks)) >= recipe.dropped_ids
    return Batch(
        tracks=None if tracks is None else torch.from_numpy(tracks.astype(np.int64)),
        history=torch.from_numpy(history),
        splits=torch.from_numpy(splits_of(row[seen], len(chosen))),
        listens=torch.from_numpy(rows.listens[entries[seen]]),
        age_days=torch.from_numpy(rows.age_days[entries[seen]]),
        target_row=torch.from_numpy(row[hidden]),
        target=torch.from_numpy(target),
        keep_id=torch.from_numpy(keep_id.astype(np.float32)),
        log_weight=None if log_weight is None else torch.from_numpy(log_weight),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    track: I32  # [n] distinct
    log_weight: F32  # [n] log(times drawn / times expected): the log-Q correction


def draw_negatives(targets: I32, n_tracks: int, n: int, rng: np.random.Generator) -> Drawn:
    """Draw n tracks, half of them evenly, half as often as they are targets (which is hard for a popular track)."""
    evenly = rng.integers(0, n_tracks, n - n // 2, dtype=np.int32)
    as_targets = targets[rng.integers(0, len(targets), n // 2)]
    track, times = np.unique(np.concatenate((evenly, as_targets)), return_counts=True)
    share = np.bincount(targets, minlength=n_tracks)[track] / len(targets)
    expected = len(evenly) / n_tracks + len(as_targets) * share
    return Drawn(track, np.log(times / expected).astype(np.float32))


def hidden_track_loss(logits: Tensor, target_row: Tensor, target: Tensor, log_weight: Tensor | None) -> Tensor:
    """Mean negative log likelihood of the hidden tracks; logits [B, C], targets [P] with their rows [P].

    With `log_weight` [C] the C candidates are a sample: each then stands for exp(log_weight) tracks, so that the sum
    under the softmax is an unbiased estimate of the sum over all tracks. A row's own targets are in the sample with
    certainty, hence stand for themselves alone (the refined log-Q correction, arXiv 2507.09331).
    """
    if log_weight is not None:
        correction = log_weight.repeat(len(logits), 1)  # [B, C]
        correction[target_row, target] = 0
        logits = logits + correction
    return -logits.log_softmax(dim=1)[target_row, target].mean()
