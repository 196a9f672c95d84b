"""What makes one list, and how it is packed to be kept beside the list: small, and the same list comes of it.

Packed form, version 1, little-endian: the byte 1 · u32 length of the compressed part · the compressed part · track_key u64
of each track · score f32 of each candidate. The two last are not compressed, as hashes and scores do not get smaller. The
compressed part is zlib of: u32 length of the head · the head · the numbers. The head is JSON: `list` (ids, date, instant,
release, cause, dial), `rules`, `names` of the tracks that the list names as [row, track_id, title, artist_id, artist_name,
genre], and `columns`, the length of each column of NUMBERS in that order. The numbers are those columns, i32, one after the
other, then byte by byte: first the lowest byte of each, last the highest, nearly all of them zeros.

Of the catalogue it has the tracks that can matter: the candidates, what the listener has heard, the evidence, and all the
popular ones where the list was filled with them. All rows are rows of these; numbers of artists and genres stay.
"""

import json
import zlib
from dataclasses import dataclass, fields
from datetime import date, datetime

import numpy as np

from services.materialiser.catalogue import Catalogue
from shared.codec.state import Track
from shared.columns import Array
from shared.recommend.values import (
    ABSENT,
    Candidates,
    CatalogueColumns,
    Fallback,
    Listener,
    ListOfTheDay,
    Popular,
    Rules,
    find,
)

VERSION = 1
ROWS = ("heard", "loved", "disliked", "recommended", "popular", "scored", "evidence")
"""Columns of rows; -1: of a track that is not here."""
NUMBERS = (*ROWS, "artist", "genre", "plays", "listens", "last_played_day", "banned_artist", "recommended_day")
_I32 = np.dtype("<i4")
_LEVEL = 1
_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """All that one list is a function of. Rows are rows of `catalogue`."""

    tenant_id: str
    user_id: str
    playlist_date: date
    made_at: datetime
    trace_id: str
    rules: Rules
    catalogue: Catalogue
    popular: Popular
    listener: Listener
    candidates: Candidates | None
    """The listener's rows of the scorer's answer; None: nobody scored."""
    release_id: str | None
    """The release that scored."""
    cause: Fallback
    """Why nobody scored; NONE where somebody did."""


def pack(inputs: Inputs, made: ListOfTheDay, *, filled: bool) -> bytes:
    """`made` is the list that these inputs make; `filled`: popular tracks were candidates of it."""
    columns, listener, popular = inputs.catalogue.columns, inputs.listener, inputs.popular
    scored = inputs.candidates or Candidates.of((), ())
    offered = popular.row if filled else popular.row[:0]
    kept = _distinct(np.concatenate((listener.heard_row, scored.row, scored.evidence, offered)))
    rows = {
        "heard": listener.heard_row,
        "loved": listener.loved,
        "disliked": listener.disliked,
        "recommended": listener.recommended_row,
        "popular": popular.row if filled else kept[popular.mask[kept]],
        "scored": scored.row,
        "evidence": scored.evidence,
    }
    position, found = find(np.concatenate([rows[name] for name in ROWS]), kept)
    numbers = {
        **rows,
        "artist": columns.artist[kept],
        "genre": columns.genre[kept],
        "plays": listener.plays,
        "listens": listener.listens,
        "last_played_day": listener.last_played_day,
        "banned_artist": listener.banned_artist,
        "recommended_day": listener.recommended_day,
    }
    head = {
        "list": {
            "tenant_id": inputs.tenant_id,
            "user_id": inputs.user_id,
            "playlist_date": inputs.playlist_date.isoformat(),
            "made_at": inputs.made_at.isoformat(),
            "trace_id": inputs.trace_id,
            "release_id": inputs.release_id,
            "cause": int(inputs.cause),
            "scored": inputs.candidates is not None,
            "familiar_share": listener.familiar_share,
        },
        "rules": {field.name: getattr(inputs.rules, field.name) for field in fields(Rules)},
        "names": _names(inputs.catalogue, made, kept),
        "columns": [len(numbers[name]) for name in NUMBERS],
    }
    told = _JSON.encode(head).encode()
    whole = np.concatenate((np.where(found, position, ABSENT), *(numbers[name] for name in NUMBERS[len(ROWS) :])))
    planes = whole.astype(_I32).view(np.uint8).reshape(-1, 4).T.tobytes()
    packed = zlib.compress(b"".join((_u32(len(told)), told, planes)), _LEVEL)
    keys, scores = columns.track_key[kept].astype("<u8"), scored.score.astype("<f4")
    return b"".join((bytes([VERSION]), _u32(len(packed)), packed, keys.tobytes(), scores.tobytes()))


def unpack(data: bytes) -> Inputs:
    """The inputs again, with what is left of the catalogue. Raises ValueError where they are of another version."""
    if data[:1] != bytes([VERSION]):
        raise ValueError(f"These inputs are of version {data[:1].hex()}: read them with the release that packed them.")
    end = 5 + int.from_bytes(data[1:5], "little")
    whole = zlib.decompress(data[5:end])
    start = 4 + int.from_bytes(whole[:4], "little")
    head = json.loads(whole[4:start])
    planes = np.frombuffer(whole, np.uint8, offset=start).reshape(4, -1)
    numbers = np.ascontiguousarray(planes.T).view(_I32).reshape(-1)
    column = dict(zip(NUMBERS, np.split(numbers, np.cumsum(head["columns"])[:-1]), strict=True))
    keys = np.frombuffer(data, "<u8", len(column["artist"]), end)
    score = np.frombuffer(data, "<f4", offset=end + keys.nbytes)
    told = head["list"]
    tracks = [Track(told["tenant_id"], "", "", "", "")] * len(keys)
    for row, *names in head["names"]:
        tracks[row] = Track(told["tenant_id"], *names)
    columns = CatalogueColumns(keys, column["artist"], column["genre"])
    return Inputs(
        tenant_id=told["tenant_id"],
        user_id=told["user_id"],
        playlist_date=date.fromisoformat(told["playlist_date"]),
        made_at=datetime.fromisoformat(told["made_at"]),
        trace_id=told["trace_id"],
        rules=Rules(**head["rules"]),
        catalogue=Catalogue(tuple(tracks), columns, {}),
        popular=Popular.of(column["popular"], columns),
        listener=Listener.of(
            heard_row=column["heard"],
            plays=column["plays"],
            listens=column["listens"],
            last_played_day=column["last_played_day"],
            loved=column["loved"],
            disliked=column["disliked"],
            banned_artist=column["banned_artist"],
            recommended_row=column["recommended"],
            recommended_day=column["recommended_day"],
            familiar_share=told["familiar_share"],
        ),
        candidates=Candidates.of(column["scored"], score, column["evidence"]) if told["scored"] else None,
        release_id=told["release_id"],
        cause=Fallback(told["cause"]),
    )


def _names(catalogue: Catalogue, made: ListOfTheDay, kept: Array) -> list[tuple[object, ...]]:
    """Of the songs of the list and its spares, and of the tracks that their reasons name."""
    songs = (*made.recommendations, *made.spares)
    rows = sorted({song.row for song in songs} | {song.reason.track for song in songs if song.reason.track is not None})
    places = kept.searchsorted(np.array(rows, kept.dtype)).tolist()
    return [
        (place, track.track_id, track.title, track.artist_id, track.artist_name, track.genre)
        for place, track in zip(places, map(catalogue.tracks.__getitem__, rows), strict=True)
    ]


def _distinct(rows: Array) -> Array:
    """Ascending, each once, without -1; by sorting, which for so few is many times faster than np.unique."""
    rows.sort()
    return rows[np.append(rows[1:] != rows[:-1], True) & (rows >= 0)] if len(rows) else rows


def _u32(number: int) -> bytes:
    return number.to_bytes(4, "little")
