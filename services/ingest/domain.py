"""What makes a play event acceptable: values in, an accepted event or a refusal out. No time but what is passed in."""

from dataclasses import dataclass

from shared.codec.play_events import PlayEvent
from shared.codec.plays import AcceptedEvent
from shared.ids import PROVISIONAL_PREFIX, provisional_track_id
from shared.limits import (
    EARLIEST_MS,
    EVENT_ID_BAD,
    EVENT_ID_BYTES,
    MAX_AHEAD_MS,
    MAX_DURATION_MS,
    MAX_PLAYBACK_ID_BYTES,
    MAX_PLAYED_MS,
    MAX_TEXT_CODE_POINTS,
    MAX_TRACK_ID_BYTES,
    STARTED_AT_MISSING,
    TRACK_UNNAMED,
    Refusal,
)

CLOCK_TOLERANCE_MS = 120_000
"""A client's clock that differs by less from the door's is taken as right: delivery takes time too."""

STARTED_TOO_EARLY = Refusal(
    "started_too_early", "started_at is before 2002-10-01: check its unit (seconds, not milliseconds) and the clock."
)
STARTED_IN_FUTURE = Refusal(
    "started_in_future", "started_at is over an hour after the event arrived: check its unit and the clock."
)
PLAYED_FOR_BAD = Refusal("played_for_bad", "played_for must be 0 to 24 hours: send the time really heard, or nothing.")
DURATION_BAD = Refusal(
    "track_duration_bad", "track_duration must be 0 to 24 days: send the track's length, or nothing."
)
TRACK_ID_BAD = Refusal(
    "track_id_bad", "track_id has at most 128 bytes and does not start with provisional: send yours."
)
TEXT_TOO_LONG = Refusal("text_too_long", "title and artist_name have at most 1024 characters each: shorten them.")
PLAYBACK_ID_BAD = Refusal("playback_id_bad", "playback_id has at most 64 bytes: send a short opaque id.")
TEXT_HAS_NUL = Refusal("text_has_nul", "A text contains U+0000: remove it.")


def judge(
    event: PlayEvent,
    *,
    tenant_id: str,
    user_id: str,
    received_at_ms: int,
    catalogue_duration_ms: int | None,
    by_clients_clock: bool,
) -> AcceptedEvent | Refusal:
    """The accepted event, or the first check it failed.

    `by_clients_clock`: the times are those of the client that sent the event just now (live plays); in an import they
    are another service's, and the sender's clock says nothing about them.
    """
    if len(event.event_id) != EVENT_ID_BYTES:
        return EVENT_ID_BAD
    started_at_ms = event.started_at_ms
    if started_at_ms is None:
        return STARTED_AT_MISSING
    if by_clients_clock and event.client_sent_at_ms is not None:
        # The clock that was wrong when the event was sent was as wrong when it started to play.
        skew_ms = received_at_ms - event.client_sent_at_ms
        if not -CLOCK_TOLERANCE_MS <= skew_ms <= CLOCK_TOLERANCE_MS:
            started_at_ms += skew_ms
    if started_at_ms < EARLIEST_MS:
        return STARTED_TOO_EARLY
    if started_at_ms > received_at_ms:
        if started_at_ms > received_at_ms + MAX_AHEAD_MS:
            return STARTED_IN_FUTURE
        started_at_ms = received_at_ms  # nothing starts after it has arrived; the clock runs ahead a little
    if event.played_ms is not None and not 0 <= event.played_ms <= MAX_PLAYED_MS:
        return PLAYED_FOR_BAD
    # Many players say 0 where they do not know the length.
    duration_ms = event.duration_ms or catalogue_duration_ms
    if duration_ms is not None and not 0 < duration_ms <= MAX_DURATION_MS:
        return DURATION_BAD
    playback_id = event.playback_id
    if len(playback_id) > MAX_PLAYBACK_ID_BYTES // 4 and len(playback_id.encode()) > MAX_PLAYBACK_ID_BYTES:
        return PLAYBACK_ID_BAD
    track_id = event.track_id
    if len(event.title) > MAX_TEXT_CODE_POINTS or len(event.artist_name) > MAX_TEXT_CODE_POINTS:
        return TEXT_TOO_LONG
    if "\0" in f"{track_id}{event.title}{event.artist_name}{playback_id}":
        return TEXT_HAS_NUL
    if not track_id:
        title, artist_name = event.title.strip(), event.artist_name.strip()
        if not title or not artist_name:
            return TRACK_UNNAMED
        track_id = provisional_track_id(title, artist_name)
    elif track_id.startswith(PROVISIONAL_PREFIX) or len(track_id.encode()) > MAX_TRACK_ID_BYTES:
        return TRACK_ID_BAD
    return AcceptedEvent(
        tenant_id,
        user_id,
        track_id,
        event.event_id,
        started_at_ms,
        event.played_ms,
        duration_ms,
        playback_id or None,
        received_at_ms,
    )


@dataclass(frozen=True, slots=True)
class Breaker:
    """Tells an invalid event from a wrong deployment: halt a topic before it drains into dead letters.

    It trips at 100 invalid records in a row, or when over 10 % of 1,000 were invalid.
    """

    in_a_row: int = 0
    seen: int = 0
    invalid: int = 0

    def after(self, verdicts: list[bool]) -> "Breaker | None":
        """The breaker after these records (True: valid) in this order; None: it trips at one of them."""
        in_a_row, seen, invalid = self.in_a_row, self.seen, self.invalid
        for valid in verdicts:
            seen += 1
            if valid:
                in_a_row = 0
            else:
                in_a_row += 1
                invalid += 1
            if in_a_row >= 100 or invalid > 100:
                return None
            if seen >= 1000:
                seen = invalid = 0
        return Breaker(in_a_row, seen, invalid)
