"""How fast daily lists are made, end to end: `python -m benchmarks.daily_lists [users] [tracks]`.

Real Kafka and Postgres (its own, unless KAFKA_BOOTSTRAP_SERVERS and DATABASE_URL name some). Features is the tests' fake and
the embedder is the real engine with random towers, each in a process of its own, so that the CPU time printed by stage is the
materialiser's alone. Two dates are made: on the second, the filter of what was recommended has work to do.
"""

import asyncio
import os
import random
import resource
import secrets
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import structlog

from infra.local import postgres, schemas
from infra.local.kafka import create_topics
from infra.local.servers import start_servers
from infra.local.supervisor import Supervisor
from services.materialiser.catalogue import Catalogues
from services.materialiser.clients import EmbedderClient, FeatureClient
from services.materialiser.listeners import Listeners
from services.materialiser.materialise import Materialiser
from services.materialiser.store import Store
from shared.clock import Clock, move_to
from shared.codec.state import Tenant, Track
from shared.kafka.producer import Producer
from shared.postgres import Database
from shared.rpc.client import channel
from shared.rpc.principal import Scope
from shared.rpc.tokens import generate_key_pair, mint
from shared.topics import DAILY_PLAYLISTS
from tests.fakes import FakeFeatures, Heard

TENANT, HISTORY = Tenant("bench"), 60


def world(users: int, tracks: int) -> tuple[list[Track], FakeFeatures]:
    rng = random.Random(1)
    catalogue = [
        Track("bench", f"t-{n}", f"Song {n}", f"a-{n // 8}", f"Artist {n // 8}", f"genre {n // 8 % 20}")
        for n in range(tracks)
    ]
    today = (datetime.now(UTC).date() - date(1970, 1, 1)).days
    features = FakeFeatures()
    for user in range(users):
        own = {min(int(rng.paretovariate(0.6)), tracks) - 1 for _ in range(HISTORY // 2)}
        own |= {rng.randrange(tracks) for _ in range(HISTORY - len(own))}
        features.heard["bench", f"u-{user}"] = {
            f"t-{track}": Heard(plays := rng.randint(1, 6), rng.randint(0, plays), today - rng.randint(0, 80))
            for track in own
        }
    return catalogue, features


def serve_fake(users: int, tracks: int, public_key: str, ready: Any) -> None:
    """The child that plays features."""
    from tests.fakes import features_server  # noqa: PLC0415

    async def serve() -> None:
        async with features_server(world(users, tracks)[1], public_key) as address:
            ready.put(address)
            await asyncio.Event().wait()

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    asyncio.run(serve())


def serve_engine(tracks: int, public_key: str, ready: Any) -> None:
    """The child that is the embedder."""
    import numpy as np  # noqa: PLC0415
    from meiri.embedding.v1.embedding_service_pb2_grpc import (  # noqa: PLC0415
        add_EmbeddingServiceServicer_to_server,
    )

    from services.embedder.engine import Engine, Serving  # noqa: PLC0415
    from services.embedder.servicer import POLICIES, EmbeddingServicer  # noqa: PLC0415
    from services.trainer.dataset import track_features  # noqa: PLC0415
    from shared.codec.state import ModelRelease  # noqa: PLC0415
    from shared.registry import Registry  # noqa: PLC0415
    from shared.rpc.server import Server  # noqa: PLC0415
    from shared.rpc.tokens import Verifier  # noqa: PLC0415
    from shared.two_tower.data import Plays  # noqa: PLC0415
    from shared.two_tower.release import release_content  # noqa: PLC0415
    from shared.two_tower.scorer import Scorer  # noqa: PLC0415
    from shared.two_tower.train import Recipe, train  # noqa: PLC0415

    rng = np.random.default_rng(1)
    features = track_features(world(1, tracks)[0])
    now = datetime.now(UTC)
    now_ms = int(now.timestamp() * 1000)
    plays = Plays(
        rng.integers(0, 500, 20_000).astype(np.int32),
        rng.integers(0, tracks, 20_000).astype(np.int32),
        now_ms - rng.integers(1, 60 * 86_400_000, 20_000),
    )
    recipe = Recipe(epochs=1)
    trained = train(features, plays, until_ms=now_ms, seed=1, recipe=recipe)
    scorer = Scorer(release_content(features, plays, trained, until_ms=now_ms, seed=1, recipe=recipe))

    async def serve() -> None:
        async with (
            Engine(Registry(tempfile.gettempdir()), threads=1) as engine,
            Server(
                "127.0.0.1:0",
                policies=POLICIES,
                verifier=Verifier(public_key, Clock()),
                servicers=[(add_EmbeddingServiceServicer_to_server, EmbeddingServicer(engine))],
                max_concurrent=8,
            ) as server,
        ):
            engine._serving["bench"] = Serving(ModelRelease("bench", "r1", "", b"", now), scorer)  # noqa: SLF001
            engine.caught_up()
            ready.put(f"127.0.0.1:{server.port}")
            await asyncio.Event().wait()

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    asyncio.run(serve())


class Stages:
    """Wall and CPU seconds of this process by stage; what no port's call takes is the rules'."""

    def __init__(self) -> None:
        self.wall: defaultdict[str, float] = defaultdict(float)
        self.cpu: defaultdict[str, float] = defaultdict(float)

    def around(self, target: Any, **stage_of: str) -> Any:
        """`target` with these methods measured."""
        for name, stage in stage_of.items():
            setattr(target, name, self._measured(getattr(target, name), stage))
        return target

    def _measured(self, call: Callable[..., Awaitable[Any]], stage: str) -> Callable[..., Awaitable[Any]]:
        async def measured(*args: Any, **kwargs: Any) -> Any:
            wall, cpu = time.perf_counter(), time.process_time()
            try:
                return await call(*args, **kwargs)
            finally:
                self.wall[stage] += time.perf_counter() - wall
                self.cpu[stage] += time.process_time() - cpu

        return measured


@asynccontextmanager
async def servers(folder: Path) -> AsyncIterator[tuple[str, str]]:
    async with Supervisor(folder) as supervisor:
        at = await start_servers(supervisor)
        yield at.bootstrap_servers, at.admin_url


async def main(users: int, tracks: int, folder: Path, addresses: Sequence[str], token: str) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    clock_file = folder / "clock"
    async with AsyncExitStack() as stack:
        bootstrap_servers, admin = await stack.enter_async_context(servers(folder / "run"))
        await create_topics(bootstrap_servers, [DAILY_PLAYLISTS])
        name = f"bench_{secrets.token_hex(4)}"
        await postgres.create_database(admin, name)
        stack.push_async_callback(postgres.drop_database, admin, name)
        passwords = schemas.passwords(folder / "passwords.json")
        urls = (await schemas.prepare(postgres.with_database(admin, name), passwords)).urls
        db = await stack.enter_async_context(Database.open(urls["materialiser"]))
        producer = await stack.enter_async_context(Producer.open(bootstrap_servers))
        feature_channel, embedder_channel = [
            await stack.enter_async_context(channel(address, token=token, max_response_bytes=64 << 20))
            for address in addresses
        ]

        catalogues = Catalogues()
        for track in world(1, tracks)[0]:
            catalogues.changed("", None, track)
        started = time.perf_counter()
        await catalogues.of("bench")
        print(f"catalogue of {tracks:,} tracks made in {(time.perf_counter() - started) * 1000:.0f} ms")
        stages, clock = Stages(), Clock(clock_file)
        store = stages.around(
            Store(db), claim="claim", stored="claim", recommended="recommended", store="store", finish="finish"
        )
        feature_client = stages.around(FeatureClient(feature_channel), histories="features", trending="features")
        embedder_client = stages.around(EmbedderClient(embedder_channel), release="score", score="score")
        stages.around(producer, send_many="publish")
        listeners = Listeners(feature_client, store, clock)
        materialiser = Materialiser(store, feature_client, embedder_client, producer, catalogues, lambda _: None, clock)
        started = time.perf_counter()
        await listeners.look(TENANT)
        print(f"{users:,} new listeners noted in {(time.perf_counter() - started) * 1000:.0f} ms")
        for day in range(3):
            for counter in (stages.wall, stages.cpu):
                counter.clear()
            wall, cpu, made = time.perf_counter(), time.process_time(), 0
            while claimed := await materialiser.batch(TENANT):
                made += claimed
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            stages.wall["rules"] = wall - sum(stages.wall.values())
            stages.cpu["rules"] = cpu - sum(stages.cpu.values())
            print(f"date {day + 1}: {made:,} lists, {made / wall:,.0f} a second, {cpu / made * 1000:.2f} ms CPU each")
            for stage in ("claim", "features", "recommended", "score", "rules", "store", "publish", "finish"):
                print(
                    f"  {stage:12} {stages.wall[stage] / made * 1000:6.2f} ms wall {stages.cpu[stage] / made * 1000:6.2f} ms CPU"
                )
            print(f"  {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MiB at most")
            move_to(clock_file, clock.now() + timedelta(days=1))
            await asyncio.sleep(1.1)  # the clock reads its file again


def start(users: int, tracks: int) -> None:
    import multiprocessing  # noqa: PLC0415

    context = multiprocessing.get_context("spawn")
    private, public = generate_key_pair()
    now = datetime.now(UTC)
    token = mint(private, tenant_id=None, subject="bench", scope=Scope.SERVICE, now=now, ttl=timedelta(days=9))
    addresses: Any = context.Queue()
    children = []
    try:
        found = []
        for target, values in ((serve_fake, (users, tracks, public)), (serve_engine, (tracks, public))):
            children.append(context.Process(target=target, args=(*values, addresses), daemon=True))
            children[-1].start()
            found.append(addresses.get(timeout=120))
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(main(users, tracks, Path(folder), found, token))
    finally:
        for child in children:
            child.kill()


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    sizes = [int(word) for word in sys.argv[1:]]
    start(*(sizes + [2_000, 10_000][len(sizes) :]))
