"""What a listening world is: columns, one object per kind, no behaviour beyond shape checks.

Absent is absent: None in lists, -1 in `played_ms`; zero is never used for "unknown".
"""

from dataclasses import dataclass
from datetime import date

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
EventIds = npt.NDArray[np.uint8]

DAY_MS = 86_400_000


class WorldUnavailable(ValueError):
    """The data of a world cannot be read; the message is one sentence that says what to do."""


@dataclass(frozen=True, slots=True)
class Tracks:
    """One entry per track in every column; `Plays.track` indexes them."""

    track_id: list[str]
    title: list[str]
    artist_id: list[str]
    artist_name: list[str]
    genre: list[str | None]
    tags: list[tuple[tuple[str, float], ...]]  # (tag, weight in (0, 1]), heaviest first; () = none known
    released_on: list[date | None]
    duration_ms: list[int | None]

    def __len__(self) -> int:
        return len(self.track_id)


@dataclass(frozen=True, slots=True)
class Listeners:
    """One entry per listener in every column; `Plays.user` indexes them."""

    user_id: list[str]
    zone: list[str | None]  # IANA name
    taste: list[str]  # one line for a person to read; "" where nothing is known

    def __len__(self) -> int:
        return len(self.user_id)


@dataclass(frozen=True, slots=True)
class Plays:
    """Every play of a tenant, sorted by `started_at_ms`; all columns have length n."""

    user: Int32  # index into Listeners
    track: Int32  # index into Tracks
    started_at_ms: Int64  # Unix milliseconds, UTC
    played_ms: Int64  # -1 = the client did not say
    session: Int32  # dense number, unique within the tenant
    event_id: EventIds  # [n, 16], shaped like UUIDv7 of started_at_ms

    def __len__(self) -> int:
        return len(self.user)

    def where(self, keep: npt.NDArray[np.bool_]) -> "Plays":
        """Keep the plays for which `keep` [n] is true, in the same order."""
        return Plays(
            user=self.user[keep],
            track=self.track[keep],
            started_at_ms=self.started_at_ms[keep],
            played_ms=self.played_ms[keep],
            session=self.session[keep],
            event_id=self.event_id[keep],
        )


@dataclass(frozen=True, slots=True)
class TenantWorld:
    """One app with its own catalogue and listeners."""

    tenant_id: str
    tracks: Tracks
    listeners: Listeners
    plays: Plays


@dataclass(frozen=True, slots=True)
class World:
    """User ids may be equal in two tenants and then mean different people, as in life."""

    tenants: tuple[TenantWorld, ...]


def event_ids(started_at_ms: Int64, rng: np.random.Generator) -> EventIds:
    """[n, 16] UUIDv7 bytes (RFC 9562): 48 bits of time, version 7, variant 10, 74 bits from `rng`."""
    ids = rng.integers(0, 256, size=(len(started_at_ms), 16), dtype=np.uint8)
    ids[:, :6] = started_at_ms.astype(">u8").view(np.uint8).reshape(-1, 8)[:, 2:]
    ids[:, 6] = (ids[:, 6] & 0x0F) | 0x70
    ids[:, 8] = (ids[:, 8] & 0x3F) | 0x80
    return ids
