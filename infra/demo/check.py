"""Every list against its listener's own history, recounted here from the plays that were sent.

What the services say of a listener is not asked: the check would then repeat their mistakes.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date

import numpy as np
from meiri.playlist.v1.daily_playlist_pb2 import DailyPlaylist, Reason, ReasonKind, Recommendation

from infra.demo.world import TenantWorld
from shared.plays.grouping import PlayEventRow, group

EPOCH = date(1970, 1, 1)
ARTIST_CAP = 3
FEW_PLAYS = 10
"""Listeners below this often have too few songs for the familiar half of a list."""


@dataclass
class History:
    """One listener's history: per track plays, listens and the newest UTC day; listens per artist and genre."""

    plays: Counter[str] = field(default_factory=Counter)
    listens: Counter[str] = field(default_factory=Counter)
    last_day: dict[str, int] = field(default_factory=dict)
    artist_listens: Counter[str] = field(default_factory=Counter)
    genre_listens: Counter[str] = field(default_factory=Counter)


@dataclass
class Said:
    """A listener's feedback: ids."""

    loved: set[str] = field(default_factory=set)
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
    """By user id, from the plays of the world."""
    found: dict[str, History] = {}
    plays = world.plays
    order = np.lexsort((plays.started_at_ms, plays.track, plays.user))
    bounds = np.flatnonzero(np.diff(plays.user[order]) | np.diff(plays.track[order])) + 1
    for rows in np.split(order, bounds):
        if not len(rows):
            continue
        track = int(plays.track[rows[0]])
        track_id, artist_id, genre = (
            world.tracks.track_id[track],
            world.tracks.artist_id[track],
            world.tracks.genre[track],
        )
        history = found.setdefault(world.listeners.user_id[int(plays.user[rows[0]])], History())
        derived = group(
            [
                PlayEventRow(
                    plays.event_id[row].tobytes(),
                    int(plays.started_at_ms[row]),
                    None if plays.played_ms[row] < 0 else int(plays.played_ms[row]),
                    world.tracks.duration_ms[track],
                    None,
                    0,
                )
                for row in rows.tolist()
            ]
        )
        history.plays[track_id] = len(derived)
        history.listens[track_id] = sum(play.listen for play in derived)
        history.last_day[track_id] = max(play.started_at_ms for play in derived) // 86_400_000
        history.artist_listens[artist_id] += history.listens[track_id]
        if genre is not None:
            history.genre_listens[genre] += history.listens[track_id]
    return found


def check(
    world: TenantWorld,
    lists: Mapping[str, DailyPlaylist],
    heard: Mapping[str, History],
    said: Mapping[str, Said] | None = None,
) -> Findings:
    """Check one list per listener of a tenant: whose it is, what is in it, how it is mixed, and each reason."""
    findings = Findings()
    catalogue = set(world.tracks.track_id)
    for user_id in sorted(heard):
        playlist = lists.get(user_id)
        if playlist is None:
            findings.fault("listener without a list", user_id)
            continue
        _check_list(findings, playlist, world, user_id, heard[user_id], (said or {}).get(user_id, Said()), catalogue)
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
    catalogue: set[str],
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
        if song.track_id not in catalogue:
            findings.fault("track of another catalogue", f"{user_id}: {song.track_id}")
        if song.familiar != (history.plays[song.track_id] > 0):
            findings.fault("familiar or discovery is wrong", f"{user_id}: {song.track_id}")
        if song.track_id in said.disliked or song.artist_id in said.banned_artists:
            findings.fault("banned or disliked", f"{user_id}: {song.track_id}")
        findings.reasons[ReasonKind.Name(song.reason.kind).removeprefix("REASON_KIND_")] += 1
        today = (date.fromisoformat(playlist.playlist_date) - EPOCH).days
        if not is_true(song.reason, song, history, said, today):
            findings.fault("untrue reason", f"{user_id}: {song.track_id} {song.reason.sentence}")


def is_true(reason: Reason, song: Recommendation, history: History, said: Said, today: int) -> bool:
    """Whether the listener's history bears the claim out, number and all."""
    kind = reason.kind
    if kind == ReasonKind.REASON_KIND_YOU_OFTEN_PLAY:
        return reason.track_id == song.track_id and history.listens[song.track_id] == reason.number >= 2
    if kind == ReasonKind.REASON_KIND_YOU_HAVE_PLAYED:
        return reason.track_id == song.track_id and history.plays[song.track_id] == reason.number >= 1
    if kind == ReasonKind.REASON_KIND_NOT_HEARD_FOR:
        last = history.last_day.get(song.track_id)
        return last is not None and today - last == reason.number
    if kind == ReasonKind.REASON_KIND_BECAUSE_YOU_LOVED:
        return reason.track_id in said.loved
    if kind == ReasonKind.REASON_KIND_BECAUSE_YOU_PLAY:
        return reason.track_id != song.track_id and history.listens[reason.track_id] == reason.number >= 1
    if kind == ReasonKind.REASON_KIND_UNHEARD_FROM_ARTIST:
        return (
            reason.artist_id == song.artist_id
            and not history.plays[song.track_id]
            and history.artist_listens[song.artist_id] == reason.number >= 1
        )
    if kind == ReasonKind.REASON_KIND_POPULAR_IN_GENRE:
        return history.genre_listens[reason.genre] == reason.number >= 1
    return kind in {ReasonKind.REASON_KIND_POPULAR, ReasonKind.REASON_KIND_UNSPECIFIED}


def combined(findings: Iterable[Findings]) -> Findings:
    """The sum over tenants."""
    total = Findings()
    for item in findings:
        for name in ("lists", "songs", "familiar", "personal", "full", "blended", "few_plays", "few_plays_blended"):
            setattr(total, name, getattr(total, name) + getattr(item, name))
        total.reasons.update(item.reasons)
        total.faults.update(item.faults)
        total.examples.extend(item.examples)
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
        (f"listeners with fewer than {FEW_PLAYS} plays", f"{findings.few_plays:,}"),
        ("… of these, blend within one song", f"{findings.few_plays_blended:,}"),
    ]
    rows += [(f"reason {kind}", f"{count:,}") for kind, count in findings.reasons.most_common()]
    rows += [("faults", f"{sum(findings.faults.values()):,}")]
    rows += [(f"fault: {kind}", f"{count:,}") for kind, count in findings.faults.most_common()]
    return rows
