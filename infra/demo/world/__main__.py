"""Prints the generated world's marginals (beside set D's), what simple baselines reach on it, and some listeners."""

import argparse
import sys
from collections import Counter
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

import numpy as np
from rich.console import Console
from rich.table import Table

from infra.demo.marginals import compare_table
from infra.demo.set_d import FOLDER, load_set_d
from infra.demo.world.baselines import Baselines, baselines
from infra.demo.world.generate import generate
from infra.demo.world.model import TenantWorld, World, WorldUnavailable


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m infra.demo.world", description=__doc__)
    parser.add_argument(
        "--scale", type=float, default=1.0, help="1 = 2,200 listeners, 11,000 tracks, about 230,000 plays"
    )
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--data", type=Path, help=f"the folder of the real data sets, that holds {FOLDER}/")
    options = parser.parse_args()
    console = Console()
    until = datetime.now(UTC)
    started = perf_counter()
    world = generate(until, seed=options.seed, scale=options.scale)
    seconds = perf_counter() - started
    try:
        set_d = load_set_d(options.data / FOLDER, until) if options.data else None
    except WorldUnavailable as error:
        console.print(str(error), markup=False, soft_wrap=True)
        return 2
    console.print(compare_table(world, set_d))
    console.print(f"Generated in {seconds:.1f} s with seed {options.seed}.\n")
    console.print(_baseline_table(world))
    for tenant in world.tenants:
        console.print(_listener_table(tenant))
    return 0


def _baseline_table(world: World) -> Table:
    measured = {tenant.tenant_id: baselines(tenant) for tenant in world.tenants}
    table = Table(title="Recall on the last day, trained on the days before", title_justify="left")
    table.add_column("")
    for name in measured:
        table.add_column(name, justify="right")
    for field in fields(Baselines):
        table.add_row(field.name, *(f"{getattr(values, field.name):.3g}" for values in measured.values()))
    return table


def _listener_table(tenant: TenantWorld, count: int = 3) -> Table:
    """Show listeners of the upper quartile: their histories are long enough to see a taste."""
    table = Table(title=f"Listeners of {tenant.tenant_id}", title_justify="left")
    for column in ("listener", "zone", "taste", "plays", "favourite songs"):
        table.add_column(column)
    per_user = np.bincount(tenant.plays.user, minlength=len(tenant.listeners))
    for user in np.argsort(-per_user, kind="stable")[len(per_user) // 4 :][:count].tolist():
        favourites = Counter(tenant.plays.track[tenant.plays.user == user].tolist()).most_common(5)
        songs = (f"{n} × {tenant.tracks.title[t]} — {tenant.tracks.artist_name[t]}" for t, n in favourites)
        table.add_row(
            tenant.listeners.user_id[user],
            tenant.listeners.zone[user] or "unknown",
            tenant.listeners.taste[user],
            str(per_user[user]),
            "\n".join(songs),
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
