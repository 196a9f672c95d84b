"""The limits of the contracts and the refusals both doors share, spelled once: gateway and ingest judge by the same rules."""

import re
from datetime import UTC, datetime
from typing import NamedTuple

TENANT_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
USER_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
EVENT_ID_BYTES = 16
MAX_EVENT_BYTES = 16 * 1024
MAX_TRACK_ID_BYTES = 128
MAX_PLAYBACK_ID_BYTES = 64
MAX_TEXT_CODE_POINTS = 1024
MAX_PLAYED_MS = 24 * 3_600_000
MAX_DURATION_MS = 24 * 24 * 3_600_000
EARLIEST_MS = int(datetime(2002, 10, 1, tzinfo=UTC).timestamp() * 1000)
"""Nothing was played before; what claims it was has its unit or its clock wrong."""
MAX_AHEAD_MS = 3_600_000
"""How far a client's clock may run ahead of the door's."""


class Refusal(NamedTuple):
    """Why something is not taken: a stable snake_case code, and one sentence that says what to do."""

    reason: str
    sentence: str


EVENT_TOO_LARGE = Refusal("event_too_large", "A play event has at most 16 KiB: leave out what is not in the contract.")
EVENT_ID_BAD = Refusal("event_id_bad", "event_id must be 16 bytes, made once per event: send a UUIDv7.")
USER_ID_BAD = Refusal("user_id_bad", "user_id must be 1 to 64 of A-Z, a-z, 0-9, _ and -: send an opaque id, no name.")
STARTED_AT_MISSING = Refusal("started_at_missing", "started_at is required: send when playing started, in UTC.")
TRACK_UNNAMED = Refusal("track_unnamed", "Nothing names the track: send track_id, or both title and artist_name.")


def is_text(value: str) -> bool:
    """Fit to be shown and stored: not blank, 1 to 1024 code points, none of them U+0000 (Postgres cannot store it)."""
    return 0 < len(value) <= MAX_TEXT_CODE_POINTS and "\0" not in value and not value.isspace()


def is_id(value: str) -> bool:
    """Fit to be a track's or an artist's id: 1 to 128 bytes, without U+0000."""
    return 0 < len(value.encode()) <= MAX_TRACK_ID_BYTES and "\0" not in value
