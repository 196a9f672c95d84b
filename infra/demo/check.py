"""Every list against its listener's own history, recounted here from the plays that were sent.

What the services say of a listener is not asked: the check would then repeat their mistakes.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import date, timedelta

import numpy as np
from meiri.playlist.v1.daily_playlist_pb2 import DailyPlaylist
from meiri.playlist.v1.daily_playlist_pb2 import Reason as ReasonMessage

from infra.demo.world import TenantWorld
from shared.plays.grouping import PlayEventRow, group
from shared.recommend.reason_check import History, verify_reason
from shared.recommend.values import Reason, ReasonKind

EPOCH = date(1970, 1, 1)
ARTIST_CAP = 3
FEW_PLAYS = 10
"""Listeners below this often have too few songs for the familiar half of a list."""


@dataclass
class Said:
    """A listener's feedback: ids."""

    disliked: set[str] = field(default_factory=set)
    banned_artists: set[str] = field(default_factory=set)


@dataclass
class Findings:
    """Counts over all lists. `faults` names what must not be, by kind; it is empty when all is well."""

    lists: int = 0
    songs: int = 0
    familiar: int = 0
    personal: int = 0
    full: int = 0
    blended: int = 0
    able: int = 0
    able_blended: int = 0
    few_plays: int = 0
    few_plays_blended: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def fault(self, kind: str, example: str) -> None:
        self.faults[kind] += 1
        if len(self.examples) < 10:
            self.examples.append(f"{kind}: {example}")


def histories(world: TenantWorld) -> dict[str, History]:
    """By user id, from the plays of the world; tracks are indices into its tracks, artists and genres are numbered here."""
    artist_of = _numbers(world.tracks.artist_id)
    genre_of = _numbers(world.tracks.genre)
    # What is popular is not of the listener's own history, so it is not judged here.
    popular = frozenset(range(len(world.tracks)))
    plays: dict[int, dict[int, int]] = {}
    listens: dict[int, dict[int, int]] = {}
    last_played: dict[int, dict[int, date]] = {}
    columns = world.plays
    order = np.lexsort((columns.started_at_ms, columns.track, columns.user))
    bounds = np.flatnonzero(np.diff(columns.user[order]) | np.diff(columns.track[order])) + 1
    for rows in np.split(order, bounds):
        if not len(rows):
            continue
        user, track = int(columns.user[rows[0]]), int(columns.track[rows[0]])
        derived = group(
            [
                PlayEventRow(
                    columns.event_id[row].tobytes(),
                    int(columns.started_at_ms[row]),
                    None if columns.played_ms[row] < 0 else int(columns.played_ms[row]),
                    world.tracks.duration_ms[track],
                    None,
                    0,
                )
                for row in rows.tolist()
            ]
        )
        plays.setdefault(user, {})[track] = len(derived)
        listens.setdefault(user, {})[track] = sum(play.listen for play in derived)
        newest = max(play.started_at_ms for play in derived)
        last_played.setdefault(user, {})[track] = EPOCH + timedelta(days=newest // 86_400_000)
    return {
        world.listeners.user_id[user]: History(
            plays[user], listens[user], last_played[user], artist_of, genre_of, popular=popular
        )
        for user in plays
    }


def _numbers(names: Sequence[str | None]) -> list[int]:
    """A number per name, -1 for an absent one."""
    known: dict[str, int] = {}
    return [-1 if name is None else known.setdefault(name, len(known)) for name in names]


def check(
    world: TenantWorld,
    lists: Mapping[str, DailyPlaylist],
    heard: Mapping[str, History],
    said: Mapping[str, Said] | None = None,
) -> Findings:
    """Check one list per listener of a tenant: whose it is, what is in it, how it is mixed, and each reason."""
    findings = Findings()
    track_of = {track_id: index for index, track_id in enumerate(world.tracks.track_id)}
    for user_id in sorted(heard):
        playlist = lists.get(user_id)
        if playlist is None:
            findings.fault("listener without a list", user_id)
            continue
        _check_list(findings, playlist, world, user_id, heard[user_id], (said or {}).get(user_id, Said()), track_of)
    for user_id in sorted(lists.keys() - heard.keys()):
        findings.fault("list of nobody", user_id)
    return findings


def _check_list(
    findings: Findings,
    playlist: DailyPlaylist,
    world: TenantWorld,
    user_id: str,
    history: History,
    said: Said,
    track_of: Mapping[str, int],
) -> None:
    songs = list(playlist.recommendations)
    findings.lists += 1
    findings.songs += len(songs)
    findings.personal += not playlist.fallback
    familiar = sum(song.familiar for song in songs)
    findings.familiar += familiar
    findings.full += "few_candidates" not in playlist.shortfalls
    few = sum(history.plays.values()) < FEW_PLAYS
    blended = abs(familiar - playlist.familiar_share_wanted * len(songs)) <= 1
    findings.blended += blended
    able = _able(history) >= playlist.familiar_share_wanted * len(songs)
    findings.able += able
    findings.able_blended += able and blended
    findings.few_plays += few
    findings.few_plays_blended += few and blended
    if playlist.tenant_id != world.tenant_id or playlist.user_id != user_id:
        findings.fault("another's list", f"{playlist.tenant_id}|{playlist.user_id} for {world.tenant_id}|{user_id}")
    if not blended and not playlist.shortfalls:
        findings.fault("blend missed and not told", f"{user_id}: {familiar} of {len(songs)}")
    for kind, number in (
        ("track twice", max(Counter(song.track_id for song in songs).values(), default=0) - 1),
        ("artist over the cap", max(Counter(song.artist_id for song in songs).values(), default=0) - ARTIST_CAP),
    ):
        if number > 0:
            findings.fault(kind, user_id)
    for song in songs:
        track = track_of.get(song.track_id)
        if track is None:
            findings.fault("track of another catalogue", f"{user_id}: {song.track_id}")
            continue
        if song.familiar != (history.plays.get(track, 0) > 0):
            findings.fault("familiar or discovery is wrong", f"{user_id}: {song.track_id}")
        if song.track_id in said.disliked or song.artist_id in said.banned_artists:
            findings.fault("banned or disliked", f"{user_id}: {song.track_id}")
        reason = _reason(song.reason, track, history, track_of)
        findings.reasons[reason.kind.name] += 1
        named = song.reason.artist_id in {"", song.artist_id} and song.reason.genre in {"", world.tracks.genre[track]}
        if not named or not verify_reason(reason, track, history, date.fromisoformat(playlist.playlist_date)):
            findings.fault("untrue reason", f"{user_id}: {song.track_id} {song.reason.sentence}")


def _able(history: History) -> int:
    """How many familiar songs a list of this listener's could have under the artist cap."""
    by_artist = Counter(history.artist_of[track] for track, listens in history.listens.items() if listens)
    return sum(min(count, ARTIST_CAP) for count in by_artist.values())


def _reason(reason: ReasonMessage, song: int, history: History, track_of: Mapping[str, int]) -> Reason:
    """The message in the checker's numbers. The artist and genre a reason names are those of the song it is for."""
    return Reason(
        ReasonKind(reason.kind),
        track=track_of.get(reason.track_id, -1) if reason.HasField("track_id") else None,
        artist=history.artist_of[song] if reason.HasField("artist_id") else None,
        genre=history.genre_of[song] if reason.HasField("genre") else None,
        number=reason.number if reason.HasField("number") else None,
    )


def combined(findings: Iterable[Findings]) -> Findings:
    """The sum over tenants."""
    total = Findings()
    for item in findings:
        for column in fields(Findings):
            value = getattr(item, column.name)
            if isinstance(value, Counter):
                getattr(total, column.name).update(value)
            else:
                setattr(total, column.name, getattr(total, column.name) + value)
    return total


def told(findings: Findings) -> Sequence[tuple[str, str]]:
    """Rows for a table."""
    lists, songs = max(findings.lists, 1), max(findings.songs, 1)
    rows = [
        ("lists checked", f"{findings.lists:,}"),
        ("songs", f"{findings.songs:,}"),
        ("familiar songs", f"{findings.familiar / songs:.0%}"),
        ("personal (not fallback)", f"{findings.personal / lists:.1%}"),
        ("full length", f"{findings.full / lists:.1%}"),
        ("blend within one song of the dial", f"{findings.blended / lists:.1%}"),
        ("… of listeners who know songs enough", f"{findings.able_blended:,} of {findings.able:,}"),
        (f"listeners with fewer than {FEW_PLAYS} plays", f"{findings.few_plays:,}"),
        ("… of these, blend within one song", f"{findings.few_plays_blended:,}"),
    ]
    rows += [(f"reason {kind}", f"{count:,}") for kind, count in findings.reasons.most_common()]
    rows += [("faults", f"{sum(findings.faults.values()):,}")]
    rows += [(f"fault: {kind}", f"{count:,}") for kind, count in findings.faults.most_common()]
    return rows
