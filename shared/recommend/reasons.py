"""The reason of each recommendation: the most telling claim that the listener's own history bears out."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shared.recommend.values import I32, CatalogueColumns, Listener, Popular, Reason, ReasonKind, Rules, find


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
    facts = zip(
        row.tolist(),
        evidence.tolist(),
        artist.tolist(),
        genre.tolist(),
        find(row, listener.loved)[1].tolist(),
        find(evidence, listener.loved)[1].tolist(),
        _at(listener.plays, position, heard),
        _at(listener.listens, position, heard),
        _at(today - listener.last_played_day, position, heard),
        _at(listener.listens, evidence_position, evidence_heard),
        _listens_by(artist, catalogue.artist, listener),
        _listens_by(genre, catalogue.genre, listener),
        popular.mask[row].tolist(),
        strict=True,
    )
    return [_reason(_Facts(*fact), rules.rest_days) for fact in facts]


class _Facts(NamedTuple):
    """What the history says of one recommended row; counts are 0 where it says nothing."""

    row: int
    evidence: int
    artist: int
    genre: int
    loved: bool
    evidence_loved: bool
    plays: int
    listens: int
    days_unheard: int
    evidence_listens: int
    artist_listens: int
    genre_listens: int
    popular: bool


def _reason(of: _Facts, rest_days: int) -> Reason:
    if of.loved:
        return Reason(ReasonKind.BECAUSE_YOU_LOVED, track=of.row)
    if of.plays and of.days_unheard >= rest_days:
        return Reason(ReasonKind.NOT_HEARD_FOR, number=of.days_unheard)
    if of.listens >= 2:
        return Reason(ReasonKind.YOU_OFTEN_PLAY, track=of.row, number=of.listens)
    if of.evidence_loved:
        return Reason(ReasonKind.BECAUSE_YOU_LOVED, track=of.evidence)
    if of.plays:
        return Reason(ReasonKind.YOU_HAVE_PLAYED, track=of.row, number=of.plays)
    if of.artist_listens:
        return Reason(ReasonKind.UNHEARD_FROM_ARTIST, artist=of.artist, number=of.artist_listens)
    if of.evidence_listens:
        return Reason(ReasonKind.BECAUSE_YOU_PLAY, track=of.evidence, number=of.evidence_listens)
    if of.popular and of.genre_listens:
        return Reason(ReasonKind.POPULAR_IN_GENRE, genre=of.genre, number=of.genre_listens)
    return Reason(ReasonKind.POPULAR if of.popular else ReasonKind.NONE)


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
