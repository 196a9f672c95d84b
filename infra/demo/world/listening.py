"""Who heard what when: sessions in local time, discoveries from taste, favourites that wear out and come back.

A listener keeps a shelf of songs. Each has a standing (how loved, less by 1 in `FADE_DAYS`) and wear (`WEAR` more with
each play, half gone after `REST_DAYS` of rest); the pull of a song is 2 ** (standing - wear). So a new love is played
often, wears out, and returns after a rest, until newer loves push it off the shelf.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from infra.demo.world.catalogue import Catalogue
from infra.demo.world.listeners import CIRCLE, TASTES, People, utc_offsets_ms
from infra.demo.world.model import DAY_MS, Int64, Plays, event_ids
from infra.demo.world.sampling import draw, rows_cdf, spans

SHELF = 48
FADE_DAYS = 40.0
REST_DAYS = 8.0
WEAR = 0.5
CHOICES = 3  # discoveries to choose from, so that a session need not play a song twice
SESSION_MEDIAN, SESSION_SIGMA, SESSION_MAX = 8.0, 0.97, 150  # set D: p50 8, p90 25, p99 78
GAP_MS = 30 * 60_000  # two sessions of a listener are further apart than this

CIRCLE_PICK, SCENE_PICK, CHART_PICK = 0, 1, 2
SOURCES = (0.80, 0.12, 0.08)  # own circle, a neighbour in a loved style, the tenant's charts


@dataclass(frozen=True, slots=True)
class _Sessions:
    user: Int64  # [S], rising
    start_ms: Int64  # [S], rising within a user
    length: Int64  # [S] plays
    taste: Int64  # [S] which of the user's genres it is about


def play(people: People, catalogue: Catalogue, begin: datetime, until: datetime, rng: np.random.Generator) -> Plays:
    """All plays of a tenant that end before `until`, sorted by time."""
    sessions = _sessions(people, begin, until, rng)
    session, place = spans(sessions.length)
    user = sessions.user[session]
    candidate, source = _discoveries(people, catalogue, sessions, session, rng)
    heard = _listen(people, sessions, session=session, candidate=candidate, source=source, begin=begin, rng=rng)

    length = catalogue.length_ms[heard.track]
    skipped_after = rng.integers(2_000, 28_000, size=len(length))
    part = np.where(rng.random(len(length)) < 0.88, 1.0, rng.uniform(0.35, 0.98, size=len(length)))
    played = np.where(heard.skipped, np.minimum(skipped_after, length), (length * part).astype(np.int64))
    started = _when(sessions, session, place, played, rng)

    keep = np.flatnonzero(started + played < int(until.timestamp() * 1000))
    order = keep[np.lexsort((session[keep], started[keep]))]
    told = np.where(rng.random(len(played)) < 0.01, -1, played)  # some clients do not say
    _, dense_session = np.unique(session[order], return_inverse=True)
    return Plays(
        user=user[order].astype(np.int32),
        track=heard.track[order].astype(np.int32),
        started_at_ms=started[order],
        played_ms=told[order],
        session=dense_session.astype(np.int32),
        event_id=event_ids(started[order], rng),
    )


def _sessions(people: People, begin: datetime, until: datetime, rng: np.random.Generator) -> _Sessions:
    """Busy and quiet weeks, weekends, morning, afternoon and evening in the listener's own zone."""
    begin_ms, until_ms = int(begin.timestamp() * 1000), int(until.timestamp() * 1000)
    days = until_ms // DAY_MS - begin_ms // DAY_MS + 1
    user = np.repeat(np.arange(len(people.sessions)), people.sessions)

    busy = rng.gamma(0.7, size=(len(people.sessions), days // 7 + 1)).repeat(7, axis=1)[:, :days] + 0.02
    weekday = np.array([(begin + timedelta(days=day)).weekday() for day in range(days)])
    busy *= np.where(weekday >= 5, 1.25, 1.0)
    busy *= np.arange(days) >= people.joined_day[:, None]
    passed = until_ms % DAY_MS / DAY_MS  # the first and the last date are in the window in part
    busy[:, 0] *= 1.01 - passed
    busy[:, -1] *= passed
    day = draw(rows_cdf(busy), days, user, rng.random(len(user)))

    in_evening = rng.random(len(user)) < people.evening[user]
    peak = np.where(in_evening, 20.0, np.where(rng.random(len(user)) < 0.5, 8.0, 14.0))
    hour = (peak + rng.normal(0, 1.8, size=len(user))) % 24
    midnight_ms = begin_ms // DAY_MS * DAY_MS
    offset = utc_offsets_ms(begin, days)[people.zone[user], day]
    start = midnight_ms + day * DAY_MS + (hour * 3_600_000).astype(np.int64) - offset
    latest = until_ms - 3_600_000
    # What falls outside moves into the week beside it, at its hour: moved by one day it would make that day stand out.
    move = rng.integers(0, 7, size=len(user))
    late, early = -(-(start - latest) // DAY_MS), -(-(begin_ms - start) // DAY_MS)
    start -= np.where(late > 0, late + move, 0) * DAY_MS
    start += np.where(early > 0, early + move, 0) * DAY_MS

    length = np.exp(rng.normal(np.log(SESSION_MEDIAN), SESSION_SIGMA, size=len(user))).round().clip(1, SESSION_MAX)
    taste = draw(rows_cdf(people.genre_weight + 0.01), TASTES, user, rng.random(len(user)))
    order = np.lexsort((start, user))
    return _Sessions(user, start[order], length.astype(np.int64), taste[order])


def _discoveries(
    people: People, catalogue: Catalogue, sessions: _Sessions, session: Int64, rng: np.random.Generator
) -> tuple[Int64, Int64]:
    """([N, CHOICES] songs already out when the session starts, [N] where the artist was picked) for every play."""
    plays = len(session)
    user = sessions.user[session]
    source = rng.choice(3, size=plays, p=SOURCES)

    # A session is about one genre, and often about one artist of it.
    wanted = people.genres[sessions.user, sessions.taste]
    about = catalogue.artist_genre[people.circle[sessions.user]] == wanted[:, None]
    circle_cdf = rows_cdf(people.circle_weight[sessions.user] * np.where(about, 1.0, 0.1))
    lead = draw(circle_cdf, CIRCLE, np.arange(len(wanted)), rng.random(len(wanted)))
    rank = draw(circle_cdf, CIRCLE, session, rng.random(plays))
    rank = np.where(rng.random(plays) < 0.35, lead[session], rank)
    artist = people.circle[user, rank].astype(np.int64)

    scenes = int(catalogue.artist_styles.max()) + 1
    belongs = np.full((scenes, len(catalogue.artist_weight)), 1e-6)
    belongs[catalogue.artist_styles[:, 0], np.arange(belongs.shape[1])] += 1.0
    belongs[catalogue.artist_styles[:, 1], np.arange(belongs.shape[1])] += 0.4
    scene = np.minimum(people.scene[user, sessions.taste[session]], scenes - 1)
    near = draw(rows_cdf(belongs * catalogue.artist_weight), belongs.shape[1], scene, rng.random(plays))
    chart = draw(
        rows_cdf(catalogue.artist_weight[None, :]), belongs.shape[1], np.zeros(plays, np.int64), rng.random(plays)
    )
    artist = np.where(source == SCENE_PICK, near, np.where(source == CHART_PICK, chart, artist))
    return _songs(catalogue, artist, sessions.start_ms[session] // DAY_MS, rng), source


def _songs(catalogue: Catalogue, artist: Int64, day: Int64, rng: np.random.Generator) -> Int64:
    """[N, CHOICES] songs by popularity, none from after `day`; a release of the last two weeks draws fans."""
    key = catalogue.release_key(catalogue.track_artist.astype(np.int64), catalogue.release_day)
    above = np.r_[0.0, np.cumsum(catalogue.weight)]
    first = np.searchsorted(catalogue.track_artist, artist)
    end = np.searchsorted(key, catalogue.release_key(artist, day), side="right")
    recent = np.searchsorted(key, catalogue.release_key(artist, day - 14), side="right")
    curious = (rng.random(len(artist)) < 0.4) & (recent < end)
    start = np.where(curious, recent, first)[:, None]
    stop = end[:, None]
    at = above[start] + rng.random((len(artist), CHOICES)) * (above[stop] - above[start])
    return np.asarray(np.clip(np.searchsorted(above, at, side="right") - 1, start, stop - 1), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class _Heard:
    track: Int64  # [N]
    skipped: np.ndarray[tuple[int], np.dtype[np.bool_]]  # [N]


def _listen(
    people: People,
    sessions: _Sessions,
    *,
    session: Int64,
    candidate: Int64,
    source: Int64,
    begin: datetime,
    rng: np.random.Generator,
) -> _Heard:
    """Step k decides the k-th play of every listener who has that many, so listeners are rows and time is the loop."""
    plays = len(session)
    per_user = np.bincount(sessions.user, weights=sessions.length, minlength=len(people.sessions)).astype(np.int64)
    offset = np.cumsum(per_user) - per_user
    busiest = np.argsort(-per_user, kind="stable")
    active = np.searchsorted(-per_user[busiest], -np.arange(1, per_user.max(initial=0) + 1), side="right")
    now = (sessions.start_ms[session] - int(begin.timestamp() * 1000)) / DAY_MS
    wish, where, skip_dice = rng.random(plays), rng.random(plays), rng.random(plays)
    love = (rng.normal(0, 2.2, size=plays) - np.array((0.0, 0.7, 1.4))[source]).astype(np.float32)
    mood = rng.beta(1.2, 1.2, size=len(sessions.user))[session]  # some sessions are all favourites, some all new
    skip_share = np.array((0.12, 0.22, 0.32))[source]
    repeats = people.repeats[sessions.user[session]] * 2 * mood

    track = np.full(plays, -1, dtype=np.int64)
    skipped = np.zeros(plays, dtype=bool)
    users = len(per_user)
    on_shelf = np.full((users, SHELF), -1, dtype=np.int64)
    standing = np.full((users, SHELF), -60.0, dtype=np.float32)
    wear = np.zeros((users, SHELF), dtype=np.float32)
    last = np.zeros((users, SHELF), dtype=np.float32)
    last_session = np.full((users, SHELF), -1, dtype=np.int64)
    rows = np.arange(users)
    for k, count in enumerate(active.tolist()):
        at = offset[busiest[:count]] + k
        shelf, this = on_shelf[:count], session[at]
        t = now[at].astype(np.float32)
        back = np.maximum(at[:, None] - np.arange(1, 13), 0)
        just_heard = np.where(session[back] == this[:, None], track[back], -2)
        fresh = candidate[at]
        known = 2 * (fresh[:, :, None] == just_heard[:, None, :]).any(axis=2)
        known += (fresh[:, :, None] == shelf[:, None, :]).any(axis=2)
        pick = fresh[rows[:count], known.argmin(axis=1)]

        worn = wear[:count] * np.exp2((last[:count] - t[:, None]) / REST_DAYS)
        pull = np.exp2(standing[:count] - t[:, None] / FADE_DAYS - worn)
        pull[(last_session[:count] == this[:, None]) | (shelf < 0)] = 0.0
        total = np.cumsum(pull, axis=1)
        again = (wish[at] < repeats[at]) & (total[:, -1] > 0.02)
        slot = np.minimum((total <= (where[at] * total[:, -1])[:, None]).sum(axis=1), SHELF - 1)
        found = shelf == pick[:, None]
        already = found.any(axis=1) & ~again
        slot = np.where(again, slot, np.where(already, found.argmax(axis=1), standing[:count].argmin(axis=1)))
        new = ~again & ~already

        here = (rows[:count], slot)
        heard = np.where(again, shelf[here], pick)
        tired = np.where(new, skip_share[at], 0.03 + 0.04 * worn[here])
        skip = skip_dice[at] < tired
        arrives = love[at] + t / FADE_DAYS - np.where(skip, 3.0, 0.0).astype(np.float32)
        track[at], skipped[at] = heard, skip
        on_shelf[here] = heard
        standing[here] = np.where(new, arrives, standing[here] - 0.5 * skip)
        wear[here] = np.where(new, 0.0, worn[here]) + np.where(skip, 0.2, WEAR)
        last[here] = t
        last_session[here] = this
    return _Heard(track, skipped)


def _when(sessions: _Sessions, session: Int64, place: Int64, played: Int64, rng: np.random.Generator) -> Int64:
    """Start of each play in ms: one after the other in a session, sessions of a listener at least GAP_MS apart."""
    spent = played + rng.integers(300, 4_000, size=len(played))
    begins = np.cumsum(spent) - spent
    begins -= np.repeat(begins[place == 0], sessions.length)
    needs = np.bincount(session, weights=spent).astype(np.int64) + GAP_MS
    before = np.cumsum(needs) - needs
    # start[i] = max over earlier sessions j of the listener of start[j] + the time that j..i-1 need
    apart = sessions.user * np.int64(1 << 48)
    start = np.maximum.accumulate(sessions.start_ms - before + apart) - apart + before
    return np.asarray(start[session] + begins, dtype=np.int64)
