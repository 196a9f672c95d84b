"""A list of the day as the DailyPlaylist message, with the names of today's catalogue. Equal lists give equal bytes."""

from datetime import date, datetime

from meiri.playlist.v1 import daily_playlist_pb2 as pb

from services.materialiser.catalogue import Catalogue
from shared.recommend.reason_text import Names, render
from shared.recommend.values import ListOfTheDay, Reason, Recommendation


def encode_list(
    made: ListOfTheDay,
    catalogue: Catalogue,
    *,
    tenant_id: str,
    user_id: str,
    playlist_date: date,
    made_at: datetime,
    release_id: str | None,
) -> bytes:
    message = pb.DailyPlaylist(
        tenant_id=tenant_id,
        user_id=user_id,
        playlist_date=playlist_date.isoformat(),
        version=1,
        recommendations=[_recommendation(item, catalogue) for item in made.recommendations],
        spares=[_recommendation(item, catalogue) for item in made.spares],
        release_id=release_id,
        fallback=int(made.fallback),  # type: ignore[arg-type]
        familiar_share_wanted=made.familiar_share_wanted,
        familiar_share=made.familiar_share,
        shortfalls=[str(shortfall) for shortfall in made.shortfalls],
    )
    message.made_at.FromDatetime(made_at)
    return message.SerializeToString(deterministic=True)


def _recommendation(item: Recommendation, catalogue: Catalogue) -> pb.Recommendation:
    track = catalogue.tracks[item.row]
    return pb.Recommendation(
        track_id=track.track_id,
        title=track.title,
        artist_id=track.artist_id,
        artist_name=track.artist_name,
        familiar=item.familiar,
        score=item.score,
        reason=_reason(item.reason, item.row, catalogue),
    )


def _reason(reason: Reason, row: int, catalogue: Catalogue) -> pb.Reason:
    """The claim with the ids and names of what it names: the artist's and genre's are those of any track that has them."""
    named = None if reason.track is None else catalogue.tracks[reason.track]
    own = catalogue.tracks[row]
    artist = None if reason.artist is None else own
    genre = None if reason.genre is None else own.genre
    return pb.Reason(
        kind=int(reason.kind),  # type: ignore[arg-type]
        track_id=None if named is None else named.track_id,
        track_title=None if named is None else named.title,
        artist_id=None if artist is None else artist.artist_id,
        artist_name=None if artist is None else artist.artist_name,
        genre=genre,
        number=reason.number,
        sentence=render(
            reason,
            Names(
                track="" if named is None else named.title,
                artist="" if artist is None else artist.artist_name,
                genre=genre or "",
            ),
            recommended=row,
        ),
    )
