"""The inputs that are kept beside a list make the same list again, to the byte."""

import json
import zlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pytest
from meiri.features.v1.user_feature_service_pb2 import UserFeedback
from meiri.feedback.v1.feedback_event_pb2 import FeedbackKind
from meiri.playlist.v1.daily_playlist_pb2 import DailyPlaylist
from structlog.testing import capture_logs
from structlog.typing import EventDict

from services.materialiser.catalogue import Catalogue, catalogue_of
from services.materialiser.clients import Histories, Scored
from services.materialiser.domain import kept
from services.materialiser.inputs import unpack
from services.materialiser.making import EPOCH, Known, listeners_of, make_lists, remake
from services.materialiser.store import MadeList
from shared.codec.state import Tenant, Track
from shared.ids import to_signed, track_key
from shared.recommend.values import Fallback, Popular, Rules

NOW = datetime(2032, 6, 15, 12, 0, 0, 123456, tzinfo=UTC)
TODAY = (NOW.date() - EPOCH).days
USERS = 80


@pytest.fixture
def log_output() -> Iterator[list[EventDict]]:
    with capture_logs() as entries:
        yield entries


def catalogue(tracks: int) -> Catalogue:
    made = [
        Track(
            "aurora",
            f"t-{n}",
            f"Sång {n} 歌",
            f"a-{n // 7}",
            f"Artist {n // 7}",
            f"genre {n // 7 % 5}" if n % 3 else None,
        )
        for n in range(tracks)
    ]
    return catalogue_of({track_key(track.track_id): track for track in made})


def batch(seed: int, *, tracks: int = 500, per_user: int = 60) -> tuple[Known, Scored]:
    """Listeners of all kinds: new ones, heavy ones, some who heard or are offered what the catalogue does not know."""
    rng = np.random.default_rng(seed)
    shelf = catalogue(tracks)
    keys = np.append(shelf.columns.track_key, np.uint64(7))  # one that no catalogue has
    user_ids = [f"u-{n}" for n in range(USERS)]
    heard = [rng.choice(keys, 0 if user % 9 == 0 else rng.integers(1, 60), replace=False) for user in range(USERS)]
    track = np.concatenate(heard)
    plays = rng.integers(1, 2000, len(track)).astype(np.uint32)
    said = [UserFeedback(user_index=user, kind=FeedbackKind.FEEDBACK_KIND_BAN, artist_id="a-3") for user in (2, 3)]
    said += [
        UserFeedback(user_index=user, kind=kind, track_id=f"t-{rng.integers(tracks + 5)}")
        for user in range(USERS)
        for kind in (FeedbackKind.FEEDBACK_KIND_LOVE, FeedbackKind.FEEDBACK_KIND_DISLIKE)
    ]
    histories = Histories(
        np.cumsum([0, *map(len, heard)]),
        track,
        plays,
        rng.integers(0, plays + 1).astype(np.uint32),
        (TODAY - rng.integers(0, 300, len(track))).astype(np.int32),
        said,
    )
    recommended = {
        user_id: [
            (date(2032, 6, 15) - timedelta(days=back), [to_signed(int(key)) for key in rng.choice(keys, 20)])
            for back in range(1, 14, 3)
        ]
        for user_id in user_ids
    }
    dials = [None if user % 4 else round(rng.random(), 3) for user in range(USERS)]
    known = Known(
        tenant=Tenant("aurora"),
        catalogue=shelf,
        rules=Rules(length=20, familiar_share=0.4),
        popular=Popular.of(shelf.columns.rows_of(rng.permutation(keys)[:200]), shelf.columns),
        made_at=NOW,
        trace_id="0123456789abcdef",
        user_ids=user_ids,
        dates=[NOW.date() + timedelta(days=user % 2) for user in range(USERS)],
        listeners=listeners_of(user_ids, histories, recommended, shelf, dials),
    )
    offered = [np.concatenate((own, rng.choice(keys, per_user))) for own in heard]
    row = np.concatenate(offered)
    score = np.round(rng.normal(size=len(row)), 2).astype(np.float32)  # some are equal
    score[rng.random(len(row)) < 0.01] = np.nan
    evidence = np.where(rng.random(len(row)) < 0.8, rng.choice(keys, len(row)), np.uint64(0))
    return known, Scored(np.cumsum([0, *map(len, offered)]), row, np.ones(len(row), np.uint8), score, evidence)


def remade(lists: list[MadeList]) -> list[MadeList]:
    """They, having been made again from nothing but their inputs."""
    for made in lists:
        assert made.inputs is not None
        assert remake(made.inputs) == made.message
    return lists


@pytest.mark.parametrize("seed", range(3))
def test_every_list_of_a_batch_is_made_again_to_the_byte(seed: int) -> None:
    lists = remade(make_lists(*batch(seed), "r1", Fallback.NONE))
    assert len(lists) == USERS
    assert {made.fallback for made in lists} == {Fallback.NONE, Fallback.NO_HISTORY}


@pytest.mark.parametrize("cause", [Fallback.NO_RELEASE, Fallback.EMBEDDER_AWAY])
def test_so_are_the_lists_of_a_batch_that_nobody_scored(cause: Fallback) -> None:
    lists = remade(make_lists(batch(4)[0], None, None, cause))
    assert {made.fallback for made in lists} == {cause}


def test_so_are_lists_that_popular_songs_had_to_fill() -> None:
    lists = remade(make_lists(*batch(5, per_user=3), "r1", Fallback.NONE))
    known, _ = batch(5)
    popular = {known.catalogue.tracks[row].track_id for row in known.popular.row}
    songs = [song for made in lists for song in DailyPlaylist.FromString(made.message).recommendations]
    assert sum(song.track_id in popular for song in songs) > len(songs) / 2


def test_so_are_lists_of_a_catalogue_that_is_too_small() -> None:
    assert remade(make_lists(*batch(6, tracks=70), "r1", Fallback.NONE))


def test_equal_inputs_are_equal_bytes_and_tell_what_made_the_list() -> None:
    made, again = (make_lists(*batch(7), "r1", Fallback.NONE)[2] for _ in range(2))
    assert made.inputs == again.inputs
    told = unpack(made.inputs or b"")
    known, _ = batch(7)
    assert (told.tenant_id, told.user_id, told.trace_id) == ("aurora", "u-2", "0123456789abcdef")
    assert (told.made_at, told.release_id, told.rules) == (NOW, "r1", known.rules)
    listener = known.listeners[2]
    assert told.catalogue.columns.track_key[told.listener.heard_row].tolist() == (
        known.catalogue.columns.track_key[listener.heard_row].tolist()
    )
    assert told.listener.plays.tolist() == listener.plays.tolist()
    assert told.listener.banned_artist.tolist() == listener.banned_artist.tolist()


def test_a_listener_whose_personal_list_fails_gets_a_fallback_that_says_so(log_output: list[EventDict]) -> None:
    known, scored = batch(8)
    lists = make_lists(known, replace(scored, evidence=scored.evidence[:-5]), "r1", Fallback.NONE)
    *others, last = remade(lists)
    assert [made.user_id for made in lists] == list(known.user_ids)
    assert last.fallback == Fallback.PERSONAL_FAILED
    message = DailyPlaylist.FromString(last.message)
    assert len(message.recommendations) == 20
    assert not message.HasField("release_id")
    assert {made.fallback for made in others} == {Fallback.NONE, Fallback.NO_HISTORY}
    told = {"tenant_id": "aurora", "user_id": last.user_id, "exc_info": True, "log_level": "error"}
    assert log_output == [{"event": "list.personal_failed", **told}] * 2  # made again, it fails again


def test_a_listener_for_whom_nothing_works_costs_the_others_nothing(log_output: list[EventDict]) -> None:
    known, scored = batch(9)
    broken = replace(known.listeners[4], heard_row=known.listeners[4].heard_row + 10**6)
    listeners = [*known.listeners[:4], broken, *known.listeners[5:]]
    lists = remade(make_lists(replace(known, listeners=listeners), scored, "r1", Fallback.NONE))
    assert [made.user_id for made in lists] == [*known.user_ids[:4], *known.user_ids[5:]]
    assert [entry["event"] for entry in log_output] == ["list.personal_failed", "list.failed"]


def test_inputs_of_another_version_are_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match="read them with the release that packed them"):
        remake(b"\x02" + zlib.compress(json.dumps({}).encode()))


def test_what_is_old_is_old_in_every_zone() -> None:
    assert kept(datetime(2032, 6, 15, 0, 0, tzinfo=UTC)) == (date(2032, 6, 8), date(2032, 4, 16))
    assert kept(datetime(2032, 6, 15, 23, 59, tzinfo=UTC)) == (date(2032, 6, 8), date(2032, 4, 16))
