"""The names of things: identifier types, and how keys, partitions and content ids are computed from them."""

import secrets
import zlib
from hashlib import blake2b
from typing import NewType

TenantId = NewType("TenantId", str)
TrackId = NewType("TrackId", str)
TrackKey = NewType("TrackKey", int)
"""Unsigned 64-bit hash of a track id, the track's name inside columns."""
EventId = NewType("EventId", bytes)
"""Exactly 16 bytes: a UUIDv7 made by the client, or a content hash where the client has none."""

PROVISIONAL_PREFIX = "provisional:"


def track_key(track_id: str) -> TrackKey:
    return TrackKey(int.from_bytes(blake2b(track_id.encode(), digest_size=8).digest(), "little"))


def to_signed(key: int) -> int:
    """Postgres has no unsigned bigint: the same 64 bits, read as signed."""
    return key - (1 << 64) if key >= 1 << 63 else key


def from_signed(value: int) -> TrackKey:
    return TrackKey(value + (1 << 64) if value < 0 else value)


def user_topic_key(tenant_id: str, user_id: str) -> bytes:
    return f"{tenant_id}|{user_id}".encode()


def partition_of(tenant_id: str, user_id: str, partitions: int) -> int:
    """The partition of every record about a user, in every topic keyed by tenant|user: crc32, which any client has."""
    return zlib.crc32(user_topic_key(tenant_id, user_id)) % partitions


def provisional_track_id(title: str, artist: str) -> TrackId:
    """A deterministic id for a track that is heard but not in the catalogue."""
    digest = blake2b("\x1f".join((title.strip().casefold(), artist.strip().casefold())).encode(), digest_size=16)
    return TrackId(PROVISIONAL_PREFIX + digest.hexdigest())


def new_event_id(now_ms: int) -> EventId:
    """A UUIDv7: 48 bits of unix milliseconds, then random bits (RFC 9562)."""
    random = bytearray(secrets.token_bytes(10))
    random[0] = 0x70 | random[0] & 0x0F
    random[2] = 0x80 | random[2] & 0x3F
    return EventId(now_ms.to_bytes(6, "big") + bytes(random))
