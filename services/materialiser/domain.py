"""When a listener's playlist date begins, when its list is due and how long it is kept. Pure: instants in, instants out.

A playlist date begins when the clock in the listener's zone first shows the tenant's start of the day on that date.
Where clocks are put forward over that time, it begins as long after the jump as the time lies inside the gap (with the
jump, where the time is the gap's beginning); where they show it twice, at the first. So each date begins exactly once,
in order, whatever the zone does, and a playlist date never goes back. A date that a zone left out altogether (Samoa,
2011-12-30) begins with the next one and never is a playlist date.
"""

from datetime import UTC, date, datetime, time, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

_DAY = timedelta(days=1)
INPUTS_KEPT = timedelta(days=7)
LISTS_KEPT = timedelta(days=60)
"""More than the window in which what was recommended is not recommended again."""


class Due(NamedTuple):
    """`playlist_date`'s list should be there at its beginning, so it is made from `at` on (UTC)."""

    playlist_date: date
    at: datetime


def zone_of(name: str | None, default: ZoneInfo) -> ZoneInfo:
    """The IANA zone of that name; the tenant's where it is absent or no zone, so that nobody goes without a list."""
    if not name:
        return default
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError):  # unknown; no valid key; a folder of zones, such as "America"
        return default


def begins_at(playlist_date: date, zone: ZoneInfo, day_start: time) -> datetime:
    """The instant (UTC) at which that date begins."""
    return datetime.combine(playlist_date, day_start, zone).astimezone(UTC)


def playlist_date(now: datetime, zone: ZoneInfo, day_start: time) -> date:
    """The date that the listener lives at `now` (an aware datetime)."""
    day = now.astimezone(zone).date() + _DAY  # a clock put back may show a date that had ended
    while begins_at(day, zone, day_start) > now:
        day -= _DAY
    return day


def due_now(now: datetime, zone: ZoneInfo, day_start: time, lead: timedelta) -> Due:
    """The newest list that should have been made by `now`.

    After an outage it is the only one to make: the days between are gone.
    """
    day = playlist_date(now + lead, zone, day_start)
    return Due(day, begins_at(day, zone, day_start) - lead)


def next_due(made: date, zone: ZoneInfo, day_start: time, lead: timedelta) -> Due:
    """The list after that of `made`, which may have been made in another zone.

    Each date has exactly one due instant, and they ascend with the dates.
    """
    day = made + _DAY
    while begins_at(day + _DAY, zone, day_start) <= begins_at(day, zone, day_start):
        day += _DAY  # this date does not exist here
    return Due(day, begins_at(day, zone, day_start) - lead)


class Kept(NamedTuple):
    """The first playlist dates of which inputs, and lists, are still kept."""

    inputs_from: date
    lists_from: date


def kept(now: datetime) -> Kept:
    """What is of an earlier date is old in every zone: such a date began at least so many days ago."""
    today = now.astimezone(UTC).date()
    return Kept(today - INPUTS_KEPT, today - LISTS_KEPT)
