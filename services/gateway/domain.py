"""What the door lets in: one check a kind, a refusal or None out. Pure; times are passed in."""

import zoneinfo
from datetime import date
from functools import cache

from meiri.account.v1.tenant_pb2 import Tenant
from meiri.account.v1.user_pb2 import User
from meiri.catalog.v1.track_pb2 import Tag, Track
from meiri.feedback.v1.feedback_event_pb2 import FeedbackEvent, FeedbackKind
from meiri.playback.v1.play_event_pb2 import PlayEvent

from shared.ids import PROVISIONAL_PREFIX
from shared.limits import (
    EVENT_ID_BAD,
    EVENT_ID_BYTES,
    MAX_DURATION_MS,
    STARTED_AT_MISSING,
    TENANT_ID,
    TRACK_UNNAMED,
    USER_ID,
    USER_ID_BAD,
    Refusal,
    is_id,
    is_text,
)

TENANT_ID_BAD = Refusal("tenant_id_bad", "tenant_id must be 1 to 40 of a-z, 0-9 and -, and not begin with -.")
SHARE_BAD = Refusal("familiar_share_bad", "familiar_share must be 0 to 1: send 0.5 for half of the list.")
LENGTH_BAD = Refusal("list_length_bad", "list_length must be 1 to 200 songs.")
TRACK_ID_BAD = Refusal(
    "track_id_bad", "track_id must be 1 to 128 bytes and not begin with provisional: send your own id."
)
TITLE_BAD = Refusal("title_bad", "title must be 1 to 1024 characters, without U+0000.")
ARTIST_ID_BAD = Refusal("artist_id_bad", "artist_id must be 1 to 128 bytes: send your own id of the main artist.")
ARTIST_NAME_BAD = Refusal("artist_name_bad", "artist_name must be 1 to 1024 characters, without U+0000.")
GENRE_BAD = Refusal("genre_bad", "genre must be 1 to 1024 characters, without U+0000, or be left out.")
TAGS_BAD = Refusal(
    "tags_bad", "tags must be at most 50, each of 1 to 64 characters with a weight over 0 and at most 1."
)
RELEASED_ON_BAD = Refusal("released_on_bad", "released_on must be a date like 2024-05-31, or be left out.")
DURATION_BAD = Refusal("duration_bad", "duration must be over 0 and at most 24 days, or be left out.")
KIND_MISSING = Refusal("kind_missing", "kind is required: send love, dislike, ban or undo.")
TARGET_BAD = Refusal("target_bad", "The target must be a track_id or an artist_id of 1 to 128 bytes.")
KIND_FOR_TRACKS = Refusal("kind_for_tracks", "love and dislike are said of tracks only: name a track_id, or send ban.")
GIVEN_AT_MISSING = Refusal("given_at_missing", "given_at is required: send when it was said, in UTC.")

_FOR_TRACKS = (FeedbackKind.FEEDBACK_KIND_LOVE, FeedbackKind.FEEDBACK_KIND_DISLIKE)


def refuse_play(event: PlayEvent) -> Refusal | None:
    """The cheap checks that tell a client at once; ingest makes the others, with the catalogue at hand."""
    if len(event.event_id) != EVENT_ID_BYTES:
        return EVENT_ID_BAD
    if not event.HasField("started_at"):
        return STARTED_AT_MISSING
    if not event.track_id and not (event.title and event.artist_name):
        return TRACK_UNNAMED
    return None


def refuse_tenant(tenant: Tenant) -> Refusal | None:
    if TENANT_ID.fullmatch(tenant.tenant_id) is None:
        return TENANT_ID_BAD
    if tenant.HasField("list_length") and not 1 <= tenant.list_length <= 200:
        return LENGTH_BAD
    return _refuse_zone_or_share(tenant)


def refuse_user(user: User) -> Refusal | None:
    if USER_ID.fullmatch(user.user_id) is None:
        return USER_ID_BAD
    return _refuse_zone_or_share(user)


def _refuse_zone_or_share(settings: Tenant | User) -> Refusal | None:
    if settings.HasField("zone") and settings.zone and settings.zone not in zones():
        shown = settings.zone[:40].encode("ascii", "replace").decode()
        return Refusal("zone_unknown", f"Zone {shown} is not an IANA zone: send one like Europe/Berlin.")
    if settings.HasField("familiar_share") and not 0.0 <= settings.familiar_share <= 1.0:
        return SHARE_BAD
    return None


@cache
def zones() -> frozenset[str]:
    """Every IANA zone this machine knows."""
    return frozenset(zoneinfo.available_timezones())


def refuse_track(track: Track) -> Refusal | None:
    if not is_id(track.track_id) or track.track_id.startswith(PROVISIONAL_PREFIX):
        return TRACK_ID_BAD
    if not is_text(track.title):
        return TITLE_BAD
    if not is_id(track.artist_id):
        return ARTIST_ID_BAD
    if not is_text(track.artist_name):
        return ARTIST_NAME_BAD
    if track.genre and not is_text(track.genre):
        return GENRE_BAD
    if len(track.tags) > 50 or not all(map(_is_tag, track.tags)):
        return TAGS_BAD
    if track.released_on and not _is_date(track.released_on):
        return RELEASED_ON_BAD
    if track.HasField("duration") and not 0 < track.duration.seconds * 1000 + track.duration.nanos // 1_000_000 <= (
        MAX_DURATION_MS
    ):
        return DURATION_BAD
    return None


def _is_tag(tag: Tag) -> bool:
    return is_text(tag.name) and len(tag.name) <= 64 and (not tag.HasField("weight") or 0.0 < tag.weight <= 1.0)


def _is_date(value: str) -> bool:
    try:
        return date.fromisoformat(value).isoformat() == value
    except ValueError:
        return False


def refuse_feedback(event: FeedbackEvent) -> Refusal | None:
    """Of a listener's word; its user was checked before."""
    if len(event.event_id) != EVENT_ID_BYTES:
        return EVENT_ID_BAD
    if event.kind == FeedbackKind.FEEDBACK_KIND_UNSPECIFIED or event.kind not in FeedbackKind.values():
        return KIND_MISSING
    target = event.WhichOneof("target")
    if target is None or not is_id(getattr(event, target)):
        return TARGET_BAD
    if event.kind in _FOR_TRACKS and target != "track_id":
        return KIND_FOR_TRACKS
    if not event.HasField("given_at"):
        return GIVEN_AT_MISSING
    return None
