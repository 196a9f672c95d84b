from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from shared.errors import Permanent
from shared.registry import Registry
from shared.two_tower.data import DAY_MS, Histories, Lists, Plays
from shared.two_tower.gate import (
    Evaluation,
    decide,
    evaluate,
    last_day,
    popularity,
    popularity_baseline,
    train_and_judge,
)
from shared.two_tower.scorer import HISTORY, RETRIEVED, Scorer, Scores
from tests.unit.two_tower_world import NOW_MS, QUICK, histories, world


def test_model_that_has_learned_passes_and_its_release_serves(tmp_path: Path) -> None:
    tracks, plays = world()
    content, decision = train_and_judge(tracks, plays, now_ms=NOW_MS, seed=1, recipe=QUICK)
    assert decision.passed, decision.reason
    assert decision.candidate.recall_novel > decision.baseline.recall_novel  # type: ignore[operator]
    assert content.facts["gate"]["reason"] == decision.reason
    assert content.facts["sizes"]["tracks"] == len(tracks)
    registry = Registry(str(tmp_path))
    ref = registry.publish(
        content, tenant="north", release_id="r1", created_at=datetime(2026, 11, 30, tzinfo=UTC), code_version="abc"
    )
    scorer = Scorer.load(registry.open(ref))
    before, targets = last_day(tracks, plays, int(plays.started_at_ms.max()) + 1 - DAY_MS)
    assert evaluate(scorer.score, before, targets).metrics() == decision.candidate


def test_training_twice_gives_the_same_release(tmp_path: Path) -> None:
    tracks, plays = world()
    quick = replace(QUICK, epochs=2)
    one, other = (train_and_judge(tracks, plays, now_ms=NOW_MS, seed=1, recipe=quick)[0] for _ in range(2))
    assert one == other


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_model_of_shuffled_plays_is_refused(seed: int) -> None:
    """Each track keeps its popularity, but no listener keeps a taste; repeats stay visible to the own term alone."""
    tracks, plays = world()
    shuffled = Plays(plays.user, np.random.default_rng(seed).permutation(plays.track), plays.started_at_ms)
    _, decision = train_and_judge(tracks, shuffled, now_ms=NOW_MS, seed=seed, recipe=QUICK)
    assert not decision.passed
    assert "not surely better than popularity" in decision.reason


def test_model_trained_on_shuffled_labels_is_refused_on_real_histories() -> None:
    """Own counts still find the heard tracks, so only what is unheard tells that the towers have learned nothing.

    Tracks have no features here: with them, even towers at random find tracks that share an artist with the heard.
    """
    tracks, plays = world()
    nothing = np.full(len(tracks), -1, np.int32)
    bare = replace(tracks, artist=nothing, genre=nothing, tag_weights=np.zeros_like(tracks.tag_weights))
    until = int(plays.started_at_ms.max()) + 1 - DAY_MS
    earlier = plays.started_at_ms < until
    track = plays.track.copy()
    track[earlier] = np.random.default_rng(0).permutation(track[earlier])
    shuffled = Plays(plays.user, track, plays.started_at_ms)
    before, targets = last_day(bare, plays, until)
    baseline = popularity(bare, plays.where(earlier), until, before, targets)
    for of, passed in ((plays, True), (shuffled, False)):
        content, _ = train_and_judge(bare, of, now_ms=NOW_MS, seed=1, recipe=QUICK)
        decision = decide(evaluate(Scorer(content).score, before, targets), baseline)
        assert decision.passed is passed, decision.reason


def fixed(lists: list[list[tuple[int, int, float]]]) -> Scores:
    rows = [row for rows in lists for row in rows]
    n = len(rows)
    return Scores(
        splits=np.cumsum([0, *map(len, lists)], dtype=np.int64),
        track_key=np.array([row[0] for row in rows], np.uint64),
        source=np.array([row[1] for row in rows], np.uint8),
        score=np.array([row[2] for row in rows], np.float32),
        components=np.zeros((n, 1), np.float32),
        component_mask=np.ones(n, np.uint8),
        evidence=np.zeros(n, np.uint64),
        component_names=("fixed",),
    )


def test_recall_is_measured_apart_for_all_novel_and_repeat() -> None:
    heard = histories([(1, 1, 1), (2, 1, 1)], [(3, 1, 1)], [(4, 1, 1)])
    targets = Lists.of([[1, 8, 9, 9], [7], []])
    answer = fixed(
        [
            [(8, RETRIEVED, 0.5), (1, HISTORY, 0.9), (2, HISTORY, 0.1)],
            [(8, RETRIEVED, 0.5), (3, HISTORY, 0.9)],
            [(8, RETRIEVED, 0.5)],
        ]
    )
    found = evaluate(lambda *_: answer, heard, targets)
    np.testing.assert_allclose(found.all, [2 / 3, 0, np.nan], rtol=1e-6)
    np.testing.assert_allclose(found.novel, [1 / 2, 0, np.nan])
    np.testing.assert_allclose(found.repeat, [1, np.nan, np.nan])
    metrics = found.metrics()
    assert (metrics.listeners, metrics.novel_listeners, metrics.repeat_listeners) == (2, 2, 1)
    assert metrics.recall_novel == 0.25


def test_oracle_scores_one_and_an_empty_answer_zero() -> None:
    tracks, plays = world()
    before, targets = last_day(tracks, plays, int(plays.started_at_ms.max()) + 1 - DAY_MS)

    def oracle(heard: Histories, *_: object) -> Scores:
        lists = [targets.track_key[targets.splits[u] : targets.splits[u + 1]].tolist() for u in range(len(heard))]
        mine = [set(heard.track_key[heard.splits[u] : heard.splits[u + 1]].tolist()) for u in range(len(heard))]
        return fixed(
            [
                [(key, HISTORY if key in own else RETRIEVED, 1.0) for key in keys]
                for keys, own in zip(lists, mine, strict=True)
            ]
        )

    best = evaluate(oracle, before, targets).metrics()
    assert (best.recall_all, best.recall_novel, best.recall_repeat) == (1, 1, 1)
    assert evaluate(lambda h, *_: fixed([[] for _ in range(len(h))]), before, targets).metrics().recall_all == 0


def test_only_the_first_fifty_count() -> None:
    rows = [(key, RETRIEVED, 1.0 - key / 1000) for key in range(1, 61)]
    found = evaluate(lambda *_: fixed([rows]), histories([]), Lists.of([[50, 51]]))
    assert found.all.tolist() == found.novel.tolist() == [0.5]


def test_popularity_lists_the_most_played_unheard_tracks_recent_plays_first() -> None:
    tracks, _ = world()
    key = tracks.track_key
    at = NOW_MS - np.array([1, 1, 15, 15, 15, 2]) * DAY_MS
    plays = Plays(np.zeros(6, np.int32), np.array([3, 3, 8, 8, 8, 5], np.int32), at)
    score = popularity_baseline(tracks, plays, NOW_MS, half_life_days=7)
    heard = histories([(int(key[5]), 1, 1), (12345, 1, 1)], [])
    answer = score(heard, Lists.empty(2), Lists.empty(2), 2)
    first, second = (
        {s: answer.track_key[a:b][answer.source[a:b] == s].tolist() for s in (RETRIEVED, HISTORY)}
        for a, b in ((0, 4), (4, 6))
    )
    assert first == {RETRIEVED: [int(key[3]), int(key[8])], HISTORY: [int(key[5]), 12345]}
    assert second == {RETRIEVED: [int(key[3]), int(key[5])], HISTORY: []}


def test_too_few_listeners_cannot_judge_a_model() -> None:
    good, bad = np.ones(4, np.float32), np.zeros(4, np.float32)
    decision = decide(Evaluation(good, good, good), Evaluation(bad, bad, bad))
    assert not decision.passed
    assert "4 earlier listeners" in decision.reason


def test_better_novelties_do_not_excuse_being_worse_over_all() -> None:
    one, none = np.ones(9, np.float32), np.zeros(9, np.float32)
    assert decide(Evaluation(one, one, one), Evaluation(one, none, one)).passed
    refused = decide(Evaluation(none, one, none), Evaluation(one, none, one))
    assert not refused.passed
    assert "worse than popularity over all tracks" in refused.reason


def test_one_listener_or_one_track_is_trained_and_refused() -> None:
    tracks, plays = world()
    for rows in (plays.user == 0, plays.track == plays.track[0]):
        _, decision = train_and_judge(tracks, plays.where(rows), now_ms=NOW_MS, seed=1, recipe=replace(QUICK, epochs=1))
        assert not decision.passed
        assert "to tell a good model" in decision.reason


def test_empty_log_and_a_single_day_say_what_to_wait_for() -> None:
    tracks, plays = world()
    with pytest.raises(Permanent, match="no play to learn from"):
        train_and_judge(tracks, plays.where(plays.user < 0), now_ms=NOW_MS, seed=1)
    with pytest.raises(Permanent, match="train tomorrow"):
        train_and_judge(tracks, plays.where(plays.started_at_ms > NOW_MS - DAY_MS // 2), now_ms=NOW_MS, seed=1)


def test_plays_dated_in_the_future_are_left_out() -> None:
    tracks, plays = world()
    later = Plays(
        np.append(plays.user, 0).astype(np.int32),
        np.append(plays.track, 0).astype(np.int32),
        np.append(plays.started_at_ms, NOW_MS + 400 * DAY_MS),
    )
    quick = replace(QUICK, epochs=1)
    assert train_and_judge(tracks, later, now_ms=NOW_MS, seed=1, recipe=quick) == train_and_judge(
        tracks, plays, now_ms=NOW_MS, seed=1, recipe=quick
    )
