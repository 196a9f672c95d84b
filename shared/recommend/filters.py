"""Which candidates may stand in the list, and why the others may not."""

import numpy as np
from numpy.typing import NDArray

from shared.recommend.values import Candidates, CatalogueColumns, Listener, Rules, Verdict, find


def judge(
    ranked: Candidates, listener: Listener, catalogue: CatalogueColumns, rules: Rules, today: int
) -> NDArray[np.int8]:
    """The verdict int8[n] of each candidate of `ranked` (best first). `today`: the playlist date in epoch days."""
    row = ranked.row
    verdict = np.zeros(len(row), dtype=np.int8)
    if not len(row) or not len(catalogue):
        verdict[:] = Verdict.UNKNOWN_TRACK
        return verdict
    _, recent = find(row, listener.recommended_row[recently_recommended(listener, rules, today)])
    _, banned = find(catalogue.artist[row], listener.banned_artist)
    _, disliked = find(row, listener.disliked)
    # from the weakest to the strongest: what is written last stays
    verdict[recent] = Verdict.RECENTLY_RECOMMENDED
    verdict[banned] = Verdict.BANNED_ARTIST
    verdict[disliked] = Verdict.DISLIKED
    verdict[_repeated(row)] = Verdict.REPEATED
    verdict[~np.isfinite(ranked.score)] = Verdict.NO_SCORE
    verdict[row < 0] = Verdict.UNKNOWN_TRACK
    return verdict


def recently_recommended(listener: Listener, rules: Rules, today: int) -> NDArray[np.bool_]:
    """bool[r] over `recommended_row`: in a list of the last N dates, and the listener did not come back to it since.

    Playing it from that day's list is no coming back, else the list would feed on itself; a play on a later date is.
    Days of plays are UTC and playlist dates local, so the evening of the list's own date may already be the next UTC
    day: only a play at least two days on surely is of a later date.
    """
    position, heard = find(listener.recommended_row, listener.heard_row)
    recent = listener.recommended_day > today - rules.recommended_window_days - 1
    if bool(heard.any()):
        recent &= ~(heard & (listener.last_played_day[position] >= listener.recommended_day + 2))
    return recent


def _repeated(row: NDArray[np.int32]) -> NDArray[np.bool_]:
    """bool[n]: the row stood before."""
    order = row.argsort(kind="stable")
    ordered = row[order]
    repeated = np.zeros(len(row), dtype=np.bool_)
    repeated[order[1:]] = ordered[1:] == ordered[:-1]
    return repeated
