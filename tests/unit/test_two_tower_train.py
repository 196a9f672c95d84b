from dataclasses import replace

import numpy as np
import pytest
import torch

from shared.errors import Permanent
from shared.two_tower.data import DAY_MS, Plays
from shared.two_tower.towers import COLD_PLAYS, TrackInputs
from shared.two_tower.train import Progress, Recipe, Trained, draw_negatives, hidden_track_loss, train, training_rows
from tests.unit.two_tower_world import NOW_MS, QUICK, TASTES, world


def trained(recipe: Recipe = QUICK, seed: int = 1) -> Trained:
    tracks, plays = world()
    return train(tracks, plays, until_ms=NOW_MS, seed=seed, recipe=recipe)


def test_sampled_softmax_with_log_q_estimates_the_sum_over_all_tracks() -> None:
    """A missing or wrong sign of log Q is far outside: popular tracks are drawn 100 times as often as rare ones."""
    rng = np.random.default_rng(0)
    n_tracks = 2000
    chance = 1 / (1 + np.arange(n_tracks)) ** 1.2
    seen = rng.choice(n_tracks, 20_000, p=chance / chance.sum()).astype(np.int32)
    logits = torch.from_numpy(rng.normal(0, 1, (1, n_tracks)) - 0.001 * np.arange(n_tracks))
    row, target = torch.tensor([0]), torch.tensor([40])
    exact = float(logits.exp().sum())
    assert float(hidden_track_loss(logits, row, target, None)) == pytest.approx(np.log(exact) - float(logits[0, 40]))

    def estimated(sign: float) -> float:
        sums = []
        for _ in range(400):
            drawn = draw_negatives(seen, n_tracks, 200, rng)
            log_weight = torch.full((n_tracks,), float("-inf"), dtype=logits.dtype)
            log_weight[torch.from_numpy(drawn.track).long()] = sign * torch.from_numpy(drawn.log_weight).double()
            sums.append(np.exp(float(hidden_track_loss(logits, row, target, log_weight)) + float(logits[0, 40])))
        return float(np.mean(sums))

    assert estimated(1) == pytest.approx(exact, rel=0.03)
    assert estimated(0) < exact / 3, "without log Q"
    assert estimated(-1) < exact / 3, "with the wrong sign"


def test_own_targets_stand_for_themselves_alone_in_a_sample() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    log_weight = torch.tensor([5.0, 0.5, float("-inf")])
    loss = hidden_track_loss(logits, torch.tensor([0]), torch.tensor([0]), log_weight)
    assert float(loss) == pytest.approx(float(-torch.log_softmax(torch.tensor([2.0, 1.5]), 0)[0]))


def test_training_twice_gives_the_same_bits() -> None:
    one, other = trained(), trained()
    for name, weights in one.towers.state_dict().items():
        assert torch.equal(weights, other.towers.state_dict()[name]), name
    assert one.loss == other.loss
    assert trained(seed=2).loss != one.loss


def test_training_twice_with_a_sampled_softmax_gives_the_same_bits() -> None:
    recipe = replace(QUICK, exact_up_to=0, negatives=100, epochs=2)
    one, other = trained(recipe).towers.state_dict(), trained(recipe).towers.state_dict()
    assert all(torch.equal(weights, other[name]) for name, weights in one.items())


@pytest.mark.parametrize("recipe", [QUICK, replace(QUICK, exact_up_to=0, negatives=150)])
def test_loss_falls_and_tracks_of_a_taste_come_to_lie_together(recipe: Recipe) -> None:
    tracks, plays = world()
    seen: list[Progress] = []
    model = train(tracks, plays, until_ms=NOW_MS, seed=1, recipe=recipe, progress=seen.append)
    assert [step.epoch for step in seen] == list(range(1, recipe.epochs + 1))
    assert seen[-1].loss < seen[0].loss - 0.2
    assert all(step.examples_per_s > 0 for step in seen)
    with torch.inference_mode():
        vectors = torch.nn.functional.normalize(model.towers.track_vectors(model.inputs))
        alike = (vectors @ vectors.T).numpy()
    same = tracks.genre[:, None] == tracks.genre[None, :]
    assert alike[same].mean() > alike[~same].mean() + 0.3


def test_content_weights_are_shares_and_name_what_counts() -> None:
    model = trained()
    shares = model.towers.content_weights(model.inputs, model.play_counts)
    assert set(shares) == {"id", "artist", "tags", "genre"}
    assert sum(shares.values()) == pytest.approx(1, abs=0.001)
    assert min(shares.values()) > 0


def test_unplayed_track_is_placed_by_its_features() -> None:
    tracks, plays = world()
    unplayed = 17
    model = train(tracks, plays.where(plays.track != unplayed), until_ms=NOW_MS, seed=1, recipe=QUICK)
    assert int(model.inputs.id_row[unplayed]) == 0
    with torch.inference_mode():
        vectors = torch.nn.functional.normalize(model.towers.track_vectors(model.inputs))
        alike = (vectors @ vectors[unplayed]).numpy()
    assert tracks.genre[np.argsort(-alike)[1:21]].tolist().count(unplayed % TASTES) >= 18


def test_cold_tracks_have_no_id_and_tags_of_no_weight_count_as_no_tags() -> None:
    tracks, _ = world()
    counts = np.full(len(tracks), COLD_PLAYS)
    counts[5] = COLD_PLAYS - 1
    weights = tracks.tag_weights.copy()
    weights[:2] = 0
    inputs = TrackInputs.of(replace(tracks, tag_weights=weights), counts)
    assert int(inputs.id_row[5]) == 0
    assert sorted(inputs.id_row.tolist()) == list(range(len(tracks)))
    assert inputs.tag_weights[:4].tolist() == [0, 0, 0.5, 0.5]
    some = inputs.take(torch.tensor([2, 0]))
    assert some.tag_rows.tolist() == inputs.tag_rows[[4, 5, 0, 1]].tolist()
    assert some.tag_splits.tolist() == [0, 2, 4]


def test_all_zero_tags_train_as_no_tags() -> None:
    tracks, plays = world()
    silent = replace(tracks, tag_weights=np.zeros_like(tracks.tag_weights))
    model = train(silent.checked(), plays, until_ms=NOW_MS, seed=1, recipe=replace(QUICK, epochs=1))
    assert model.towers.content_weights(model.inputs, model.play_counts)["tags"] == 0


def test_rows_are_users_and_sessions_of_at_least_two_tracks() -> None:
    minute = 60_000
    user = np.array([0, 0, 0, 0, 1], np.int32)
    track = np.array([4, 5, 4, 6, 9], np.int32)
    at = NOW_MS - DAY_MS + np.array([0, 10, 20, 300, 0], np.int64) * minute
    rows, user_rows = training_rows(Plays(user, track, at), NOW_MS)
    assert user_rows == 1
    assert rows.splits.tolist() == [0, 3, 5], "one user of three tracks, one session of two"
    assert rows.track.tolist() == [4, 5, 6, 4, 5]
    assert rows.listens.tolist() == [2, 1, 1, 2, 1]
    assert rows.age_days[3:] * 1440 == pytest.approx([0, 10], abs=0.01)


def test_empty_log_is_refused_with_a_sentence() -> None:
    tracks, plays = world()
    with pytest.raises(Permanent, match="no play to learn from"):
        train(tracks, plays, until_ms=int(plays.started_at_ms.min()), seed=1)


@pytest.mark.parametrize("only", ["listener", "track", "play"])
def test_one_listener_one_track_or_one_play_trains_to_finite_vectors(only: str) -> None:
    tracks, plays = world()
    kept = {"listener": plays.user == 0, "track": plays.track == plays.track[0], "play": np.arange(len(plays)) == 0}
    model = train(tracks, plays.where(kept[only]), until_ms=NOW_MS, seed=1, recipe=replace(QUICK, epochs=2))
    with torch.inference_mode():
        assert torch.isfinite(model.towers.track_vectors(model.inputs)).all()
        assert torch.isfinite(model.towers.bias(model.inputs)).all()
