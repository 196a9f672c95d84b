"""`make demo`: one play to that listener's next daily list, before your eyes."""

import argparse
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from infra.demo import run as stages
from infra.demo import show
from infra.demo.marginals import compare_table
from infra.demo.set_d import FOLDER, load_set_d
from infra.demo.world import World, WorldUnavailable, generate
from infra.local.deployment import Deployment
from infra.local.program import run
from shared.errors import Unusable


async def demo(scale: float, seed: int, data: str | None) -> None:
    started = time.monotonic()
    until = datetime.now(UTC)
    generated = generate(until, seed=seed, scale=scale)
    real = _set_d(data, until) if data else None
    show.heading("The listening")
    show.console.print(compare_table(generated, real))
    world = real or generated
    show.say(
        f"{'Set D (real listening)' if real else 'The generated world'}: "
        f"{sum(len(t.plays) for t in world.tenants):,} plays of {sum(len(t.listeners) for t in world.tenants):,} listeners "
        f"in {len(world.tenants)} tenants."
    )
    show.heading("The system")
    async with Deployment(Path("build/run/demo"), services=stages.FIRST_SERVICES, tell=show.say) as deployment:
        show.say(
            f"Real Kafka, PostgreSQL and services are up ({time.monotonic() - started:.0f} s); logs: {deployment.logs}"
        )
        await stages.run(stages.Demo(deployment, world))
        show.say(
            f"All of it took {time.monotonic() - started:.0f} s. `make up` keeps it running and gives you a token."
        )


def _set_d(data: str, until: datetime) -> World:
    try:
        return load_set_d(Path(data) / FOLDER, until)
    except WorldUnavailable as error:
        raise Unusable(str(error)) from None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m infra.demo", description=__doc__)
    parser.add_argument("--scale", type=float, default=float(os.environ.get("SCALE", "1")), help="1 = 2,200 listeners")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument(
        "--data", default=os.environ.get("MEIRI_DATA") or None, help="folder with real listening data (set D)"
    )
    arguments = parser.parse_args()
    return run(demo(arguments.scale, arguments.seed, arguments.data))


if __name__ == "__main__":
    sys.exit(main())
