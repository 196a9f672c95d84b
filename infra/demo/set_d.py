"""The real set D (30Music, five windows of five days) as a world; it never enters the repository (licence not stated).

The files hold ids, no names, and no genre, zone, duration, release date or played time: those stay absent. Tag numbers
in `item_tags.csv` are already linked over the five windows (the commonest numbers have the same share in every window);
number 0 means "could not be linked" (it stands up to five times in one row) and is left out. Tags have no weights in
the file, so each weighs 1.
"""

import csv
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from zlib import crc32

import numpy as np

from infra.demo.world.model import DAY_MS, Listeners, Plays, TenantWorld, Tracks, World, WorldUnavailable, event_ids

FOLDER = "30music-5x5days"  # inside MEIRI_DATA
TENANTS = ("aurora", "birch")
_UNLINKED_TAG = "0"

Event = tuple[int, str, str, str]  # seconds, UserId, ItemId, SessionId


def load_set_d(folder: Path, until: datetime) -> World:
    """Both tenants have the whole catalogue; a listener belongs to one of them by a hash of the id.

    All windows move by one number of whole days, so that the last play falls on the day (UTC) before `until`; the time
    of day and the distances between the windows stay. Raises WorldUnavailable when a file is missing or damaged.
    """
    events, artist_of = _read_events(folder / "events.csv")
    tags_of = _read_tags(folder / "item_tags.csv")
    tracks = _tracks(artist_of, tags_of)
    track_index = {item: i for i, item in enumerate(artist_of)}
    last_ms = max(event[0] for event in events) * 1000
    shift_ms = (int(until.astimezone(UTC).timestamp() * 1000) // DAY_MS - 1 - last_ms // DAY_MS) * DAY_MS
    parts: list[list[Event]] = [[] for _ in TENANTS]
    for event in sorted(events, key=lambda event: event[0]):
        parts[crc32(event[1].encode()) % len(TENANTS)].append(event)
    return World(
        tuple(
            _tenant(tenant, number, events=part, tracks=tracks, track_index=track_index, shift_ms=shift_ms)
            for number, (tenant, part) in enumerate(zip(TENANTS, parts, strict=True))
        )
    )


def _tenant(
    tenant_id: str, number: int, *, events: list[Event], tracks: Tracks, track_index: dict[str, int], shift_ms: int
) -> TenantWorld:
    users = {
        user: i for i, user in enumerate(sorted({event[1] for event in events}, key=lambda user: (len(user), user)))
    }
    sessions: dict[tuple[str, str], int] = {}
    session = [sessions.setdefault((event[1], event[3]), len(sessions)) for event in events]
    started_at_ms = np.array([event[0] for event in events], dtype=np.int64) * 1000 + shift_ms
    plays = Plays(
        user=np.array([users[event[1]] for event in events], dtype=np.int32),
        track=np.array([track_index[event[2]] for event in events], dtype=np.int32),
        started_at_ms=started_at_ms,
        played_ms=np.full(len(events), -1, dtype=np.int64),
        session=np.array(session, dtype=np.int32),
        event_id=event_ids(started_at_ms, np.random.default_rng([30, number])),
    )
    listeners = Listeners([f"u-{user}" for user in users], [None] * len(users), [""] * len(users))
    return TenantWorld(tenant_id, tracks, listeners, plays)


def _tracks(artist_of: dict[str, str], tags_of: dict[str, tuple[tuple[str, float], ...]]) -> Tracks:
    return Tracks(
        track_id=[f"t-{item}" for item in artist_of],
        title=[f"Track {item}" for item in artist_of],
        artist_id=[f"a-{artist}" for artist in artist_of.values()],
        artist_name=[f"Artist {artist}" for artist in artist_of.values()],
        genre=[None] * len(artist_of),
        tags=[tags_of.get(item, ()) for item in artist_of],
        released_on=[None] * len(artist_of),
        duration_ms=[None] * len(artist_of),
    )


def _read_events(path: Path) -> tuple[list[Event], dict[str, str]]:
    """(plays in the file's order, ItemId -> ArtistId in order of appearance)."""
    events: list[Event] = []
    artist_of: dict[str, str] = {}
    for line, row in _rows(path, ("UserId", "SessionId", "ItemId", "Time", "ArtistId")):
        user, session, item, time, artist = row
        if not (time.isdigit() and user and item and artist):
            raise WorldUnavailable(f"{path}, line {line}: expected ids and a time in seconds, found {','.join(row)!r}.")
        events.append((int(time), user, item, session))
        artist_of.setdefault(item, artist)
    if not events:
        raise WorldUnavailable(f"{path} has no plays; fetch the data set again.")
    return events, artist_of


def _read_tags(path: Path) -> dict[str, tuple[tuple[str, float], ...]]:
    return {
        item: tuple((f"tag-{tag}", 1.0) for tag in dict.fromkeys(tags.split()) if tag != _UNLINKED_TAG)
        for _, (item, tags) in _rows(path, ("ItemId", "tag_ids"))
    }


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, list[str]]]:
    """(line number, the named columns) of each row."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.reader(file)
            header = next(reader, [])
            if not set(columns) <= set(header):
                raise WorldUnavailable(f"{path} needs the columns {', '.join(columns)}; it has {', '.join(header)}.")
            indexes = [header.index(column) for column in columns]
            for line, row in enumerate(reader, start=2):
                if len(row) != len(header):
                    raise WorldUnavailable(f"{path}, line {line}: expected {len(header)} fields, found {len(row)}.")
                yield line, [row[i] for i in indexes]
    except (OSError, UnicodeDecodeError) as error:
        raise WorldUnavailable(
            f"Set D cannot be read from {path}; MEIRI_DATA must name the folder that holds {FOLDER}/ with "
            "events.csv and item_tags.csv."
        ) from error
