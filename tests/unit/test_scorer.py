"""The scorer against a slow, plain account of the same rules, and the promise of bit-identical answers."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import save

from shared.errors import Permanent
from shared.registry import ReleaseContent
from shared.two_tower.data import Histories, Lists
from shared.two_tower.retrieve import top_k
from shared.two_tower.scorer import COMPONENTS, EXTRA, HISTORY, OWN, RETRIEVED, TOWER, Scorer, Scores
from shared.two_tower.towers import AGE_KNOTS, LISTENS_KNOTS
from tests.unit.two_tower_world import histories

N, D = 3000, 16
UNKNOWN = 2**63 + 5


def release(n: int = N, changed: dict[str, NDArray[Any]] | None = None) -> ReleaseContent:
    rng = np.random.default_rng(3)
    index = {
        "track_key": np.arange(1, n + 1, dtype=np.uint64) * 7,
        "vectors": rng.normal(size=(n, D)).astype(np.float32) * 0.3,
        "bias": rng.normal(size=n).astype(np.float32),
    }
    weights = {
        "user_map": (np.eye(D) + rng.normal(size=(D, D)) * 0.05).astype(np.float32),
        "listens_curve": np.linspace(0, 1.5, len(LISTENS_KNOTS)).astype(np.float32),
        "age_curve": np.linspace(0, -1, len(AGE_KNOTS)).astype(np.float32),
    }
    for arrays in (index, weights):
        arrays.update({name: array for name, array in (changed or {}).items() if name in arrays})
    return ReleaseContent(
        {"index.safetensors": save(index), "weights.safetensors": save(weights)},
        {
            "component_names": list(COMPONENTS),
            "blend_weights": {"tower": 1.0, "own": 0.7},
            "own_half_life_days": 30.0,
        },
    )


@pytest.fixture(scope="module")
def scorer() -> Scorer:
    return Scorer(release())


def listeners(users: int, most: int = 150) -> Histories:
    rng = np.random.default_rng(5)
    counts = rng.integers(0, most, users)
    keys = [rng.choice(np.arange(1, N + 40, dtype=np.uint64), n, replace=False) * np.uint64(7) for n in counts]
    rows = int(counts.sum())
    return Histories(
        np.concatenate(([0], np.cumsum(counts))),
        np.concatenate(keys),
        rng.integers(0, 20, rows).astype(np.float32),
        rng.exponential(20, rows).astype(np.float32),
    ).checked()


def of_user(scores: Scores, user: int) -> dict[str, Any]:
    rows = slice(int(scores.splits[user]), int(scores.splits[user + 1]))
    columns = [field.name for field in fields(Scores) if field.name not in {"splits", "component_names"}]
    return {name: getattr(scores, name)[rows] for name in columns}


def same_bits(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(one[name].tobytes() == other[name].tobytes() for name in one)


def test_scores_agree_with_a_plain_account_of_the_rules() -> None:
    scorer = Scorer(release())
    heard = histories([(7, 3, 0.0), (14, 1, 40.0), (UNKNOWN, 9, 2.0)])
    extra, banned = Lists.of([[21, 14, UNKNOWN + 1]]), Lists.of([[28, 35]])
    k = 40
    answer = of_user(scorer.score(heard, extra, banned, k), 0)

    from safetensors.numpy import load

    index, weights = (load(release().files[f"{name}.safetensors"]) for name in ("index", "weights"))
    vectors, bias = index["vectors"].astype(float), index["bias"].astype(float)
    pooling = np.exp(
        np.interp(np.log1p([3, 1]), LISTENS_KNOTS, weights["listens_curve"])
        + np.interp(np.log1p([0, 40]), AGE_KNOTS, weights["age_curve"])
    )
    user = (pooling @ vectors[:2]) / pooling.sum() ** 0.6 @ weights["user_map"]
    raw = vectors @ user + bias
    tower = (raw - raw.mean()) / (np.sort(raw)[-50:].mean() - raw.mean())
    own = np.log1p(np.array([3, 1, 9]) * 0.5 ** (np.array([0, 40, 2]) / 30))
    own /= own.mean()
    free = [row for row in np.argsort(-tower) if row not in {0, 1, 2, 3, 4}][:k]

    found = answer["source"] == RETRIEVED
    assert answer["track_key"][found].tolist() == [(row + 1) * 7 for row in free]
    np.testing.assert_allclose(answer["score"][found], tower[free], atol=1e-5)
    mine = answer["source"] == HISTORY
    expected = {7: tower[0] + 0.7 * own[0], 14: tower[1] + 0.7 * own[1], UNKNOWN: 0.7 * own[2]}
    assert answer["track_key"][mine].tolist() == sorted(expected, key=expected.__getitem__, reverse=True)
    np.testing.assert_allclose(answer["score"][mine], sorted(expected.values(), reverse=True), atol=1e-5)
    named = answer["source"] == EXTRA
    assert answer["track_key"][named].tolist() == [21], "heard is history, unknown cannot be scored"
    np.testing.assert_allclose(answer["score"][named], tower[2], atol=1e-5)

    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    speaks = (pooling[:, None] * (units[:2] @ units.T)).T  # [N, 2]
    for key, evidence in zip(answer["track_key"][found], answer["evidence"][found], strict=True):
        row = int(key) // 7 - 1
        assert evidence == (0 if speaks[row].max() <= 0 else (7, 14)[speaks[row].argmax()])
    assert answer["evidence"][mine].tolist() == answer["track_key"][mine].tolist()


def test_absent_component_is_absent_by_its_mask(scorer: Scorer) -> None:
    heard = histories([(7, 3, 0.0), (UNKNOWN, 9, 2.0)])
    answer = of_user(scorer.score(heard, Lists.of([[21]]), Lists.empty(1), 5), 0)
    tower, own = 1 << TOWER, 1 << OWN
    for key, source, mask, parts in zip(
        answer["track_key"], answer["source"], answer["component_mask"], answer["components"], strict=True
    ):
        if source == HISTORY:
            assert mask == (own if key == UNKNOWN else tower | own)
        else:
            assert mask == tower
        assert all(value == 0 for bit, value in enumerate(parts) if not mask >> bit & 1)


@pytest.mark.parametrize("k", [1, 20, 300])
def test_answer_is_bit_identical_whoever_else_is_in_the_call(scorer: Scorer, k: int) -> None:
    heard = listeners(150)
    rng = np.random.default_rng(1)
    extra = Lists.of([rng.integers(1, N, rng.integers(0, 90)).tolist() for _ in range(len(heard))])
    banned = Lists.of([(rng.integers(1, N, 30) * 7).tolist() for _ in range(len(heard))])
    together = scorer.score(heard, extra, banned, k)

    def some(lists: Lists, first: int, last: int) -> Lists:
        return Lists.of([lists.track_key[lists.splits[u] : lists.splits[u + 1]].tolist() for u in range(first, last)])

    for first, last in ((0, 1), (1, 4), (63, 65), (64, 150), (149, 150)):
        apart = scorer.score(heard.users(first, last), some(extra, first, last), some(banned, first, last), k)
        for user in range(first, last):
            assert same_bits(of_user(together, user), of_user(apart, user - first)), (first, last, user)


def test_answer_does_not_depend_on_the_order_of_history_rows(scorer: Scorer) -> None:
    heard = listeners(3)
    backwards = Histories(
        np.concatenate(([0], np.cumsum(np.diff(heard.splits)[::-1]))),
        heard.track_key[::-1],
        heard.listens[::-1],
        heard.age_days[::-1],
    )
    nothing = Lists.empty(3)
    one, other = scorer.score(heard, nothing, nothing, 50), scorer.score(backwards, nothing, nothing, 50)
    assert all(same_bits(of_user(one, user), of_user(other, 2 - user)) for user in range(3))


def test_scale_does_not_depend_on_what_is_excluded_or_asked_for(scorer: Scorer) -> None:
    heard = listeners(2)
    plain = of_user(scorer.score(heard, Lists.empty(2), Lists.empty(2), 100), 1)
    best = [int(key) for key in plain["track_key"][:20]]
    other = of_user(scorer.score(heard, Lists.of([[], best[:10]]), Lists.of([[], best[10:]]), 60), 1)
    score = dict(zip(plain["track_key"].tolist(), plain["score"].tolist(), strict=True))
    shared = [(key, value) for key, value in zip(other["track_key"].tolist(), other["score"].tolist(), strict=True)]
    assert all(score[key] == value for key, value in shared if key in score)
    assert not set(best[10:]) & {
        key for key, source in zip(other["track_key"], other["source"], strict=True) if source == RETRIEVED
    }


def test_retrieval_never_returns_the_heard_nor_the_excluded_and_is_exact(scorer: Scorer) -> None:
    heard = listeners(70)
    banned = Lists.of([[(user + 1) * 7, (user + 2) * 7] for user in range(70)])
    answer = scorer.score(heard, Lists.empty(70), banned, 200)
    for user in range(70):
        rows = of_user(answer, user)
        found = rows["track_key"][rows["source"] == RETRIEVED]
        own = heard.track_key[heard.splits[user] : heard.splits[user + 1]]
        barred = {*own.tolist(), *banned.track_key[banned.splits[user] : banned.splits[user + 1]].tolist()}
        assert len(found) == len(set(found.tolist())) == 200
        assert not barred & set(found.tolist())
        assert rows["track_key"][rows["source"] == HISTORY].tolist().__len__() == len(own)


@pytest.mark.parametrize(("groups", "k"), [(4, 5), (40, 3), (200, 50), (200, 150)])
def test_two_stage_top_k_equals_a_full_sort(groups: int, k: int) -> None:
    scores = torch.from_numpy(np.random.default_rng(k).integers(0, 50, (9, 16 * groups)).astype(np.float32))
    scores[3] = float("-inf")
    values, columns = top_k(scores, k)
    torch.testing.assert_close(values, scores.sort(dim=1, descending=True).values[:, :k])
    assert (scores.gather(1, columns) == values).all()
    assert all(len(set(row)) == k for row in columns.tolist())


def test_listener_without_history_gets_what_is_popular(scorer: Scorer) -> None:
    answer = of_user(scorer.score(histories([]), Lists.empty(1), Lists.empty(1), 10), 0)
    from safetensors.numpy import load

    bias = load(release().files["index.safetensors"])["bias"]
    assert answer["track_key"].tolist() == ((np.argsort(-bias)[:10] + 1) * 7).tolist()
    assert answer["evidence"].tolist() == [0] * 10


def test_heard_but_only_skipped_track_is_history_without_weight(scorer: Scorer) -> None:
    skipped = of_user(scorer.score(histories([(7, 0, 1.0)]), Lists.empty(1), Lists.empty(1), 30), 0)
    nobody = of_user(scorer.score(histories([]), Lists.empty(1), Lists.of([[7]]), 30), 0)
    found = skipped["source"] == RETRIEVED
    assert skipped["track_key"][found].tolist() == nobody["track_key"].tolist()
    assert skipped["components"][~found][0, OWN] == 0
    assert skipped["evidence"].tolist() == [0] * 31


def test_index_of_one_track_and_calls_of_nobody_have_an_answer() -> None:
    scorer = Scorer(release(1))
    answer = scorer.score(histories([(7, 1, 1.0)], []), Lists.empty(2), Lists.empty(2), 100)
    assert answer.splits.tolist() == [0, 1, 2]
    assert answer.source.tolist() == [HISTORY, RETRIEVED]
    assert np.isfinite(answer.score).all()
    assert scorer.score(histories(), Lists.empty(0), Lists.empty(0), 100).splits.tolist() == [0]


def test_columns_that_do_not_fit_are_refused(scorer: Scorer) -> None:
    heard = histories([(7, 1, 1.0)])
    for extra, k in ((Lists.empty(2), 5), (Lists.empty(1), 0), (Lists(np.array([0, 2]), np.array([7], np.uint64)), 5)):
        with pytest.raises(Permanent):
            scorer.score(heard, extra, Lists.empty(1), k)


@pytest.mark.parametrize("name", ["vectors", "bias", "user_map"])
def test_release_with_nan_is_not_loaded(name: str) -> None:
    shape = {"vectors": (N, D), "bias": (N,), "user_map": (D, D)}[name]
    with pytest.raises(Permanent, match="NaN"):
        Scorer(release(changed={name: np.full(shape, np.nan, np.float32)}))


def test_release_of_other_components_is_not_loaded() -> None:
    content = release()
    with pytest.raises(Permanent, match="components"):
        Scorer(ReleaseContent(content.files, {**content.facts, "component_names": ["tower", "knn"]}))
