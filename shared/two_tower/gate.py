"""The gate: is a trained model good enough to make lists? Judged on the last day, through the production scorer.

The model that is judged is the model that is released, byte for byte: it was trained on the plays before the last day
and is not refitted on all of them afterwards, because nobody would have judged the refitted one. What it costs: the
last day's plays do not shape the weights. They still shape every list, since histories are read fresh at serving time,
and tracks first played that day are in the index by their content.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np

from shared.errors import Permanent
from shared.registry import ReleaseContent
from shared.two_tower.data import (
    DAY_MS,
    F32,
    I64,
    U64,
    Bool,
    Histories,
    Lists,
    Plays,
    TrackFeatures,
    histories_at,
    history_rows,
    row_users,
    splits_of,
)
from shared.two_tower.release import release_content
from shared.two_tower.scorer import EXTRA, HISTORY, RETRIEVED, Scorer, Scores
from shared.two_tower.train import Progress, Recipe, train

Score = Callable[[Histories, Lists, Lists, int], Scores]
"""`Scorer.score`, or anything that answers like it."""

LISTED = 50
REPEATS_LISTED = 10
FEWEST_LISTENERS = 5
SURE = 2.0
"""A gain counts when it is above this many of its standard errors: chance passes the gate once in 40 times."""
POPULARITY_HALF_LIVES_DAYS = (7.0, math.inf)
"""What is popular of late, and what always was: a release must beat the better of the two."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """Means over listeners; None where no listener could be measured.

    recall: share of the tracks a listener played on the last day that are among the first 50 (hits / min(50, targets)).
    all: any track is listed; novel: unheard tracks, targets unheard; repeat: heard tracks, of which the first 10.
    """

    listeners: int
    recall_all: float | None
    novel_listeners: int
    recall_novel: float | None
    repeat_listeners: int
    recall_repeat: float | None


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """Per listener [U]: recall, NaN where they have no target of the kind."""

    all: F32
    novel: F32
    repeat: F32

    def metrics(self) -> Metrics:
        means = [
            (int(real.sum()), round(float(values[real].mean()), 5) if real.any() else None)
            for values in (self.all, self.novel, self.repeat)
            for real in (np.isfinite(values),)
        ]
        return Metrics(*means[0], *means[1], *means[2])


@dataclass(frozen=True, slots=True)
class GateDecision:
    passed: bool
    reason: str  # one sentence
    candidate: Metrics
    baseline: Metrics


def train_and_judge(
    tracks: TrackFeatures,
    plays: Plays,
    *,
    now_ms: int,
    seed: int,
    recipe: Recipe | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
) -> tuple[ReleaseContent, GateDecision]:
    """Train on all but the last day of plays, and judge on that day what would be released.

    The last day is the 24 hours up to the last play (not to `now_ms`: a quiet day must not empty the test). Plays after
    `now_ms` are left out, as nobody can have listened to them. The decision's figures are in the facts under "gate".
    Raises Permanent when the input is broken, or there is nothing to learn from or to judge by.
    """
    recipe = recipe or Recipe()
    tracks, plays = tracks.checked(), plays.checked(len(tracks))
    plays = plays.where(plays.started_at_ms <= now_ms)
    if len(plays) == 0:
        raise Permanent("training_no_plays", "There is no play to learn from: train again once listeners have played.")
    until_ms = int(plays.started_at_ms.max()) + 1 - DAY_MS
    earlier = plays.where(plays.started_at_ms < until_ms)
    if len(earlier) == 0:
        raise Permanent("training_one_day", "All plays are of one day, so none is left to judge by: train tomorrow.")
    trained = train(tracks, earlier, until_ms=until_ms, seed=seed, recipe=recipe, progress=progress)
    content = release_content(tracks, earlier, trained, until_ms=until_ms, seed=seed, recipe=recipe)

    histories, targets = last_day(tracks, plays, until_ms)
    candidate = evaluate(Scorer(content).score, histories, targets)
    decision = decide(candidate, popularity(tracks, earlier, until_ms, histories, targets))
    return ReleaseContent(content.files, {**content.facts, "gate": asdict(decision)}), decision


def last_day(tracks: TrackFeatures, plays: Plays, until_ms: int) -> tuple[Histories, Lists]:
    """Histories before `until_ms` and the distinct tracks played from then on, of the listeners who have both."""
    before = plays.started_at_ms < until_ms
    counts = np.bincount(plays.user[before], minlength=int(plays.user.max()) + 1)
    users = np.flatnonzero((counts > 0) & (np.bincount(plays.user[~before], minlength=len(counts)) > 0))
    place = np.full(len(counts), -1)
    place[users] = np.arange(len(users))
    later = plays.where(~before & (place[plays.user] >= 0))
    now = np.full(len(users), until_ms, np.int64)
    rows = history_rows(place[later.user], later.track, later.started_at_ms, now)
    return (
        histories_at(plays, tracks.track_key, users.astype(np.int32), until_ms),
        Lists(rows.splits, tracks.track_key[rows.track]),
    )


def decide(candidate: Evaluation, baseline: Evaluation) -> GateDecision:
    """Let a model pass that finds unheard tracks surely better than popularity, and is no worse over all tracks.

    Unheard tracks decide, because a listener's own counts find the heard ones whatever the towers have learned.
    """
    both = np.isfinite(candidate.novel) & np.isfinite(baseline.novel)
    gains = (candidate.novel[both] - baseline.novel[both]).astype(np.float64)
    n = len(gains)
    judged = candidate.metrics(), baseline.metrics()
    if n < FEWEST_LISTENERS:
        return GateDecision(
            False,
            f"Refused: {n} earlier listeners heard something new on the last day, fewer than the {FEWEST_LISTENERS} it"
            " takes to tell a good model from a bad one: train again when more have.",
            *judged,
        )
    gain, error = float(gains.mean()), float(gains.std(ddof=1)) / math.sqrt(n)
    facts = f"recall@{LISTED} of unheard tracks {judged[0].recall_novel:.4f}, popularity {judged[1].recall_novel:.4f}"
    if gain <= SURE * error:
        sentence = f"Refused: not surely better than popularity ({facts}, gain {gain:.4f} +- {error:.4f}, n = {n})."
        return GateDecision(False, sentence, *judged)
    if float(np.nanmean(candidate.all - baseline.all)) < 0:
        sentence = f"Refused: worse than popularity over all tracks ({judged[0].recall_all}, {judged[1].recall_all})."
        return GateDecision(False, sentence, *judged)
    return GateDecision(True, f"Passed: {facts}, gain {gain:.4f} +- {error:.4f}, n = {n}.", *judged)


def evaluate(score: Score, histories: Histories, targets: Lists) -> Evaluation:
    """Recall of each user's `targets` from what `score` answers to the histories before them."""
    users = len(histories)
    answer = score(histories, Lists.empty(users), Lists.empty(users), LISTED)
    user = row_users(answer.splits)
    # One number for each (user, track), so that sets of pairs compare as sets of numbers.
    keys = np.unique(np.concatenate((answer.track_key, targets.track_key, histories.track_key)))

    def pairs(of: I64, track_key: U64) -> I64:
        return of * len(keys) + np.searchsorted(keys, track_key)

    listed = pairs(user, answer.track_key)
    wanted = np.unique(pairs(row_users(targets.splits), targets.track_key))
    heard = np.isin(wanted, pairs(row_users(histories.splits), histories.track_key))

    def recall(rows: Bool, of: I64, limit: int) -> F32:
        chosen = np.flatnonzero(rows)
        chosen = chosen[np.lexsort((answer.track_key[chosen], -answer.score[chosen], user[chosen]))]
        place = np.arange(len(chosen)) - splits_of(user[chosen], users)[:-1][user[chosen]]
        hits = np.bincount(user[chosen], np.isin(listed[chosen], of) & (place < limit), minlength=users)
        possible = np.minimum(np.bincount(of // len(keys), minlength=users), limit)
        return np.where(possible > 0, hits / np.maximum(possible, 1), np.nan).astype(np.float32)

    return Evaluation(
        all=recall(answer.source != EXTRA, wanted, LISTED),
        novel=recall(answer.source == RETRIEVED, wanted[~heard], LISTED),
        repeat=recall(answer.source == HISTORY, wanted[heard], REPEATS_LISTED),
    )


def popularity(tracks: TrackFeatures, plays: Plays, until_ms: int, histories: Histories, targets: Lists) -> Evaluation:
    """Evaluate the stronger popularity, by unheard tracks: the baseline that a first release must beat."""
    tried = [
        evaluate(popularity_baseline(tracks, plays, until_ms, half_life_days), histories, targets)
        for half_life_days in POPULARITY_HALF_LIVES_DAYS
    ]
    return max(tried, key=lambda evaluation: evaluation.metrics().recall_novel or 0.0)


def popularity_baseline(tracks: TrackFeatures, plays: Plays, until_ms: int, half_life_days: float) -> Score:
    """Score like `Scorer.score`, by what everybody plays; a play counts half after `half_life_days`."""
    age = (until_ms - plays.started_at_ms) / DAY_MS
    played = np.bincount(plays.track, 0.5 ** (age / half_life_days), minlength=len(tracks))
    by_popularity = np.lexsort((tracks.track_key, -played))
    key, value = tracks.track_key[by_popularity], played[by_popularity].astype(np.float32)
    by_key = np.argsort(key)

    def score(histories: Histories, _extra: Lists, _exclusions: Lists, k: int) -> Scores:
        users, user = len(histories), row_users(histories.splits)
        place = by_key[np.searchsorted(key, histories.track_key, sorter=by_key).clip(max=len(key) - 1)]
        known = key[place] == histories.track_key
        width = min(k + int(np.diff(histories.splits).max(initial=0)), len(key))
        free = np.ones((users, width), bool)
        within = known & (place < width)
        free[user[within], place[within]] = False
        found_user, found = np.nonzero(free & (free.cumsum(axis=1) <= k))
        owner = np.concatenate((found_user, user))
        order = np.argsort(owner, kind="stable")
        scores = np.concatenate((value[found], np.where(known, value[place], 0)))[order]
        return Scores(
            splits=splits_of(owner, users),
            track_key=np.concatenate((key[found], histories.track_key))[order],
            source=np.repeat(np.array([RETRIEVED, HISTORY], np.uint8), (len(found), len(user)))[order],
            score=scores,
            components=scores[:, None],
            component_mask=np.ones(len(scores), np.uint8),
            evidence=np.zeros(len(scores), np.uint64),
            component_names=("popularity",),
        )

    return score
