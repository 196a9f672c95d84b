"""Candidates in, the list of the day out: filter -> blend -> order -> reasons. Pure: same input, same list."""

import math

import numpy as np

from shared.recommend.blend import Pool, choose
from shared.recommend.filters import judge
from shared.recommend.order import arrange
from shared.recommend.reasons import reasons
from shared.recommend.values import (
    Candidates,
    CatalogueColumns,
    Fallback,
    Listener,
    ListOfTheDay,
    Popular,
    Recommendation,
    Rules,
    Shortfall,
    Verdict,
    find,
)


def make_list(
    candidates: Candidates,
    listener: Listener,
    *,
    catalogue: CatalogueColumns,
    popular: Popular,
    rules: Rules,
    today: int,
    fallback: Fallback = Fallback.NONE,
) -> ListOfTheDay:
    """The listener's list for the playlist date `today` (days since the epoch), whatever the order of the candidates.

    It is as long as asked while valid candidates are left that the artist cap allows: what a filter takes, or a side
    lacks, the next best refill. Familiar means heard by the listener's history, not by where a candidate came from.
    """
    # filter
    ranked = candidates.best_first()
    verdict = judge(ranked, listener, catalogue, rules, today)
    kept = (verdict == Verdict.KEPT).nonzero()[0]
    row, score, evidence = ranked.row[kept], ranked.score[kept], ranked.evidence[kept]

    # blend
    familiar = find(row, listener.heard_row)[1]
    artist = catalogue.artist[row] if len(row) else row
    pool = Pool(np.where(artist >= 0, artist, -2 - row).tolist(), familiar.tolist())
    share = rules.familiar_share if listener.familiar_share is None else min(max(listener.familiar_share, 0.0), 1.0)
    used: dict[int, int] = {}
    wanted = _familiar_of(rules.length, share)
    chosen = choose(pool, set(), used, cap=rules.artist_cap, familiar=wanted, discoveries=rules.length - wanted)
    spare_familiar = _familiar_of(rules.spare_tracks, share)
    spares = choose(
        pool,
        set(chosen),
        used,
        cap=rules.artist_cap,
        familiar=spare_familiar,
        discoveries=rules.spare_tracks - spare_familiar,
    )

    # order
    ordered = arrange(pool, chosen)

    # reasons
    shown = np.array(ordered + spares, dtype=np.intp)
    why = reasons(row[shown], evidence[shown], listener, catalogue=catalogue, popular=popular, rules=rules, today=today)
    recommendations = tuple(
        map(Recommendation, row[shown].tolist(), score[shown].tolist(), familiar[shown].tolist(), why)
    )
    achieved = sum(pool.familiar[position] for position in chosen)
    return ListOfTheDay(
        recommendations=recommendations[: len(ordered)],
        spares=recommendations[len(ordered) :],
        familiar_share_wanted=share,
        familiar_share=achieved / len(chosen) if chosen else 0.0,
        shortfalls=_shortfalls(rules.length, wanted, len(chosen), achieved),
        fallback=fallback,
        verdicts={Verdict(code): n for code, n in enumerate(np.bincount(verdict).tolist()) if n},
    )


def _familiar_of(length: int, share: float) -> int:
    return math.floor(share * length + 0.5)


def _shortfalls(length: int, wanted: int, songs: int, familiar: int) -> tuple[Shortfall, ...]:
    found = []
    if familiar < wanted:
        found.append(Shortfall.FEW_FAMILIAR)
    if songs - familiar < length - wanted:
        found.append(Shortfall.FEW_DISCOVERIES)
    if songs < length:
        found.append(Shortfall.FEW_CANDIDATES)
    return tuple(found)
