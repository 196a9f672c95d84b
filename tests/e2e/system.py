"""The whole system with a small world in it: history counted, models trained, today's lists made. Driven as the demo is."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from infra.demo import asking
from infra.demo import run as stages
from infra.demo.check import Findings, Said, check, combined, histories
from infra.demo.world import Plays, TenantWorld, World, generate
from infra.local.deployment import Deployment
from shared.postgres import Database

BUILD = Path(__file__).parents[2] / "build"


@dataclass
class System:
    """A running deployment and what was sent to it so far; `held_back` are plays of each tenant not sent yet."""

    demo: stages.Demo
    channels: asking.Channels
    admin: Database
    held_back: list[Plays]

    @property
    def deployment(self) -> Deployment:
        return self.demo.deployment

    async def findings(self, said: dict[str, dict[str, Said]] | None = None) -> Findings:
        """Every list of every listener, read as their app does, checked against what was sent."""
        return combined(
            [
                check(
                    app.world,
                    await asking.all_lists(self.channels, app.world),
                    histories(app.world),
                    (said or {}).get(app.world.tenant_id),
                )
                for app in self.demo.apps
            ]
        )


@asynccontextmanager
async def running(name: str, world: World, *, held_back: float = 0.0) -> AsyncIterator[System]:
    """Start everything, feed all but the share `held_back` of the plays, train, and make today's lists."""
    parts = [_split(tenant, held_back) for tenant in world.tenants]
    async with (
        Deployment(BUILD / "run" / name, services=stages.FIRST_SERVICES) as deployment,
        AsyncExitStack() as stack,
        Database.open(deployment.servers.admin_url, pool_size=2) as admin,
    ):
        demo = stages.Demo(deployment, World(tuple(tenant for tenant, _ in parts)))
        channels = await asking.open_channels(deployment, stack)
        await stages.feed(demo, stack, channels)
        await stages.counted(demo, channels)
        await stages.train(demo, channels)
        await stages.materialise(demo, channels)
        yield System(demo, channels, admin, [rest for _, rest in parts])


def small_world(scale: float) -> World:
    """The same on every day, so that the gate judges the same model."""
    return generate(datetime(2026, 11, 20, tzinfo=UTC), seed=11, scale=scale)


def _split(tenant: TenantWorld, held_back: float) -> tuple[TenantWorld, Plays]:
    """Plays from all over the time, so that those that flow later also arrive late; each listener's first is not among them."""
    plays = tenant.plays
    first = np.zeros(len(plays), bool)
    first[np.unique(plays.user, return_index=True)[1]] = True
    late = (np.arange(len(plays)) % 10 < 10 * held_back) & ~first
    return TenantWorld(tenant.tenant_id, tenant.tracks, tenant.listeners, plays.where(~late)), plays.where(late)
