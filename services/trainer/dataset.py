"""From the archive's events and the catalogue's tracks to the columns that the towers are trained on. Pure."""

from collections.abc import Iterable, Sequence
from itertools import groupby

import numpy as np

from shared.codec.plays import AcceptedEvent
from shared.codec.state import Track
from shared.ids import track_key
from shared.plays.grouping import PlayEventRow, group
from shared.two_tower.data import Plays, TrackFeatures


def track_features(tracks: Iterable[Track]) -> TrackFeatures:
    """The catalogue in track_id order; vocabularies in order of first use."""
    ordered = sorted(tracks, key=lambda track: track.track_id)
    artists: dict[str, int] = {}
    genres: dict[str, int] = {}
    tags: dict[str, int] = {}
    return TrackFeatures(
        track_key=np.array([track_key(track.track_id) for track in ordered], np.uint64),
        artist=np.array([artists.setdefault(track.artist_id, len(artists)) for track in ordered], np.int32),
        genre=np.array(
            [-1 if track.genre is None else genres.setdefault(track.genre, len(genres)) for track in ordered], np.int32
        ),
        tag_splits=np.cumsum([0, *(len(track.tags) for track in ordered)], dtype=np.int64),
        tag_ids=np.array([tags.setdefault(name, len(tags)) for track in ordered for name, _ in track.tags], np.int32),
        tag_weights=np.array([weight for track in ordered for _, weight in track.tags], np.float32),
        artist_vocab=list(artists),
        genre_vocab=list(genres),
        tag_vocab=list(tags),
    )


def listens(events: Sequence[AcceptedEvent], tracks: TrackFeatures) -> Plays:
    """Derive plays as features does and keep the listens of catalogue tracks. `events`: by user, then track.

    Plays of provisional tracks are heard, not trained on: there is nothing to recommend from them.
    """
    row_of = {int(key): row for row, key in enumerate(tracks.track_key)}
    users: list[int] = []
    rows: list[int] = []
    started: list[int] = []
    user = -1
    for _, of_user in groupby(events, key=lambda event: event.user_id):
        user += 1
        for track_id, of_track in groupby(of_user, key=lambda event: event.track_id):
            row = row_of.get(track_key(track_id))
            if row is None:
                continue
            plays = group(
                [
                    PlayEventRow(
                        event.event_id,
                        event.started_at_ms,
                        event.played_ms,
                        event.duration_ms,
                        event.playback_id,
                        event.received_at_ms,
                    )
                    for event in of_track
                ]
            )
            for play in plays:
                if play.listen:
                    users.append(user)
                    rows.append(row)
                    started.append(play.started_at_ms)
    return Plays(np.array(users, np.int32), np.array(rows, np.int32), np.array(started, np.int64))
