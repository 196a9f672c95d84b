"""The reason of each recommendation: the most telling claim that the listener's own history bears out."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shared.recommend.values import I32, OFTEN, CatalogueColumns, Listener, Popular, Reason, ReasonKind, Rules, find


def reasons(
    row: I32,
    evidence: I32,
    listener: Listener,
    *,
    catalogue: CatalogueColumns,
    popular: Popular,
    rules: Rules,
    today: int,
) -> list[Reason]:
    """One reason for each of row[n]; evidence[n] is the row that the scorer says speaks for it, or -1."""
    if not len(row):
        return []
    position, heard = find(row, listener.heard_row)
    evidence_position, evidence_heard = find(evidence, listener.heard_row)
    artist, genre = catalogue.artist[row], catalogue.genre[row]
    days_unheard = today - listener.last_played_day
    facts = zip(
        row.tolist(),
        evidence.tolist(),
        artist.tolist(),
        genre.tolist(),
        find(row, listener.loved)[1].tolist(),
        find(evidence, listener.loved)[1].tolist(),
        _at(listener.plays, position, heard),
        _at(listener.listens, position, heard),
        _at(days_unheard, position, heard),
        _at(listener.listens, evidence_position, evidence_heard),
        _listens_by(artist, catalogue.artist, listener),
        _listens_by(genre, catalogue.genre, listener),
        popular.mask[row].tolist(),
        strict=True,
    )
    # Counts are 0 where the history says nothing. The first claim that holds is given.
    given: list[Reason] = []
    for (
        track, by_evidence, by_artist, in_genre, loved, evidence_loved, plays, listens, unheard,
        evidence_listens, artist_listens, genre_listens, is_popular,
    ) in facts:  # fmt: skip
        if loved:
            reason = Reason(ReasonKind.BECAUSE_YOU_LOVED, track)
        elif plays and unheard >= rules.rest_days:
            reason = Reason(ReasonKind.NOT_HEARD_FOR, number=unheard)
        elif listens >= OFTEN:
            reason = Reason(ReasonKind.YOU_OFTEN_PLAY, track, number=listens)
        elif evidence_loved:
            reason = Reason(ReasonKind.BECAUSE_YOU_LOVED, by_evidence)
        elif plays:
            reason = Reason(ReasonKind.YOU_HAVE_PLAYED, track, number=plays)
        elif artist_listens:
            reason = Reason(ReasonKind.UNHEARD_FROM_ARTIST, artist=by_artist, number=artist_listens)
        elif evidence_listens:
            reason = Reason(ReasonKind.BECAUSE_YOU_PLAY, by_evidence, number=evidence_listens)
        elif is_popular and genre_listens:
            reason = Reason(ReasonKind.POPULAR_IN_GENRE, genre=in_genre, number=genre_listens)
        else:
            reason = Reason(ReasonKind.POPULAR if is_popular else ReasonKind.NONE)
        given.append(reason)
    return given


def _at(column: I32, position: NDArray[np.intp], found: NDArray[np.bool_]) -> list[int]:
    """column[position], 0 where not found."""
    if not len(column):
        return [0] * len(position)
    values: list[int] = np.where(found, column[position], 0).tolist()
    return values


def _listens_by(group: I32, group_of_track: I32, listener: Listener) -> Sequence[int]:
    """Listens in the whole history by artist (or genre) group[n]; 0 for an absent one."""
    asked = np.sort(group)
    position, found = find(group_of_track[listener.heard_row], asked)
    total = np.bincount(position[found], weights=listener.listens[found], minlength=len(asked))
    total = total[asked.searchsorted(group)]
    listens: list[int] = np.where(group >= 0, total, 0).astype(np.int64).tolist()
    return listens
