"""Is a reason true of the listener's history? Written apart from what makes reasons, over plain records."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import date

from shared.recommend.values import OFTEN, Reason, ReasonKind


@dataclass(frozen=True, slots=True)
class History:
    """One listener's facts as the owner of the data states them; tracks, artists and genres are catalogue numbers."""

    plays: Mapping[int, int]  # track -> plays, skips included
    listens: Mapping[int, int]  # track -> plays that count
    last_played: Mapping[int, date]  # track -> UTC date of its newest play
    artist_of: Sequence[int] | Mapping[int, int]
    genre_of: Sequence[int] | Mapping[int, int]
    loved: AbstractSet[int] = field(default_factory=frozenset)
    popular: AbstractSet[int] = field(default_factory=frozenset)


def verify_reason(reason: Reason, track: int, history: History, playlist_date: date) -> bool:
    """True if every clause of the reason to recommend `track` on that date holds; one that claims nothing is true."""
    heard = history.plays.get(track, 0) > 0
    listened = {t for t, n in history.listens.items() if n > 0}
    match reason.kind:
        case ReasonKind.NONE:
            return reason == Reason(ReasonKind.NONE)
        case ReasonKind.YOU_OFTEN_PLAY:
            return (
                reason.track == track and reason.number == history.listens.get(track) and (reason.number or 0) >= OFTEN
            )
        case ReasonKind.YOU_HAVE_PLAYED:
            return heard and reason.track == track and reason.number == history.plays[track]
        case ReasonKind.NOT_HEARD_FOR:
            return heard and reason.number == (playlist_date - history.last_played[track]).days and reason.number >= 1
        case ReasonKind.BECAUSE_YOU_LOVED:
            return reason.track in history.loved
        case ReasonKind.BECAUSE_YOU_PLAY:
            return (
                reason.track in listened
                and reason.track != track
                and not heard
                and reason.number == history.listens[reason.track]
            )
        case ReasonKind.UNHEARD_FROM_ARTIST:
            by_artist = [history.listens[t] for t in listened if history.artist_of[t] == reason.artist]
            return not heard and history.artist_of[track] == reason.artist and reason.number == sum(by_artist) > 0
        case ReasonKind.POPULAR_IN_GENRE:
            in_genre = [history.listens[t] for t in listened if history.genre_of[t] == reason.genre]
            return (
                track in history.popular
                and history.genre_of[track] == reason.genre != -1
                and reason.number == sum(in_genre) > 0
            )
        case ReasonKind.POPULAR:
            return track in history.popular
