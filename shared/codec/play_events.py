"""playback.play-events.v1, playback.play-imports.v1 and ingress topics: one play event as a plain value."""

from typing import NamedTuple

from google.protobuf.message import DecodeError
from meiri.playback.v1.play_event_pb2 import PlayEvent as PlayEventMessage

from shared.errors import Permanent

_DECODE = PlayEventMessage.FromString


class PlayEvent(NamedTuple):
    """What a client said, unjudged. Times are unix milliseconds, spans milliseconds; None or "" is absent."""

    event_id: bytes
    user_id: str
    track_id: str
    title: str
    artist_name: str
    started_at_ms: int | None
    played_ms: int | None
    duration_ms: int | None
    playback_id: str
    client_sent_at_ms: int | None
    received_at_ms: int | None


def decode_play_event(data: bytes) -> PlayEvent:
    """Raises Permanent when the bytes are no PlayEvent, or a time in it is none. Unknown fields are no fault."""
    try:
        message = _DECODE(data)
    except DecodeError:
        raise Permanent("not_a_play_event", "The bytes are not a PlayEvent: send what play_event.proto says.") from None
    has = message.HasField
    return PlayEvent(
        message.event_id,
        message.user_id,
        message.track_id,
        message.title,
        message.artist_name,
        _milliseconds(message.started_at) if has("started_at") else None,
        _milliseconds(message.played_for) if has("played_for") else None,
        _milliseconds(message.track_duration) if has("track_duration") else None,
        message.playback_id,
        _milliseconds(message.client_sent_at) if has("client_sent_at") else None,
        _milliseconds(message.received_at) if has("received_at") else None,
    )


def _milliseconds(span: object) -> int:
    """Of a Timestamp or a Duration, both of which have seconds and nanos."""
    nanos: int = span.nanos  # type: ignore[attr-defined]
    if not -1_000_000_000 < nanos < 1_000_000_000:
        raise Permanent("time_bad", "A time's nanos must be under a second: build it with your protobuf library.")
    return int(span.seconds) * 1000 + nanos // 1_000_000  # type: ignore[attr-defined]
