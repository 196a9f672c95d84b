"""What the gateway refuses of tenants, users, tracks and feedback."""

import pytest
from meiri.account.v1.tenant_pb2 import Tenant
from meiri.account.v1.user_pb2 import User
from meiri.catalog.v1.track_pb2 import Tag, Track
from meiri.feedback.v1.feedback_event_pb2 import FeedbackEvent, FeedbackKind
from meiri.feedback.v1.feedback_service_pb2 import SendFeedbackRequest

from services.gateway.domain import refuse_feedback, refuse_tenant, refuse_track, refuse_user
from services.gateway.feedback import Feedback
from shared.clock import Clock
from shared.errors import Permanent
from shared.ids import TenantId, partition_of
from shared.kafka.memory import MemoryLog
from shared.limits import Refusal
from shared.rpc.principal import Principal, Scope, current
from shared.topics import FEEDBACK


def _reason(refusal: Refusal | None) -> str | None:
    return None if refusal is None else refusal.reason


@pytest.mark.parametrize(
    ("tenant", "reason"),
    [
        (Tenant(tenant_id="aurora"), None),
        (Tenant(tenant_id="0-a", zone="Asia/Tokyo", list_length=200, familiar_share=0.0), None),
        (Tenant(tenant_id="a", zone=""), None),
        (Tenant(tenant_id=""), "tenant_id_bad"),
        (Tenant(tenant_id="-a"), "tenant_id_bad"),
        (Tenant(tenant_id="Aurora"), "tenant_id_bad"),
        (Tenant(tenant_id="a|b"), "tenant_id_bad"),
        (Tenant(tenant_id="a\n"), "tenant_id_bad"),
        (Tenant(tenant_id="a" * 41), "tenant_id_bad"),
        (Tenant(tenant_id="a", list_length=0), "list_length_bad"),
        (Tenant(tenant_id="a", list_length=201), "list_length_bad"),
        (Tenant(tenant_id="a", familiar_share=1.1), "familiar_share_bad"),
        (Tenant(tenant_id="a", familiar_share=float("nan")), "familiar_share_bad"),
        (Tenant(tenant_id="a", zone="Mars/Olympus"), "zone_unknown"),
        (Tenant(tenant_id="a", zone="../../etc/passwd"), "zone_unknown"),
    ],
)
def test_tenants(tenant: Tenant, reason: str | None) -> None:
    assert _reason(refuse_tenant(tenant)) == reason


def test_a_wrong_zone_is_told_with_an_example() -> None:
    refusal = refuse_user(User(user_id="u", zone="Berlin"))
    assert refusal is not None
    assert refusal.sentence == "Zone Berlin is not an IANA zone: send one like Europe/Berlin."


@pytest.mark.parametrize("user_id", ["", "a b", "a|b", "ü", "a" * 65, "a\n", "../a"])
def test_user_ids_that_are_none(user_id: str) -> None:
    assert _reason(refuse_user(User(user_id=user_id))) == "user_id_bad"


def _track(**fields: object) -> Track:
    return Track(**{"track_id": "t", "title": "Low Tide", "artist_id": "a", "artist_name": "Glass Heron", **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, None),
        (
            {"genre": "ambient", "tags": [Tag(name="calm", weight=1.0), Tag(name="rain")], "released_on": "2020-02-29"},
            None,
        ),
        ({"track_id": ""}, "track_id_bad"),
        ({"track_id": "ü" * 65}, "track_id_bad"),
        ({"track_id": "provisional:1"}, "track_id_bad"),
        ({"title": "   "}, "title_bad"),
        ({"title": "x" * 1025}, "title_bad"),
        ({"artist_id": ""}, "artist_id_bad"),
        ({"artist_name": "a\0b"}, "artist_name_bad"),
        ({"genre": "\0"}, "genre_bad"),
        ({"tags": [Tag(name="x")] * 51}, "tags_bad"),
        ({"tags": [Tag(name="x" * 65)]}, "tags_bad"),
        ({"tags": [Tag(name="x", weight=0.0)]}, "tags_bad"),
        ({"released_on": "2021-02-29"}, "released_on_bad"),
        ({"released_on": "20210228"}, "released_on_bad"),
    ],
)
def test_tracks(fields: dict[str, object], reason: str | None) -> None:
    assert _reason(refuse_track(_track(**fields))) == reason


def test_a_tracks_length_is_over_zero() -> None:
    track = _track()
    track.duration.FromMilliseconds(0)
    assert _reason(refuse_track(track)) == "duration_bad"


def _feedback(kind: int, **fields: object) -> FeedbackEvent:
    event = FeedbackEvent(event_id=bytes(16), user_id="mira", kind=kind, **fields)  # type: ignore[arg-type]
    event.given_at.seconds = 1_700_000_000
    return event


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (_feedback(FeedbackKind.FEEDBACK_KIND_LOVE, track_id="t"), None),
        (_feedback(FeedbackKind.FEEDBACK_KIND_DISLIKE, track_id="t"), None),
        (_feedback(FeedbackKind.FEEDBACK_KIND_BAN, artist_id="a"), None),
        (_feedback(FeedbackKind.FEEDBACK_KIND_BAN, track_id="t"), None),
        (_feedback(FeedbackKind.FEEDBACK_KIND_UNDO, artist_id="a"), None),
        (_feedback(FeedbackKind.FEEDBACK_KIND_LOVE, artist_id="a"), "kind_for_tracks"),
        (_feedback(FeedbackKind.FEEDBACK_KIND_DISLIKE, artist_id="a"), "kind_for_tracks"),
        (_feedback(FeedbackKind.FEEDBACK_KIND_UNSPECIFIED, track_id="t"), "kind_missing"),
        (_feedback(99, track_id="t"), "kind_missing"),
        (_feedback(FeedbackKind.FEEDBACK_KIND_BAN), "target_bad"),
        (_feedback(FeedbackKind.FEEDBACK_KIND_BAN, track_id=""), "target_bad"),
        (FeedbackEvent(event_id=bytes(16), kind=FeedbackKind.FEEDBACK_KIND_BAN, track_id="t"), "given_at_missing"),
        (FeedbackEvent(event_id=b"", kind=FeedbackKind.FEEDBACK_KIND_BAN, track_id="t"), "event_id_bad"),
    ],
)
def test_feedback(event: FeedbackEvent, reason: str | None) -> None:
    assert _reason(refuse_feedback(event)) == reason


async def test_feedback_lies_under_its_target_in_its_users_partition() -> None:
    log = MemoryLog([FEEDBACK])
    current.set(Principal(TenantId("aurora"), "mira", Scope.USER))
    event = _feedback(FeedbackKind.FEEDBACK_KIND_BAN, artist_id="a-1")
    event.user_id = "tobin"
    event.given_at.seconds = 2**37
    await Feedback(log, Clock()).SendFeedback(SendFeedbackRequest(event=event), None)
    (record,) = log.records(FEEDBACK)
    stored = FeedbackEvent.FromString(record.value or b"")
    assert record.key == b"aurora|mira|artist:a-1"
    assert record.partition == partition_of("aurora", "mira", FEEDBACK.partitions)
    assert stored.user_id == "mira"
    assert stored.given_at == stored.received_at


async def test_feedback_that_cannot_be_meant_is_refused() -> None:
    current.set(Principal(TenantId("aurora"), "mira", Scope.USER))
    request = SendFeedbackRequest(event=_feedback(FeedbackKind.FEEDBACK_KIND_LOVE, artist_id="a-1"))
    with pytest.raises(Permanent, match="tracks only"):
        await Feedback(MemoryLog([FEEDBACK]), Clock()).SendFeedback(request, None)
