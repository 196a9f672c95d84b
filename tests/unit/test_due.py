"""Each playlist date begins once, in order, in every zone, and has one due instant."""

from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from services.materialiser.domain import begins_at, due_now, next_due, playlist_date, zone_of

MIDNIGHT = time(0)
ZONES = [
    "Africa/Cairo",
    "America/Havana",
    "America/Santiago",
    "Asia/Beirut",
    "Atlantic/Azores",
    "Pacific/Kiritimati",
    "Pacific/Pago_Pago",
    "Asia/Kathmandu",
    "Australia/Lord_Howe",
    "Africa/Casablanca",
    "Europe/Berlin",
    "America/Los_Angeles",
    "UTC",
]
DAY_STARTS = [MIDNIGHT, time(0, 30), time(2, 30), time(4), time(23, 45)]


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize("name", ZONES)
@pytest.mark.parametrize("day_start", DAY_STARTS)
def test_a_year_of_dates_has_one_due_instant_each_and_they_strictly_increase(name: str, day_start: time) -> None:
    zone, lead = ZoneInfo(name), timedelta(hours=1)
    dues = []
    day = date(2025, 12, 31)
    while day < date(2027, 1, 1):
        dues.append(next_due(day, zone, day_start, lead))
        day = dues[-1].playlist_date
    assert [due.playlist_date for due in dues] == [date(2026, 1, 1) + timedelta(days=n) for n in range(366)]
    for before, after in pairwise(dues):
        assert timedelta(hours=22) < after.at - before.at < timedelta(hours=26)


@pytest.mark.parametrize("name", ZONES)
@pytest.mark.parametrize("day_start", DAY_STARTS)
def test_through_a_year_the_date_changes_exactly_at_its_beginning_and_never_goes_back(
    name: str, day_start: time
) -> None:
    zone = ZoneInfo(name)
    for n in range(366):
        day = date(2026, 1, 1) + timedelta(days=n)
        begins = begins_at(day, zone, day_start)
        assert playlist_date(begins - timedelta(seconds=1), zone, day_start) == day - timedelta(days=1)
        for minutes in (0, 20, 50, 80, 110):  # a clock put back shows the same hour again
            assert playlist_date(begins + timedelta(minutes=minutes), zone, day_start) == day


@pytest.mark.parametrize(
    ("name", "day", "begins"),
    [
        ("Africa/Cairo", date(2026, 4, 24), "2026-04-23T22:00"),  # 00:00 is skipped: the date begins at 01:00
        ("America/Havana", date(2026, 3, 8), "2026-03-08T05:00"),
        ("America/Santiago", date(2026, 9, 6), "2026-09-06T04:00"),
        ("Asia/Beirut", date(2026, 3, 29), "2026-03-28T22:00"),
        ("Atlantic/Azores", date(2026, 3, 29), "2026-03-29T01:00"),
        ("America/Havana", date(2026, 11, 1), "2026-11-01T04:00"),  # 00:00 comes twice: the first
        ("Atlantic/Azores", date(2026, 10, 25), "2026-10-25T00:00"),
    ],
)
def test_a_date_whose_midnight_is_skipped_or_comes_twice_begins_once(name: str, day: date, begins: str) -> None:
    zone = ZoneInfo(name)
    assert begins_at(day, zone, MIDNIGHT) == utc(begins)
    assert playlist_date(utc(begins), zone, MIDNIGHT) == day
    assert playlist_date(utc(begins) - timedelta(seconds=1), zone, MIDNIGHT) == day - timedelta(days=1)


def test_the_date_stays_when_the_clock_goes_back_over_the_start_of_the_day() -> None:
    zone, half_past = ZoneInfo("America/Havana"), time(0, 30)
    assert playlist_date(utc("2026-11-01T04:30"), zone, half_past) == date(2026, 11, 1)
    assert playlist_date(utc("2026-11-01T05:10"), zone, half_past) == date(2026, 11, 1)  # the second 00:10


def test_listeners_all_round_the_world_have_their_own_date() -> None:
    now = utc("2026-01-10T10:30")
    dates = {
        name: playlist_date(now, ZoneInfo(name), MIDNIGHT)
        for name in ("Pacific/Kiritimati", "Pacific/Pago_Pago", "Asia/Kathmandu")
    }
    assert dates == {
        "Pacific/Kiritimati": date(2026, 1, 11),
        "Pacific/Pago_Pago": date(2026, 1, 9),
        "Asia/Kathmandu": date(2026, 1, 10),
    }


def test_a_date_that_a_zone_left_out_has_no_list() -> None:
    zone = ZoneInfo("Pacific/Apia")
    assert next_due(date(2011, 12, 29), zone, MIDNIGHT, timedelta(0)).playlist_date == date(2011, 12, 31)
    assert playlist_date(utc("2011-12-30T09:59:59"), zone, MIDNIGHT) == date(2011, 12, 29)
    assert playlist_date(utc("2011-12-30T10:00"), zone, MIDNIGHT) == date(2011, 12, 31)


def test_the_list_is_due_by_the_lead_before_its_date_begins() -> None:
    berlin, lead = ZoneInfo("Europe/Berlin"), timedelta(hours=2)
    due = due_now(utc("2026-06-01T20:00"), berlin, MIDNIGHT, lead)
    assert due == (date(2026, 6, 2), utc("2026-06-01T20:00"))
    assert due_now(utc("2026-06-01T19:59:59"), berlin, MIDNIGHT, lead).playlist_date == date(2026, 6, 1)


def test_after_an_outage_only_the_list_of_today_is_due() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    assert due_now(utc("2026-06-09T08:00"), berlin, MIDNIGHT, timedelta(0)).playlist_date == date(2026, 6, 9)


def test_a_traveller_to_the_west_gets_no_date_twice() -> None:
    made = playlist_date(utc("2026-06-01T12:00"), ZoneInfo("Pacific/Auckland"), MIDNIGHT)
    assert made == date(2026, 6, 2)
    due = next_due(made, ZoneInfo("America/Los_Angeles"), MIDNIGHT, timedelta(0))
    assert due == (date(2026, 6, 3), utc("2026-06-03T07:00"))


@pytest.mark.parametrize(
    "name", [None, "", "Mars/Olympus", "America", "../etc/passwd", "/etc/localtime", "\0", "a" * 999]
)
def test_an_unknown_zone_is_the_tenants(name: str | None) -> None:
    assert zone_of(name, ZoneInfo("Europe/Berlin")) == ZoneInfo("Europe/Berlin")


def test_a_known_zone_is_the_listeners() -> None:
    assert zone_of("Africa/Cairo", ZoneInfo("UTC")).key == "Africa/Cairo"
