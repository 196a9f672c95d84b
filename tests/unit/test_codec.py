"""What the codecs encode, they decode; what is absent stays absent."""

from datetime import UTC, date, datetime

import pytest

from shared.codec.plays import AcceptedEvent, decode_plays, encode_plays
from shared.codec.state import (
    ModelRelease,
    Tenant,
    Track,
    User,
    decode_release,
    decode_tenant,
    decode_track,
    decode_user,
    encode_release,
    encode_tenant,
    encode_track,
    encode_user,
)
from shared.errors import Permanent

EVENTS = [
    AcceptedEvent(
        "aurora", "u-1", "t-1", bytes(range(16)), 1_700_000_000_000, 200_000, 210_000, "p-1", 1_700_000_300_000
    ),
    AcceptedEvent("birch", "u-1", "t-1", bytes(16), 1_700_000_000_001, None, None, None, 1_700_000_300_001),
    AcceptedEvent("aurora", "u-2", "provisional:ab", b"\xff" * 16, 0, 0, 1, "p-1", 1),
]


def test_a_batch_of_events_comes_back_equal() -> None:
    assert decode_plays(encode_plays(EVENTS)) == EVENTS


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_cut_batch_is_refused_and_not_half_read(cut: int) -> None:
    with pytest.raises(Permanent):
        decode_plays(encode_plays(EVENTS)[:-cut])


def test_states_come_back_equal_and_the_absent_stays_absent() -> None:
    full = Track("a", "t", "Low Tide", "x", "Glass Heron", "ambient", (("calm", 0.5),), date(2020, 2, 29), 212_000)
    bare = Track("a", "t", "Low Tide", "x", "Glass Heron")
    assert [decode_track(encode_track(track)) for track in (full, bare)] == [full, bare]
    users = [User("a", "u", "Pacific/Kiritimati", 0.25), User("a", "u"), User("a", "u", None, 0.0)]
    assert [decode_user(encode_user(user)) for user in users] == users
    assert decode_tenant(encode_tenant(Tenant("a", "Asia/Tokyo", 12, 0.0))) == Tenant("a", "Asia/Tokyo", 12, 0.0)
    release = ModelRelease("a", "r", "file:///r", b"\x01" * 32, datetime(2026, 1, 2, 3, 4, 5, 678901, UTC))
    assert decode_release(encode_release(release)) == release
