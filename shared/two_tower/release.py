"""What travels in a model release: weights, index, vocabularies and the facts of its manifest."""

import json
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save as save_arrays

from shared.registry import ReleaseContent
from shared.two_tower.data import DAY_MS, Plays, TrackFeatures
from shared.two_tower.scorer import COMPONENTS
from shared.two_tower.train import Recipe, Trained

OWN_HALF_LIFE_DAYS = 30.0
BLEND_WEIGHTS = {"tower": 1.0, "own": 1.0}
"""Set beforehand, not tuned: on real histories the own term at 1 gains and never lost. The manifest is what is read."""


def release_content(
    tracks: TrackFeatures, plays: Plays, trained: Trained, *, until_ms: int, seed: int, recipe: Recipe
) -> ReleaseContent:
    """Pack a trained model: `plays` are those it was trained on. The same model gives the same bytes.

    - index.safetensors: `track_key u64[N]` rising, `vectors f32[N, D]`, `bias f32[N]`: the whole catalogue;
    - weights.safetensors: all weights of both towers, and `warm_track_key u64[W]`, the track of each row of `id_table`
      after the absent row 0; tables have their rows in the order of vocabulary.json, after the absent row 0;
    - vocabulary.json: the artists, genres and tags that the model knows.
    """
    order = np.argsort(tracks.track_key)
    with torch.inference_mode():
        vectors = trained.towers.track_vectors(trained.inputs).numpy()
        bias = trained.towers.bias(trained.inputs).numpy()
    index = {
        "track_key": np.ascontiguousarray(tracks.track_key[order]),
        "vectors": np.ascontiguousarray(vectors[order]),
        "bias": np.ascontiguousarray(bias[order]),
    }
    weights = {name: value.detach().numpy() for name, value in trained.towers.state_dict().items()}
    weights["warm_track_key"] = np.ascontiguousarray(tracks.track_key[trained.inputs.id_row.numpy() > 0])
    vocabulary = {
        "artists": list(tracks.artist_vocab),
        "genres": list(tracks.genre_vocab),
        "tags": list(tracks.tag_vocab),
    }
    facts: dict[str, Any] = {
        "component_names": list(COMPONENTS),
        "blend_weights": BLEND_WEIGHTS,
        "own_half_life_days": OWN_HALF_LIFE_DAYS,
        "content_weights": trained.towers.content_weights(trained.inputs, trained.play_counts),
        "sizes": {
            "tracks": len(tracks),
            "played_tracks": int((trained.play_counts > 0).sum()),
            "warm_tracks": len(weights["warm_track_key"]),
            **{name: len(words) for name, words in vocabulary.items()},
            "dimensions": recipe.dim,
        },
        "data_range": {
            "first_play_ms": int(plays.started_at_ms.min()),
            "last_play_ms": int(plays.started_at_ms.max()),
            "days": round((until_ms - int(plays.started_at_ms.min())) / DAY_MS, 2),
            "plays": len(plays),
            "users": len(np.unique(plays.user)),
        },
        "training": {"seed": seed, "epochs": recipe.epochs, "loss": round(trained.loss, 6)},
    }
    return ReleaseContent(
        {
            "index.safetensors": save_arrays(index),
            "weights.safetensors": save_arrays(weights),
            "vocabulary.json": json.dumps(vocabulary, ensure_ascii=False, indent=0).encode(),
        },
        facts,
    )
