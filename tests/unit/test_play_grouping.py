"""Play events of one user and one track become plays."""

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from shared.plays.grouping import (
    DAY_MS,
    NEIGHBOUR_WINDOW_MS,
    Counts,
    Play,
    PlayEventRow,
    day_counts,
    group,
    is_listen,
)

NOON = 20_000 * DAY_MS + DAY_MS // 2
SECOND = 1_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE


def event(
    number: int,
    start: int,
    played: int | None = None,
    duration: int | None = None,
    playback: str | None = None,
) -> PlayEventRow:
    return PlayEventRow(number.to_bytes(16, "big"), start, played, duration, playback, start + SECOND)


def ids(*numbers: int) -> tuple[bytes, ...]:
    return tuple(number.to_bytes(16, "big") for number in numbers)


def test_nothing_gives_no_play() -> None:
    assert group([]) == []


def test_one_event_is_one_play() -> None:
    assert group([event(1, NOON, 200_000, 240_000)]) == [Play(NOON, 200_000, 240_000, True, False, ids(1))]


def test_the_same_event_three_times_is_one_play() -> None:
    once = event(1, NOON, 212_000, 212_000)
    assert group([once, once, once]) == group([once])


def test_two_routes_with_one_start_are_one_play_and_the_known_time_counts() -> None:
    plays = group([event(1, NOON, 273_000, 273_000), event(9, NOON)])
    assert plays == [Play(NOON, 273_000, 273_000, True, False, ids(1, 9))]


def test_two_devices_that_report_one_play_three_seconds_apart_are_one_play() -> None:
    plays = group([event(1, NOON + 2 * SECOND, 198_000, 198_000), event(2, NOON + 5 * SECOND, 198_000, 198_000)])
    assert [play.played_ms for play in plays] == [198_000]


def test_pause_and_resume_parts_of_one_playback_add_up() -> None:
    parts = [
        event(1, NOON, 70_000, 240_000, "pb-44"),
        event(2, NOON + 6 * MINUTE, 90_000, 240_000, "pb-44"),
        event(3, NOON + 20 * MINUTE, 80_000, 240_000, "pb-44"),
    ]
    assert group(parts) == [Play(NOON, 240_000, 240_000, True, False, ids(1, 2, 3))]


def test_a_part_told_again_under_a_new_event_id_does_not_add_up() -> None:
    parts = [event(1, NOON, 60_000, 240_000, "pb"), event(2, NOON, 60_000, 240_000, "pb")]
    (play,) = group(parts)
    assert (play.played_ms, play.skip) == (60_000, True)


def test_another_route_beside_the_parts_does_not_add_up() -> None:
    parts = [event(1, NOON, 70_000, 240_000, "pb"), event(2, NOON + 6 * MINUTE, 90_000, 240_000, "pb")]
    relay = event(3, NOON + SECOND, 75_000, 240_000)
    (play,) = group([relay, *parts])
    assert play.played_ms == 160_000


def test_a_loop_of_passes_that_touch_stays_as_many_plays() -> None:
    passes = [event(n, NOON + n * 180 * SECOND, 180_000, 180_000) for n in range(5)]
    assert len(group(passes)) == 5


def test_passes_that_overlap_by_the_clock_error_of_two_seconds_stay_separate() -> None:
    assert len(group([event(1, NOON, 180_000, 180_000), event(2, NOON + 178 * SECOND, 180_000, 180_000)])) == 2
    assert len(group([event(1, NOON, 180_000, 180_000), event(2, NOON + 178 * SECOND - 1, 180_000, 180_000)])) == 1


def test_parts_of_one_playback_more_than_a_day_apart_are_two_plays() -> None:
    assert len(group([event(1, NOON, 70_000, 240_000, "pb"), event(2, NOON + DAY_MS, 90_000, 240_000, "pb")])) == 1
    assert len(group([event(1, NOON, 70_000, 240_000, "pb"), event(2, NOON + DAY_MS + 1, 90_000, 240_000, "pb")])) == 2


def test_a_play_inside_the_pause_of_another_playback_is_its_own_play() -> None:
    plays = group(
        [
            event(1, NOON, 70_000, 240_000, "pb"),
            event(2, NOON + 2 * HOUR, 240_000, 240_000),
            event(3, NOON + 4 * HOUR, 100_000, 240_000, "pb"),
        ]
    )
    assert [play.event_ids for play in plays] == [ids(1, 3), ids(2)]


def test_a_bot_that_starts_a_song_every_minute_for_a_week_has_one_play_a_day() -> None:
    plays = group([event(n, 20_000 * DAY_MS + n * MINUTE, 240_000, 240_000) for n in range(7 * 24 * 60)])
    assert len(plays) == 7
    assert day_counts(plays)[20_003] == Counts(1, 1, 0, 240_000)


def test_one_event_id_with_two_contents_counts_as_the_one_received_first() -> None:
    first, second = event(1, NOON, 30_000, 240_000), event(1, NOON + HOUR, 240_000, 240_000)
    assert group([second, first]) == group([first, second]) == group([first])


def test_the_listen_rule() -> None:
    assert is_listen(120_000, 240_000)
    assert not is_listen(119_999, 240_000)
    assert is_listen(240_000, 3_600_000)
    assert not is_listen(239_999, 3_600_000)
    assert is_listen(30_000, None)
    assert not is_listen(29_999, None)
    assert is_listen(20_000, 20_000)
    assert is_listen(None, 240_000)
    assert is_listen(None, None)
    assert not is_listen(0, 240_000)


def test_a_day_counts_time_up_to_the_length_of_the_track_and_a_play_belongs_to_the_day_of_its_start() -> None:
    midnight = 20_001 * DAY_MS
    plays = group(
        [
            event(1, midnight - MINUTE, 240_000, 240_000),
            event(2, midnight + HOUR, 900_000, 240_000),
            event(3, midnight + 2 * HOUR, 5_000, 240_000),
            event(4, midnight + 3 * HOUR),
        ]
    )
    assert day_counts(plays) == {20_000: Counts(1, 1, 0, 240_000), 20_001: Counts(3, 2, 1, 245_000)}


LENGTHS = st.none() | st.sampled_from([0, 1_500, 3_000, 200_000, 6 * HOUR, 23 * HOUR, DAY_MS, 20 * DAY_MS])
STARTS = st.builds(
    lambda day, hour, jitter: 20_000 * DAY_MS + day * DAY_MS + hour * HOUR + jitter,
    st.integers(0, 12),
    st.sampled_from([0, 1, 12, 23]),
    st.sampled_from([0, 1, 1_999, 2_000, 2_001, 199_000]),
)
EVENTS = st.lists(
    st.builds(
        PlayEventRow,
        st.integers(0, 60).map(lambda n: n.to_bytes(16, "big")),
        STARTS,
        LENGTHS,
        LENGTHS,
        st.sampled_from([None, None, None, "a", "b"]),
        st.integers(0, 3),
    ),
    max_size=30,
)


@given(events=EVENTS, seed=st.integers())
@settings(max_examples=150, deadline=None)
def test_any_order_and_any_repeats_give_the_identical_plays(events: list[PlayEventRow], seed: int) -> None:
    chance = random.Random(seed)
    shuffled = events + chance.choices(events, k=len(events)) if events else []
    chance.shuffle(shuffled)
    plays = group(events)
    assert group(shuffled) == plays
    assert day_counts(group(shuffled)) == day_counts(plays)


@given(events=EVENTS)
@settings(max_examples=100, deadline=None)
def test_every_event_is_in_exactly_one_play_and_no_play_is_longer_than_a_day(events: list[PlayEventRow]) -> None:
    plays = group(events)
    assert sorted(i for play in plays for i in play.event_ids) == sorted({row.event_id for row in events})
    starts: dict[bytes, set[int]] = {}
    for row in events:
        starts.setdefault(row.event_id, set()).add(row.started_at_ms)
    for play in plays:
        assert all(min(starts[i]) <= play.started_at_ms + DAY_MS for i in play.event_ids)


def difference(after: list[Play], before: list[Play]) -> dict[Play, int]:
    change = Counter(after)
    change.subtract(before)
    return {play: count for play, count in change.items() if count}


@given(events=EVENTS, touched=st.integers(1, 4), seed=st.integers())
@settings(max_examples=300, deadline=None)
def test_deriving_from_the_window_around_the_touched_events_equals_deriving_from_everything(
    events: list[PlayEventRow], touched: int, seed: int
) -> None:
    everything = list({row.event_id: row for row in events}.values())
    random.Random(seed).shuffle(everything)
    new, old = everything[:touched], everything[touched:]
    window = [
        row for row in old if any(abs(row.started_at_ms - fresh.started_at_ms) <= NEIGHBOUR_WINDOW_MS for fresh in new)
    ]
    assert difference(group(old + new), group(old)) == difference(group(window + new), group(window))


def test_the_window_is_as_wide_as_the_furthest_neighbour_that_decides() -> None:
    new = event(
        1, NOON, DAY_MS
    )  # reaches the next, whose playback goes on a day later, where a third event makes a chain
    old = [
        event(2, NOON + 23 * HOUR, 60_000, None, "pb"),
        event(3, NOON + 47 * HOUR, DAY_MS, None, "pb"),
        event(4, NOON + 70 * HOUR, 60_000),
    ]
    whole = difference(group([*old, new]), group(old))
    assert whole != difference(group([*old[:2], new]), group(old[:2]))
    assert abs(old[-1].started_at_ms - NOON) <= NEIGHBOUR_WINDOW_MS
