"""What the demo shows: progress bars, tables, and the sentences between them."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from meiri.features.v1.user_feature_service_pb2 import GetLedgerCountsResponse
from meiri.playlist.v1.daily_playlist_pb2 import DailyPlaylist, Fallback, Recommendation
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from infra.demo.check import Findings, told
from infra.demo.feed import App
from infra.demo.world import TenantWorld

console = Console()
if not console.is_terminal:
    console = Console(width=118)  # a log has no width of its own

LIST_ROWS = 12
"""Songs shown of a list; the rest are counted."""


@dataclass(frozen=True)
class Stage:
    """One stage's work and time, for the table of numbers."""

    name: str
    items: int
    unit: str
    seconds: float


@contextmanager
def bar(name: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar; the yielded function advances it. A terminal sees it move, a log its end."""
    with Progress(
        TextColumn("{task.description:<36}"),
        BarColumn(bar_width=36),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    ) as progress:
        task = progress.add_task(name, total=total)
        yield lambda count: progress.advance(task, count)


def say(sentence: str) -> None:
    console.print(sentence)


def heading(title: str) -> None:
    console.print()
    console.rule(f"[bold]{title}", align="left")


def typical_listener(world: TenantWorld, place: int) -> int:
    """The index of a listener worth looking at: `place` picks among those whose plays are near the median of the busy half."""
    counts = np.bincount(world.plays.user, minlength=len(world.listeners))
    busy = np.flatnonzero(counts >= np.median(counts[counts > 0]))
    ordered = busy[np.argsort(counts[busy], kind="stable")]
    return int(ordered[len(ordered) // 2 + place])


def listener(world: TenantWorld, user: int, playlist: DailyPlaylist) -> None:
    """A listener's taste, from the plays that were sent, beside the list that came back."""
    own = world.plays.track[world.plays.user == user]
    heading(f"{world.listeners.user_id[user]} of {world.tenant_id}")
    if world.listeners.taste[user]:
        say(f"Taste: {world.listeners.taste[user]}")
    artists = Counter(world.tracks.artist_name[track] for track in own.tolist())
    songs = Counter(own.tolist())
    say(f"{len(own)} plays of {len(songs)} songs; most played artists: {_counted(artists)}")
    say(f"most played songs: {_counted(Counter({world.tracks.title[t]: n for t, n in songs.items()}))}")
    console.print(_list_table(playlist))


def _counted(counter: Counter[str], most: int = 4) -> str:
    return ", ".join(f"{name} ({count})" for name, count in counter.most_common(most))


def _list_table(playlist: DailyPlaylist, mark: Callable[[Recommendation], str] = lambda _: "") -> Table:
    songs = playlist.recommendations
    kind = "personal" if not playlist.fallback else Fallback.Name(playlist.fallback)
    table = Table(
        title=f"{playlist.playlist_date} · {len(songs)} songs · familiar {playlist.familiar_share:.0%} "
        f"(asked {playlist.familiar_share_wanted:.0%}) · {kind}",
        title_justify="left",
    )
    for column in ("", "Track", "Artist", "", "Why"):
        table.add_column(column, overflow="ellipsis", no_wrap=column != "Why")
    for number, song in enumerate(songs[:LIST_ROWS], 1):
        table.add_row(
            str(number),
            song.title,
            song.artist_name,
            "[green]familiar" if song.familiar else "[cyan]discovery",
            song.reason.sentence + mark(song),
        )
    if len(songs) > LIST_ROWS:
        table.add_row("", f"… {len(songs) - LIST_ROWS} more", "", "", "")
    return table


def gate(tenant_id: str, log: str) -> None:
    """The gate's verdict, from the trainer's own log events."""
    for line in log.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if event.get("event") == "release.published":
            say(
                f"  {tenant_id}: released {event['release_id']}, recall@50 on the last day {event['candidate']:.3f} "
                f"against popularity's {event['popularity']:.3f}"
            )
        elif event.get("event") == "release.refused":
            say(f"  {tenant_id}: refused, its lists will be flagged fallback. {event['reason']}")
        elif event.get("event") == "training.impossible":
            say(f"  {tenant_id}: not trained, its lists will be flagged fallback. {event['sentence']}")


def findings(found: Findings) -> None:
    heading("Every list, checked against its listener's own plays")
    table = Table()
    table.add_column("")
    table.add_column("", justify="right")
    for name, value in told(found):
        table.add_row(name, value)
    console.print(table)
    for example in found.examples:
        say(f"[red]{example}")


def proof(
    world: TenantWorld,
    user_id: str,
    today: DailyPlaylist,
    tomorrow: DailyPlaylist,
    *,
    banned_artist: Recommendation,
    disliked_track: Recommendation,
) -> None:
    """What feedback did: yesterday's list against the new one."""
    heading(f"{user_id} of {world.tenant_id} bans {banned_artist.artist_name} and dislikes “{disliked_track.title}”")
    before, after = list(today.recommendations), list(tomorrow.recommendations)
    table = Table(title="What the listener said, and what the next list did", title_justify="left")
    for column in ("", today.playlist_date, tomorrow.playlist_date):
        table.add_column(column, justify="left" if not column else "right")
    table.add_row(
        f"songs by {banned_artist.artist_name}",
        str(sum(song.artist_id == banned_artist.artist_id for song in before)),
        str(sum(song.artist_id == banned_artist.artist_id for song in after)),
    )
    table.add_row(
        f"“{disliked_track.title}”",
        str(sum(song.track_id == disliked_track.track_id for song in before)),
        str(sum(song.track_id == disliked_track.track_id for song in after)),
    )
    shared = {song.track_id for song in before} & {song.track_id for song in after}
    table.add_row("songs that were recommended the day before", "", str(len(shared)))
    table.add_row("songs in the list", str(len(before)), str(len(after)))
    console.print(table)
    console.print(_list_table(tomorrow))


def survived(killed: int, restarted: int, before: int, acknowledged: int, counted: int) -> None:
    heading("kill -9 of features in the middle of plays")
    say(f"Process {killed} was killed and restarted as {restarted}; {acknowledged - before:,} plays flowed meanwhile.")
    table = Table()
    for column in ("", "plays"):
        table.add_column(column, justify="left" if not column else "right")
    table.add_row("acknowledged to the app", f"{acknowledged:,}")
    table.add_row("counted in the ledger", f"{counted:,}")
    table.add_row("missing or counted twice", f"{abs(acknowledged - counted):,}")
    console.print(table)


def numbers(
    apps: Sequence[App],
    counts: Mapping[str, GetLedgerCountsResponse],
    dead_letters: int,
    lists: int,
    stages: Sequence[Stage],
) -> None:
    """The run's numbers: what was sent and what became of it, then each stage's time and rate."""
    heading("The run in numbers")
    table = Table()
    for column in ("", *(app.world.tenant_id for app in apps), "all"):
        table.add_column(column, justify="left" if not column else "right")
    sent = [app.sent.sent for app in apps]
    distinct = [len(app.sent.acknowledged) for app in apps]
    ledger = [counts[app.world.tenant_id].play_events for app in apps]
    for name, values in (
        ("play events sent", sent),
        ("distinct ones acknowledged", distinct),
        ("counted in the ledger", ledger),
    ):
        table.add_row(name, *(f"{value:,}" for value in values), f"{sum(values):,}")
    duplicates = next(iter(counts.values())).duplicates
    nothing = [""] * len(apps)
    table.add_row("duplicates met and not counted", *nothing, f"{duplicates:,}")
    table.add_row("dead letters", *nothing, f"{dead_letters:,}")
    table.add_row("daily lists published", *nothing, f"{lists:,}")
    console.print(table)
    table = Table()
    for column in ("stage", "items", "seconds", "per second"):
        table.add_column(column, justify="left" if column == "stage" else "right")
    for stage in stages:
        rate = stage.items / max(stage.seconds, 0.001)
        table.add_row(stage.name, f"{stage.items:,} {stage.unit}", f"{stage.seconds:.1f}", f"{rate:,.0f}")
    console.print(table)
