"""What a batch of new events changes, and where to look for their neighbours."""

import random
from itertools import pairwise

from services.features.domain import by_event_id, by_pair, changes, signed_track_keys, windows, without
from services.features.faust_transport import Consumer
from services.features.handler import without_repeats
from shared.codec.plays import AcceptedEvent
from shared.ids import from_signed, track_key
from shared.kafka.log import TopicPartition
from shared.plays.grouping import NEIGHBOUR_WINDOW_MS, Counts, PlayEventRow, day_counts, group

PAIR = ("aurora", "user-0", 1)
HOUR_MS = 3_600_000


def row(start: int, *, played: int | None = 100_000, playback_id: str | None = None) -> PlayEventRow:
    return PlayEventRow(random.randbytes(16), start, played, 200_000, playback_id, start)


def event(number: int, user: str = "user-0", track: str = "track-0") -> AcceptedEvent:
    return AcceptedEvent("aurora", user, track, bytes([number]) * 16, number, None, None, None, number)


def test_a_play_of_a_new_pair_is_added_whole() -> None:
    new = {PAIR: [row(10 * HOUR_MS)]}
    assert changes(new, {}) == {(*PAIR, 0): Counts(1, 1, 0, 100_000)}


def test_a_part_of_a_known_play_adds_its_time_and_no_play() -> None:
    old = {PAIR: [row(10 * HOUR_MS, played=40_000, playback_id="p")]}
    new = {PAIR: [row(11 * HOUR_MS, played=70_000, playback_id="p")]}
    assert changes(new, old) == {(*PAIR, 0): Counts(0, 1, -1, 70_000)}


def test_an_event_told_by_a_second_route_changes_nothing() -> None:
    start = 10 * HOUR_MS
    assert changes({PAIR: [row(start + 500)]}, {PAIR: [row(start)]}) == {}


def test_windows_cover_every_neighbour_and_do_not_overlap() -> None:
    rng = random.Random(5)
    for _ in range(50):
        starts = [rng.randrange(40 * NEIGHBOUR_WINDOW_MS) for _ in range(rng.randrange(1, 12))]
        found = sorted(windows({PAIR: [row(start) for start in starts]}), key=lambda window: window.from_ms)
        for start in starts:
            assert any(
                w.from_ms <= start - NEIGHBOUR_WINDOW_MS and start + NEIGHBOUR_WINDOW_MS <= w.to_ms for w in found
            )
        assert all(one.to_ms < next_one.from_ms for one, next_one in pairwise(found))


def test_differences_of_windows_add_up_to_a_recount_of_everything() -> None:
    for seed in range(30):
        rng = random.Random(seed)
        rows = [
            row(rng.randrange(20) * 24 * HOUR_MS + rng.randrange(3 * HOUR_MS), playback_id=rng.choice([None, "a", "b"]))
            for _ in range(60)
        ]
        known: list[PlayEventRow] = []
        total: dict[int, Counts] = {}
        while rows:
            size = rng.randrange(1, 9)
            new, rows = rows[:size], rows[size:]
            near = [
                old for old in known if any(w.from_ms <= old.started_at_ms <= w.to_ms for w in windows({PAIR: new}))
            ]
            for (*_, day), counts in changes({PAIR: new}, {PAIR: near} if near else {}).items():
                total[day] = Counts(*map(int.__add__, total.get(day, Counts(0, 0, 0, 0)), counts))
            known += new
        assert {day: counts for day, counts in total.items() if any(counts)} == day_counts(group(known))


def test_known_events_are_left_out_and_pairs_that_have_none_left() -> None:
    keys = signed_track_keys(["track-0", "track-1"])
    assert {from_signed(key) for key in keys.values()} == {track_key("track-0"), track_key("track-1")}
    events = [event(1), event(2), event(3, track="track-1")]
    rows = by_pair(events, keys)
    left = without(rows, by_event_id(by_pair([events[0], events[2]], keys)))
    assert {pair[2]: [row.event_id for row in own] for pair, own in left.items()} == {
        keys["track-0"]: [bytes([2]) * 16]
    }


def test_the_first_of_repeated_events_stays_and_equal_ids_of_two_users_are_two_events() -> None:
    events = [event(1), event(2), event(1, user="user-1"), event(1, track="elsewhere")]
    assert without_repeats(events) == events[:3]


def test_a_hole_is_told_from_a_skipped_record() -> None:
    consumer = Consumer.__new__(Consumer)
    partition = TopicPartition("plays", 0)
    consumer._holes = {partition: {7: 5}}  # the log holds no record 5 and 6
    assert consumer.follows(partition, 4, 4)
    assert consumer.follows(partition, 7, 5)
    assert not consumer.follows(partition, 7, 4)
    assert not consumer.follows(partition, 6, 5)
    consumer.forget_holes(partition, 8)
    assert not consumer.follows(partition, 7, 5)
