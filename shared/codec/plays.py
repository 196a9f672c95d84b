"""playback.plays.v1: accepted play events, packed column by column."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from google.protobuf.message import DecodeError
from meiri.playback.v1.plays_pb2 import PlayEventBatch

from shared.columns import array, column
from shared.errors import Permanent

ABSENT = -1


class AcceptedEvent(NamedTuple):
    """One play event that passed ingest. Times are unix milliseconds; None is unknown."""

    tenant_id: str
    user_id: str
    track_id: str
    event_id: bytes
    started_at_ms: int
    played_ms: int | None
    duration_ms: int | None
    playback_id: str | None
    received_at_ms: int


def encode_plays(events: Sequence[AcceptedEvent]) -> bytes:
    tenants: dict[str, int] = {}
    users: dict[str, int] = {}
    tracks: dict[str, int] = {}
    playbacks: dict[str, int] = {}
    tenant_ids, user_ids, track_ids, event_ids, started, played, durations, playback_ids, received = zip(
        *events, strict=True
    )
    message = PlayEventBatch(
        tenant_index=column(_dictionary(tenant_ids, tenants), "u4"),
        user_index=column(_dictionary(user_ids, users), "u4"),
        track_index=column(_dictionary(track_ids, tracks), "u4"),
        event_ids=b"".join(event_ids),
        started_at_ms=column(started, "i8"),
        played_ms=column([ABSENT if value is None else value for value in played], "i8"),
        duration_ms=column([ABSENT if value is None else value for value in durations], "i8"),
        playback_index=column(
            [ABSENT if value is None else playbacks.setdefault(value, len(playbacks)) for value in playback_ids], "i4"
        ),
        received_at_ms=column(received, "i8"),
    )
    message.tenant_ids.extend(tenants)
    message.user_ids.extend(users)
    message.track_ids.extend(tracks)
    message.playback_ids.extend(playbacks)
    return message.SerializeToString()


def _dictionary(values: Iterable[str], indices: dict[str, int]) -> list[int]:
    return [indices.setdefault(value, len(indices)) for value in values]


def decode_plays(data: bytes) -> list[AcceptedEvent]:
    """The events of one record. Raises Permanent when the bytes are not a batch whose columns fit together."""
    try:
        message = PlayEventBatch.FromString(data)
    except DecodeError:
        raise Permanent(
            "not_a_play_batch", "The record is not a PlayEventBatch: produce what plays.proto says."
        ) from None
    count, rest = divmod(len(message.event_ids), 16)
    if rest:
        raise Permanent("bad_column", "Column event_ids must have 16 bytes per event.")
    try:
        return [
            AcceptedEvent(*row)
            for row in zip(
                _look_up(message.tenant_ids, array(message.tenant_index, "u4", name="tenant_index", length=count)),
                _look_up(message.user_ids, array(message.user_index, "u4", name="user_index", length=count)),
                _look_up(message.track_ids, array(message.track_index, "u4", name="track_index", length=count)),
                [message.event_ids[place : place + 16] for place in range(0, count * 16, 16)],
                array(message.started_at_ms, "i8", name="started_at_ms", length=count).tolist(),
                _optional(array(message.played_ms, "i8", name="played_ms", length=count).tolist()),
                _optional(array(message.duration_ms, "i8", name="duration_ms", length=count).tolist()),
                _look_up_optional(
                    message.playback_ids, array(message.playback_index, "i4", name="playback_index", length=count)
                ),
                array(message.received_at_ms, "i8", name="received_at_ms", length=count).tolist(),
                strict=True,
            )
        ]
    except IndexError:
        raise Permanent("bad_column", "An index column points past its dictionary.") from None


def _look_up(values: Sequence[str], index: Iterable[int]) -> list[str]:
    table = list(values)
    return [table[place] for place in index]


def _look_up_optional(values: Sequence[str], index: Iterable[int]) -> list[str | None]:
    table = list(values)
    return [None if place < 0 else table[place] for place in index]


def _optional(values: list[int]) -> list[int | None]:
    return [None if value < 0 else value for value in values]
