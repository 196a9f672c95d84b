"""A tenant's catalogue as the rules want it: columns by row, made anew after the view has changed."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import structlog

from shared.codec.state import Track
from shared.ids import track_key
from shared.recommend.values import CatalogueColumns

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, eq=False)
class Catalogue:
    """Tracks in track_key order; `columns` numbers artists and genres, `artist_number` finds an artist's number."""

    tracks: tuple[Track, ...]
    columns: CatalogueColumns
    artist_number: dict[str, int]

    def rows_of_track_ids(self, track_ids: list[str]) -> list[int]:
        """Row of each track id, -1 where the catalogue has no such track."""
        if not track_ids:
            return []
        keys = np.array([track_key(track_id) for track_id in track_ids], np.uint64)
        return [int(row) for row in self.columns.rows_of(keys)]


def catalogue_of(tracks: Mapping[int, Track]) -> Catalogue:
    """From tracks by track_key."""
    keys = sorted(tracks)
    ordered = tuple(tracks[key] for key in keys)
    artists: dict[str, int] = {}
    genres: dict[str, int] = {}
    return Catalogue(
        ordered,
        CatalogueColumns(
            track_key=np.array(keys, np.uint64),
            artist=np.array([artists.setdefault(track.artist_id, len(artists)) for track in ordered], np.int32),
            genre=np.array(
                [-1 if track.genre is None else genres.setdefault(track.genre, len(genres)) for track in ordered],
                np.int32,
            ),
        ),
        artists,
    )


class Catalogues:
    """Every tenant's tracks, fed by the catalogue's view (`on_change`)."""

    def __init__(self) -> None:
        self._tracks: dict[str, dict[int, Track]] = {}
        self._changes: Counter[str] = Counter()
        self._made: dict[str, Catalogue] = {}  # those that have not changed since

    def changed(self, _: str, old: Track | None, new: Track | None) -> None:
        track = new or old
        if track is None:
            return
        tracks = self._tracks.setdefault(track.tenant_id, {})
        key = track_key(track.track_id)
        known = tracks.get(key)
        if known is not None and known.track_id != track.track_id:
            # 64 bits: about once in 10 million catalogues of a million tracks. The later one stays out of the lists.
            log.error("catalogue.collision", tenant_id=track.tenant_id, track_ids=[known.track_id, track.track_id])
            return
        if new is None:
            tracks.pop(key, None)
        else:
            tracks[key] = new
        self._changes[track.tenant_id] += 1
        self._made.pop(track.tenant_id, None)

    async def of(self, tenant_id: str) -> Catalogue:
        """The catalogue as it is now. Made in a thread (57,000 tracks take about 0.1 s), once after each change."""
        made = self._made.get(tenant_id)
        if made is None:
            changes = self._changes[tenant_id]
            made = await asyncio.to_thread(catalogue_of, dict(self._tracks.get(tenant_id, {})))
            if self._changes[tenant_id] == changes:
                self._made[tenant_id] = made
        return made
