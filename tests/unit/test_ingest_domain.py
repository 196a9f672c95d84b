"""What ingest accepts, corrects and refuses."""

from datetime import UTC, datetime

import pytest

from services.ingest.domain import Breaker, judge
from shared.codec.play_events import PlayEvent
from shared.codec.plays import AcceptedEvent
from shared.ids import provisional_track_id
from shared.limits import Refusal

HOUR_MS = 3_600_000
RECEIVED_MS = int(datetime(2026, 3, 11, 18, tzinfo=UTC).timestamp() * 1000)
PLAYED = PlayEvent(
    event_id=bytes(range(16)),
    user_id="",
    track_id="t-1",
    title="Low Tide",
    artist_name="Glass Heron",
    started_at_ms=RECEIVED_MS - 300_000,
    played_ms=200_000,
    duration_ms=212_000,
    playback_id="p-1",
    client_sent_at_ms=None,
    received_at_ms=None,
)


def _judge(event: PlayEvent, *, catalogue_ms: int | None = None, live: bool = True) -> AcceptedEvent | Refusal:
    return judge(
        event,
        tenant_id="aurora",
        user_id="u-1",
        received_at_ms=RECEIVED_MS,
        catalogue_duration_ms=catalogue_ms,
        by_clients_clock=live,
    )


def _accepted(event: PlayEvent, *, catalogue_ms: int | None = None, live: bool = True) -> AcceptedEvent:
    verdict = _judge(event, catalogue_ms=catalogue_ms, live=live)
    assert isinstance(verdict, AcceptedEvent), verdict
    return verdict


def test_a_good_event_is_accepted_as_it_is() -> None:
    assert _accepted(PLAYED) == AcceptedEvent(
        "aurora", "u-1", "t-1", bytes(range(16)), RECEIVED_MS - 300_000, 200_000, 212_000, "p-1", RECEIVED_MS
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"event_id": b""}, "event_id_bad"),
        ({"event_id": bytes(17)}, "event_id_bad"),
        ({"started_at_ms": None}, "started_at_missing"),
        ({"started_at_ms": 1_772_438_400}, "started_too_early"),
        ({"started_at_ms": RECEIVED_MS + HOUR_MS + 1}, "started_in_future"),
        ({"played_ms": -201_235}, "played_for_bad"),
        ({"played_ms": 24 * HOUR_MS + 1}, "played_for_bad"),
        ({"duration_ms": -1}, "track_duration_bad"),
        ({"duration_ms": 24 * 24 * HOUR_MS + 1}, "track_duration_bad"),
        ({"track_id": "", "title": " "}, "track_unnamed"),
        ({"track_id": "", "artist_name": ""}, "track_unnamed"),
        ({"track_id": "ü" * 65}, "track_id_bad"),
        ({"track_id": "provisional:ab"}, "track_id_bad"),
        ({"title": "x" * 1025}, "text_too_long"),
        ({"title": "\0Low Tide"}, "text_has_nul"),
        ({"playback_id": "a\0"}, "text_has_nul"),
        ({"playback_id": "ü" * 33}, "playback_id_bad"),
    ],
)
def test_a_faulty_event_is_refused_with_its_reason(change: dict[str, object], reason: str) -> None:
    verdict = _judge(PLAYED._replace(**change))  # type: ignore[arg-type]
    assert isinstance(verdict, Refusal)
    assert verdict.reason == reason


@pytest.mark.parametrize(
    "change",
    [
        {"played_ms": 0},
        {"played_ms": 24 * HOUR_MS},
        {"title": "x" * 1024},
        {"track_id": "ü" * 64},
        {"playback_id": "x" * 64},
        {"started_at_ms": 1_033_430_400_000},
    ],
)
def test_the_limits_themselves_are_accepted(change: dict[str, object]) -> None:
    _accepted(PLAYED._replace(**change))  # type: ignore[arg-type]


def test_what_is_absent_stays_absent() -> None:
    bare = _accepted(PLAYED._replace(played_ms=None, duration_ms=None, playback_id=""))
    assert (bare.played_ms, bare.duration_ms, bare.playback_id) == (None, None, None)


def test_a_length_of_zero_means_unknown_and_the_catalogue_tells_it() -> None:
    assert _accepted(PLAYED._replace(duration_ms=0)).duration_ms is None
    assert _accepted(PLAYED._replace(duration_ms=0), catalogue_ms=200).duration_ms == 200
    assert _accepted(PLAYED, catalogue_ms=200).duration_ms == 212_000


def test_a_clock_that_runs_a_little_ahead_is_cut_to_the_arrival() -> None:
    assert _accepted(PLAYED._replace(started_at_ms=RECEIVED_MS + HOUR_MS)).started_at_ms == RECEIVED_MS


def test_a_device_clock_that_was_reset_is_corrected() -> None:
    at_nine = int(datetime(2009, 9, 1, 9, 14, tzinfo=UTC).timestamp() * 1000)
    at_ten = int(datetime(2009, 9, 1, 10, tzinfo=UTC).timestamp() * 1000)
    corrected = _accepted(PLAYED._replace(started_at_ms=at_nine, client_sent_at_ms=at_ten))
    assert corrected.started_at_ms == int(datetime(2026, 3, 11, 17, 14, tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize("skew_ms", [48 * HOUR_MS, -48 * HOUR_MS, 10 * 365 * 24 * HOUR_MS, -RECEIVED_MS])
def test_any_clock_fault_is_corrected_when_the_client_says_when_it_sent(skew_ms: int) -> None:
    event = PLAYED._replace(started_at_ms=RECEIVED_MS - 300_000 + skew_ms, client_sent_at_ms=RECEIVED_MS + skew_ms)
    assert _accepted(event).started_at_ms == RECEIVED_MS - 300_000


def test_a_small_difference_is_delivery_and_changes_nothing() -> None:
    event = PLAYED._replace(client_sent_at_ms=RECEIVED_MS - 120_000)
    assert _accepted(event).started_at_ms == PLAYED.started_at_ms


def test_the_senders_clock_says_nothing_about_an_imports_times() -> None:
    event = PLAYED._replace(client_sent_at_ms=RECEIVED_MS - 5 * HOUR_MS)
    assert _accepted(event, live=False).started_at_ms == PLAYED.started_at_ms


def test_a_track_without_id_is_provisional_by_its_names() -> None:
    first = _accepted(PLAYED._replace(track_id=""))
    assert first.track_id == provisional_track_id("Low Tide", "Glass Heron")
    assert _accepted(PLAYED._replace(track_id="", title="  LOW TIDE ")).track_id == first.track_id


def test_the_breaker_trips_at_a_hundred_invalid_in_a_row() -> None:
    ninety_nine = Breaker().after([False] * 99)
    assert ninety_nine is not None
    assert ninety_nine.after([False]) is None
    assert ninety_nine.after([True]) == Breaker(in_a_row=0, seen=100, invalid=99)


def test_the_breaker_trips_over_ten_per_cent_of_a_thousand() -> None:
    mixed = [index % 8 != 0 for index in range(1000)]
    assert Breaker().after(mixed) is None
    assert Breaker().after([index % 10 != 0 for index in range(1000)]) is not None


def test_one_per_cent_invalid_never_trips_the_breaker() -> None:
    breaker: Breaker | None = Breaker()
    for _ in range(100):
        assert breaker is not None
        breaker = breaker.after([index != 7 for index in range(100)])
