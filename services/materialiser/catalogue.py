"""A tenant's catalogue as the rules want it: columns by row, made anew after the view has changed."""

from dataclasses import dataclass

import numpy as np

from shared.codec.state import Track
from shared.ids import track_key
from shared.recommend.values import CatalogueColumns


@dataclass(frozen=True, slots=True, eq=False)
class Catalogue:
    """Tracks in track_key order; `columns` numbers artists and genres, `artist_number` finds an artist's number."""

    tracks: tuple[Track, ...]
    columns: CatalogueColumns
    artist_number: dict[str, int]

    def rows_of_track_ids(self, track_ids: list[str]) -> list[int]:
        """Row of each track id, -1 where the catalogue has no such track."""
        keys = np.array([track_key(track_id) for track_id in track_ids], np.uint64)
        return [int(row) for row in self.columns.rows_of(keys)]


def catalogue_of(tracks: list[Track]) -> Catalogue:
    keyed = sorted((track_key(track.track_id), track) for track in tracks)
    artists: dict[str, int] = {}
    genres: dict[str, int] = {}
    return Catalogue(
        tuple(track for _, track in keyed),
        CatalogueColumns(
            track_key=np.array([key for key, _ in keyed], np.uint64),
            artist=np.array([artists.setdefault(track.artist_id, len(artists)) for _, track in keyed], np.int32),
            genre=np.array(
                [-1 if track.genre is None else genres.setdefault(track.genre, len(genres)) for _, track in keyed],
                np.int32,
            ),
        ),
        artists,
    )


class Catalogues:
    """Every tenant's tracks, fed by the catalogue's view (`on_change`)."""

    def __init__(self) -> None:
        self._tracks: dict[str, dict[str, Track]] = {}
        self._made: dict[str, Catalogue] = {}

    def changed(self, _: str, old: Track | None, new: Track | None) -> None:
        track = new or old
        if track is None:
            return
        tracks = self._tracks.setdefault(track.tenant_id, {})
        if new is None:
            tracks.pop(track.track_id, None)
        else:
            tracks[track.track_id] = new
        self._made.pop(track.tenant_id, None)

    def of(self, tenant_id: str) -> Catalogue:
        made = self._made.get(tenant_id)
        if made is None:
            made = self._made[tenant_id] = catalogue_of(list(self._tracks.get(tenant_id, {}).values()))
        return made
