"""Candidates that need no model: the listener's own most played songs and the tenant's popular ones."""

import numpy as np

from shared.recommend.pipeline import make_list
from shared.recommend.values import (
    ABSENT,
    Candidates,
    CatalogueColumns,
    Fallback,
    Listener,
    ListOfTheDay,
    Popular,
    Rules,
    find,
)


def fallback_list(
    listener: Listener, *, catalogue: CatalogueColumns, popular: Popular, rules: Rules, today: int, cause: Fallback
) -> ListOfTheDay:
    """The best honest list without scores; the rules, caps and reasons are those of every list. It says its cause."""
    candidates = _own_and_popular(listener, catalogue, popular)
    return make_list(
        candidates, listener, catalogue=catalogue, popular=popular, rules=rules, today=today, fallback=cause
    )


def with_popular(candidates: Candidates, popular: Popular) -> Candidates:
    """The candidates and, below the worst of them, the popular songs: what fills a list that filters made short."""
    finite = candidates.score[np.isfinite(candidates.score)]
    lowest = float(finite.min()) if len(finite) else 0.0
    rank = np.arange(1, len(popular.row) + 1, dtype=np.float32)
    score = np.nextafter(np.float32(lowest), np.float32(-np.inf)) - max(abs(lowest), 1.0) * 1e-3 * rank
    return Candidates(
        np.concatenate((candidates.row, popular.row)),
        np.concatenate((candidates.score, score.astype(np.float32))),
        np.concatenate((candidates.evidence, np.full(len(popular.row), ABSENT, dtype=np.int32))),
    )


def _own_and_popular(listener: Listener, catalogue: CatalogueColumns, popular: Popular) -> Candidates:
    """Own songs by listens; popular ones by rank, those of a genre the listener has listened to first. Own scores are
    above 0 up to 1, popular ones too, so that both sides of the blend are led by their best.
    """
    listened = listener.listens > 0
    own = listener.heard_row[listened]
    own_score = 1.0 - 1.0 / (1.0 + listener.listens[listened].astype(np.float32))
    genres = np.unique(catalogue.genre[own])
    _, known_genre = find(catalogue.genre[popular.row], genres[genres >= 0])
    rank = np.arange(len(popular.row), dtype=np.float32) / max(len(popular.row), 1)
    popular_score = np.where(known_genre, 1.0 - 0.5 * rank, 0.5 - 0.5 * rank)
    return Candidates.of(np.concatenate((own, popular.row)), np.concatenate((own_score, popular_score)))
