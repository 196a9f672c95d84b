"""A world's marginals beside those of set D.

The generator is calibrated on set D: session lengths directly; plays per listener and per track in shape
(p90 and p99 as multiples of p50) and the top-1 % share. Where they differ, and why:

- plays per listener: set D looks at 5 days of active people (p50 14), the generated world at 90 days of everybody;
- plays per track: set D has 58k tracks for 122k plays, a world that trains in a demo has 11k for 230k;
- repeat share: it grows with the length of the look. The column "last 5 days" cuts the generated world as set D is cut.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rich.table import Table

from infra.demo.world.model import DAY_MS, TenantWorld, World

Quantiles = tuple[float, float, float]  # p50, p90, p99


@dataclass(frozen=True, slots=True)
class Measures:
    """Listeners and tracks without a play do not count."""

    listeners: int
    tracks: int
    plays: int
    plays_per_listener: Quantiles
    plays_per_track: Quantiles
    session_plays: Quantiles
    repeat_share: float  # plays whose (listener, track) was played before
    top_share: float  # plays of the most played 1 % of the heard tracks


@dataclass(frozen=True, slots=True)
class Marginals:
    total: Measures
    tenants: dict[str, Measures]


def marginals(world: World) -> Marginals:
    """Per tenant and over all; in the total a track is one track in both tenants when its id is the same."""
    return Marginals(_measure(world.tenants), {tenant.tenant_id: _measure([tenant]) for tenant in world.tenants})


def last_days(world: World, days: int) -> World:
    """Keep only the plays of the last `days` days before its last play."""
    last = max(int(tenant.plays.started_at_ms[-1]) for tenant in world.tenants if len(tenant.plays))
    return World(
        tuple(
            TenantWorld(t.tenant_id, t.tracks, t.listeners, t.plays.where(t.plays.started_at_ms > last - days * DAY_MS))
            for t in world.tenants
        )
    )


def compare_table(world: World, set_d: World | None) -> Table:
    """Show the generated world by tenant, in total and cut to 5 days, beside set D when it is there."""
    measured = marginals(world)
    columns = {**measured.tenants, "total": measured.total, "last 5 days": marginals(last_days(world, 5)).total}
    if set_d is not None:
        columns["set D (real)"] = marginals(set_d).total
    table = Table(title="The listening world", title_justify="left")
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="right", style="bold" if name.startswith("set D") else None)
    every = list(columns.values())
    table.add_row("listeners with plays", *(f"{m.listeners:,}" for m in every))
    table.add_row("tracks heard", *(f"{m.tracks:,}" for m in every))
    table.add_row("plays", *(f"{m.plays:,}" for m in every), end_section=True)
    table.add_row("plays per listener, p50 / p90 / p99", *(_spell(m.plays_per_listener) for m in every))
    table.add_row("plays per track, p50 / p90 / p99", *(_spell(m.plays_per_track) for m in every))
    table.add_row("plays per session, p50 / p90 / p99", *(_spell(m.session_plays) for m in every))
    table.add_row("repeat share", *(f"{m.repeat_share:.1%}" for m in every))
    table.add_row("share of the top 1 % of tracks", *(f"{m.top_share:.1%}" for m in every))
    return table


def _spell(quantiles: Quantiles) -> str:
    return " / ".join(f"{value:,.0f}" for value in quantiles)


def _measure(tenants: Sequence[TenantWorld]) -> Measures:
    number_of: dict[str, int] = {}
    users, tracks, sessions = [], [], []
    first_user = first_session = 0
    for tenant in tenants:
        numbers = np.array(
            [number_of.setdefault(track_id, len(number_of)) for track_id in tenant.tracks.track_id], dtype=np.int64
        )
        users.append(tenant.plays.user.astype(np.int64) + first_user)
        tracks.append(numbers[tenant.plays.track])
        sessions.append(tenant.plays.session.astype(np.int64) + first_session)
        first_user += len(tenant.listeners)
        first_session += int(tenant.plays.session.max(initial=-1)) + 1
    user, track = np.concatenate(users), np.concatenate(tracks)
    plays = len(user)
    per_track = np.sort(_counts(track))[::-1]
    top = max(1, len(per_track) // 100)
    pairs = len(np.unique(user * max(1, len(number_of)) + track))
    per_user = _counts(user)
    return Measures(
        listeners=len(per_user),
        tracks=len(per_track),
        plays=plays,
        plays_per_listener=_quantiles(per_user),
        plays_per_track=_quantiles(per_track),
        session_plays=_quantiles(_counts(np.concatenate(sessions))),
        repeat_share=1 - pairs / plays if plays else 0.0,
        top_share=float(per_track[:top].sum() / plays) if plays else 0.0,
    )


def _counts(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.unique(values, return_counts=True)[1].astype(np.int64)


def _quantiles(values: npt.NDArray[np.int64]) -> Quantiles:
    if not len(values):
        return (0.0, 0.0, 0.0)
    p50, p90, p99 = np.quantile(values, (0.5, 0.9, 0.99), method="lower").tolist()
    return (float(p50), float(p90), float(p99))
