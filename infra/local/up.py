"""`make up`: the whole system until Ctrl-C, with a listener whose list can be read and lines to paste.

The first start fills it with a small generated app; later ones go on with the data of build/run/up.
"""

import argparse
import asyncio
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from meiri.account.v1.account_service_pb2 import TOKEN_SCOPE_APP
from meiri.playlist.v1.playlist_service_pb2_grpc import PlaylistServiceStub

from infra.demo import run as stages
from infra.demo import show
from infra.demo.asking import open_channels, read_list
from infra.demo.feed import app_of, create_tenant, create_token
from infra.demo.world import TenantWorld, World, generate
from infra.local.deployment import Deployment
from infra.local.environment import ROOT, SERVICES
from infra.local.program import run
from shared.rpc.client import channel

PORTS = {name: 7401 + number for number, name in enumerate(SERVICES)}
USER = "mira"
_SCALE = 0.3
# Later trainings are the trainer's own: once a day, as in production.
_INTERVAL_S = 86_400


async def up(run_dir: Path) -> None:
    # Its two lines are the tenant and a track. It is written last, so that a start that was broken off begins anew.
    seeded = run_dir / "seeded"
    show.heading("Meiri")
    async with Deployment(
        run_dir,
        services=stages.FIRST_SERVICES,
        tell=show.say,
        keep=seeded.exists(),
        ports=PORTS,
        trainer_interval_s=_INTERVAL_S,
    ) as deployment:
        show.say(f"Kafka, PostgreSQL and the services run; their logs: {deployment.logs}")
        if not seeded.exists():
            world = _world()
            await _seed(deployment, world)
            seeded.write_text(f"{world.tenant_id}\n{world.tracks.track_id[0]}\n", encoding="ascii")
        else:
            await deployment.start_service("materialiser")
        tenant_id, track_id = seeded.read_text(encoding="ascii").split()
        async with channel(deployment.addresses["gateway"], token=deployment.admin_token) as gateway:
            token = await create_token(gateway, tenant_id, "make-up", TOKEN_SCOPE_APP)
        show.heading("Paste this into another terminal, in this folder")
        print("\n".join(_lines(deployment.addresses, token, track_id)), flush=True)
        show.say("Ctrl-C stops everything; the data stays.")
        await asyncio.Event().wait()


def _world() -> TenantWorld:
    """One app of the generated world, with a listener of a name that is easy to type."""
    world = generate(datetime.now(UTC), scale=_SCALE).tenants[0]
    user_ids = list(world.listeners.user_id)
    user_ids[show.typical_listener(world, 0)] = USER
    return replace(world, listeners=replace(world.listeners, user_id=user_ids))


async def _seed(deployment: Deployment, world: TenantWorld) -> None:
    """As an app would: catalogue, listeners, history; then a first model and everyone's list of today."""
    demo = stages.Demo(deployment, World((world,)))
    async with AsyncExitStack() as stack:
        channels = await open_channels(deployment, stack)
        token = await create_tenant(channels.operator, world.tenant_id)
        app = await stack.enter_async_context(app_of(world, deployment.addresses["gateway"], token))
        reader = await stack.enter_async_context(channel(deployment.addresses["playlists"], token=token))
        channels.lists[world.tenant_id] = PlaylistServiceStub(reader)
        demo.apps.append(app)
        records = len(world.tracks) + len(world.listeners)
        with demo.stage("Catalogue and listeners", records, "records") as advance:
            await app.send_catalogue(advance)
            await app.send_users(advance)
        with demo.stage("History, by the import call", len(world.plays), "plays") as advance:
            await app.import_plays(world.plays, advance)
        await stages.counted(demo, channels)
        await stages.train(demo, channels)
        await stages.materialise(demo, channels)
        await read_list(channels, world.tenant_id, USER)


def _lines(addresses: dict[str, str], token: str, track_id: str) -> Iterator[str]:
    python = Path(sys.executable)
    shown = shlex.quote(str(python.relative_to(ROOT) if python.is_relative_to(ROOT) else python))
    yield f"export PYTHONPATH=protos/gen MEIRI_TOKEN={token}"
    yield " ".join(
        ["export", *(f"MEIRI_{name.upper()}_ADDRESS={addresses[name]}" for name in ("gateway", "playlists"))]
    )
    yield f"{shown} docs/examples/publish_play.py {USER} {track_id}"
    yield f"{shown} docs/examples/read_list.py {USER}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m infra.local.up", description=__doc__)
    parser.add_argument(
        "--run-dir", type=Path, default=ROOT / "build" / "run" / "up", help="where data and logs are kept"
    )
    return run(up(parser.parse_args(arguments).run_dir))


if __name__ == "__main__":
    sys.exit(main())
