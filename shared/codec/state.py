"""The compacted state topics: a tenant's tracks, users and settings, as plain values, and the keys they stand under."""

import zlib
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from meiri.account.v1.tenant_pb2 import Tenant as TenantMessage
from meiri.account.v1.user_pb2 import User as UserMessage
from meiri.catalog.v1.track_pb2 import Tag as TagMessage
from meiri.catalog.v1.track_pb2 import Track as TrackMessage
from meiri.model.v1.model_release_pb2 import ModelRelease as ModelReleaseMessage

DEFAULT_LIST_LENGTH = 30
DEFAULT_FAMILIAR_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Track:
    """A catalogue track. `tags` are (name, weight over 0 to 1); None and () are unknown."""

    tenant_id: str
    track_id: str
    title: str
    artist_id: str
    artist_name: str
    genre: str | None = None
    tags: tuple[tuple[str, float], ...] = ()
    released_on: date | None = None
    duration_ms: int | None = None


@dataclass(frozen=True, slots=True)
class User:
    """A listener's settings; None means the tenant's."""

    tenant_id: str
    user_id: str
    zone: str | None = None
    familiar_share: float | None = None


@dataclass(frozen=True, slots=True)
class Tenant:
    """One app and its settings."""

    tenant_id: str
    zone: str = "UTC"
    list_length: int = DEFAULT_LIST_LENGTH
    familiar_share: float = DEFAULT_FAMILIAR_SHARE


@dataclass(frozen=True, slots=True)
class ModelRelease:
    """The release that serves a tenant from now on."""

    tenant_id: str
    release_id: str
    uri: str
    manifest_sha256: bytes
    released_at: datetime


def track_record_key(tenant_id: str, track_id: str) -> bytes:
    return f"{tenant_id}|{track_id}".encode()


def tenant_record_key(tenant_id: str) -> bytes:
    return tenant_id.encode()


def key_partition(key: bytes, partitions: int) -> int:
    """The partition of a record whose key is not about a user."""
    return zlib.crc32(key) % partitions


def encode_track(track: Track) -> bytes:
    message = TrackMessage(
        tenant_id=track.tenant_id,
        track_id=track.track_id,
        title=track.title,
        artist_id=track.artist_id,
        artist_name=track.artist_name,
        genre=track.genre,
        tags=[TagMessage(name=name, weight=weight) for name, weight in track.tags],
        released_on=None if track.released_on is None else track.released_on.isoformat(),
    )
    if track.duration_ms is not None:
        message.duration.FromMilliseconds(track.duration_ms)
    return message.SerializeToString()


def decode_track(data: bytes) -> Track:
    """Raises google.protobuf DecodeError or ValueError on bytes that are no track."""
    return track_from_message(TrackMessage.FromString(data))


def track_from_message(message: TrackMessage, *, tenant_id: str | None = None) -> Track:
    return Track(
        tenant_id=message.tenant_id if tenant_id is None else tenant_id,
        track_id=message.track_id,
        title=message.title,
        artist_id=message.artist_id,
        artist_name=message.artist_name,
        genre=message.genre if message.HasField("genre") and message.genre else None,
        tags=tuple((tag.name, tag.weight if tag.HasField("weight") else 1.0) for tag in message.tags),
        released_on=date.fromisoformat(message.released_on) if message.released_on else None,
        duration_ms=message.duration.ToMilliseconds() if message.HasField("duration") else None,
    )


def encode_user(user: User) -> bytes:
    return UserMessage(
        tenant_id=user.tenant_id, user_id=user.user_id, zone=user.zone, familiar_share=user.familiar_share
    ).SerializeToString()


def decode_user(data: bytes) -> User:
    return user_from_message(UserMessage.FromString(data))


def user_from_message(message: UserMessage, *, tenant_id: str | None = None) -> User:
    return User(
        tenant_id=message.tenant_id if tenant_id is None else tenant_id,
        user_id=message.user_id,
        zone=message.zone if message.HasField("zone") and message.zone else None,
        familiar_share=message.familiar_share if message.HasField("familiar_share") else None,
    )


def encode_tenant(tenant: Tenant) -> bytes:
    return TenantMessage(
        tenant_id=tenant.tenant_id,
        zone=tenant.zone,
        list_length=tenant.list_length,
        familiar_share=tenant.familiar_share,
    ).SerializeToString()


def decode_tenant(data: bytes) -> Tenant:
    return tenant_from_message(TenantMessage.FromString(data))


def tenant_from_message(message: TenantMessage) -> Tenant:
    return Tenant(
        tenant_id=message.tenant_id,
        zone=message.zone if message.HasField("zone") and message.zone else "UTC",
        list_length=message.list_length if message.HasField("list_length") else DEFAULT_LIST_LENGTH,
        familiar_share=message.familiar_share if message.HasField("familiar_share") else DEFAULT_FAMILIAR_SHARE,
    )


def encode_release(release: ModelRelease) -> bytes:
    message = ModelReleaseMessage(
        tenant_id=release.tenant_id,
        release_id=release.release_id,
        uri=release.uri,
        manifest_sha256=release.manifest_sha256,
    )
    message.released_at.FromDatetime(release.released_at)
    return message.SerializeToString()


def decode_release(data: bytes) -> ModelRelease:
    message = ModelReleaseMessage.FromString(data)
    released_at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=message.released_at.ToMicroseconds())
    return ModelRelease(message.tenant_id, message.release_id, message.uri, message.manifest_sha256, released_at)
